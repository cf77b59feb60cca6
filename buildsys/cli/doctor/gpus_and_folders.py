"""What ``doit doctor`` tells of the machine: its GPUs, and the folders that a build writes to."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from buildsys.cli.doctor.finding import BROKEN, MISSING, OK, Finding
from buildsys.execution.build_cache import store_folder
from buildsys.manifest.project_settings import shared_cache
from buildsys.report.formatting import size
from buildsys.system.gpus.devices import GpuError, read_details

_LITTLE_ROOM_BYTES = 2 << 30
_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")  # dxg: WSL


@dataclass(frozen=True)
class Gpus:
    """The GPUs that CUDA would show, or why there are none."""

    capabilities: tuple[str, ...] = ()
    missing: str = ""

    @property
    def text(self) -> str:
        """What to say of them beside an engine."""
        return (
            f"compute capability {' and '.join(dict.fromkeys(self.capabilities))}"
            if self.capabilities
            else ""
        )


def look_at_gpus() -> tuple[Gpus, list[Finding]]:
    """Return the GPUs of this machine, and what to tell of them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        found = read_details(visible)
    except GpuError as error:
        there = any(Path(path).exists() for path in _DRIVER_FILES)
        text = (
            f"the NVIDIA driver does not answer ({error})"
            if there
            else "there is no NVIDIA driver on this machine"
        )
        mend = (
            "nvidia-smi"
            if there
            else "where there is a GPU, install its driver: sudo ubuntu-drivers install"
        )
        return Gpus(missing=text), [Finding("gpu", "none", MISSING, text, mend)]
    if not found:
        hidden = visible is not None
        text = (
            f"CUDA_VISIBLE_DEVICES={visible} shows none"
            if hidden
            else "the NVIDIA driver finds none"
        )
        mend = "unset CUDA_VISIBLE_DEVICES" if hidden else "nvidia-smi"
        return Gpus(missing=text), [Finding("gpu", "none", MISSING, text, mend)]
    findings = []
    for gpu in found:
        mig = {"on": ", MIG on", "off": ", MIG off"}.get(gpu.mig, "")
        memory = (
            f"{size(gpu.memory_bytes)} ({size(gpu.free_bytes)} free)"
            if gpu.memory_bytes
            else "memory not known"
        )
        text = f"compute capability {gpu.compute_capability}, {memory}, driver {gpu.driver}, CUDA {gpu.cuda_driver}{mig}"
        findings.append(Finding("gpu", gpu.name, OK, text, facts=gpu.as_json()))
    return Gpus(tuple(gpu.compute_capability for gpu in found)), findings


def look_at_folders(root: Path, configs: Path, build: Path, state: Path) -> Iterator[Finding]:
    """Yield whether what a build writes to can be written to, and where built outputs are kept."""
    for name, folder in (("build", build), ("state", state), ("store", store_folder(state))):
        yield _folder(name, folder)
    remote = shared_cache(root, configs)
    if remote is not None:
        yield Finding(
            "folder", "shared cache", OK, f"{remote['url']}, {remote['mode']}", facts=remote
        )


def _folder(name: str, folder: Path) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    facts = {"path": str(folder), "exists": folder.exists()}
    try:
        if not there.is_dir():
            raise NotADirectoryError(20, "is not a folder", str(there))
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
        free = shutil.disk_usage(there).free
    except OSError as error:
        text = f"{folder} cannot be written to: {(error.strerror or str(error)).lower()}"
        return Finding(
            "folder",
            name,
            BROKEN,
            text,
            f"sudo chown -R $USER {there}",
            {**facts, "writable": False},
        )
    facts |= {"writable": True, "free_bytes": free}
    used = f", holds {size(_bytes_in(folder))}" if name == "store" and folder.exists() else ""
    text = f"{folder}, {size(free)} free{used}"
    if free < _LITTLE_ROOM_BYTES:
        return Finding(
            "folder", name, MISSING, f"{text}: little room", "doit cache gc --max-size 10GiB", facts
        )
    return Finding("folder", name, OK, text, facts=facts)


def _bytes_in(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{where}/{name}").st_size
    return total
