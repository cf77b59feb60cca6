"""Identities and versions of the distributions that user code imports."""

import base64
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from backend_package import PACKAGE, install, registered
from python_environments import Environment

from buildsys.execution import key_parts
from buildsys.execution.key_parts import (
    FILES,
    LABELS,
    EnvironmentParts,
    lacking,
    obstacle,
    variables_of,
)
from buildsys.plan.action import NO_NEEDS, Action, Needs, ToolchainRef
from buildsys.store.state_db import StateDb


def write_distribution(site: Path, name: str, version: str = "1.0") -> None:
    """Write a distribution of one module, with a RECORD."""
    file, metadata = site / name / "__init__.py", site / f"{name}-{version}.dist-info"
    for folder in (file.parent, metadata):
        folder.mkdir(parents=True)
    file.write_text("# as installed\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode()
    row = f"{file.relative_to(site)},sha256={digest.rstrip('=')},{file.stat().st_size}"
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "RECORD").write_text(f"{metadata.name}/METADATA,,\n{row}\n")


@pytest.fixture
def in_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Action:
    """An action in a toolchain with other versions of two libraries."""
    environment = Environment(tmp_path / "env")
    for name in ("biglib", "onnxscript"):
        write_distribution(tmp_path / "site", name)
        write_distribution(environment.libraries, name, "2.0")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    toolchain = ToolchainRef("other", "env/bin/python", (("A", "1"),))
    return Action("engine:m:e", "engine", "m", "e", {}, {}, {}, toolchain=toolchain)


def test_libraries_of_user_code_are_those_of_the_toolchain(
    tmp_path: Path, db: StateDb, in_toolchain: Action
) -> None:
    parts = EnvironmentParts(str(tmp_path), db)
    names = ["biglib", "onnxscript"]
    found = parts.of_distributions(names, in_toolchain.runs_in)
    assert {label: found[label] for label in ("tool:biglib", "tool:onnxscript")} == {
        "tool:biglib": "2.0", "tool:onnxscript": "2.0",
    }  # fmt: skip
    assert found.keys() == {f"tool:{name}{end}" for name in names for end in ("", FILES)}
    here = parts.of_distributions(names, None)
    assert here["tool:biglib"] == "1.0"
    for name in names:  # the same modules, so the same files
        assert here[f"tool:{name}{FILES}"] == found[f"tool:{name}{FILES}"]
    site = tmp_path / "env/lib"
    for file in site.rglob("__init__.py"):
        file.write_text("changed = True\n")
    again = EnvironmentParts(str(tmp_path), db)
    for name in names:
        label = f"tool:{name}{FILES}"
        assert again.identities([name], in_toolchain.runs_in)[label] != found[label]
        assert again.identities([name], None)[label] == here[label]
    tools, root = parts.of_module(in_toolchain.runs_in, "biglib")
    assert (tools, root) == ({"tool:biglib": "2.0"}, None)
    assert variables_of(in_toolchain)["A"] == "1"


def test_a_module_in_a_library_folder_without_a_distribution_counts_with_its_files(
    tmp_path: Path, db: StateDb
) -> None:
    environment = Environment(tmp_path / "env")
    environment.write("loose/__init__.py", "")
    toolchain = ToolchainRef("other", "env/bin/python", ())
    tools, root = EnvironmentParts(str(tmp_path), db).of_module(toolchain, "loose")
    assert (tools, root) == ({}, str(environment.libraries))


def test_the_package_of_a_backend_counts_alone_in_a_toolchain(
    tmp_path: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch, in_toolchain: Action
) -> None:
    site = tmp_path / "site"
    folder = install(site)
    monkeypatch.syspath_prepend(str(site))
    with registered(site):
        parts = EnvironmentParts(str(tmp_path), db)
        alone, _ = parts.of_package(in_toolchain, PACKAGE)
        assert {label for label in alone if not label.endswith(FILES)} == {
            "tool:buildsys-reference"
        }
        whole, _ = parts.of_package(replace(in_toolchain, toolchain=None), PACKAGE)
        assert {"tool:buildsys-reference", "tool:onnx"} <= whole.keys()
        assert "tool:buildsys" not in whole
        label = f"tool:buildsys-reference{FILES}"
        (folder / "backend.py").write_text("changed = True\n")
        changed, _ = EnvironmentParts(str(tmp_path), db).of_package(in_toolchain, PACKAGE)
        assert changed[label] != alone[label]


OURS = "NVIDIA H100 80GB HBM3 (9.0)"
NINE = Needs(compute_capability="9.0", gpu_count=1)
H100 = {"uuid": "GPU-1", "name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"}
L4 = {"uuid": "GPU-2", "name": "NVIDIA L4", "compute_capability": "8.9"}


@pytest.mark.parametrize(
    ("gpus", "needs", "lacks"),
    [
        ([], NO_NEEDS, ""),
        ([H100], Needs(gpu="h100 hbm3", gpu_count=1), ""),
        ([H100], NINE, ""),
        ([H100, H100], Needs(gpu="H100", gpu_count=2), ""),
        ([L4], Needs(gpu_count=1), ""),
        ([], Needs(gpu="H100", gpu_count=1), "a GPU named H100 (none here)"),
        ([L4], Needs(gpu="L40", gpu_count=1), "a GPU named L40 (NVIDIA L4 (8.9) here)"),
        ([H100], Needs(gpu="H10", gpu_count=1), f"a GPU named H10 ({OURS} here)"),
        ([L4], NINE, "a GPU of compute capability 9.0 (NVIDIA L4 (8.9) here)"),
        ([H100], NINE._replace(gpu="H100", gpu_count=2),
         f"2 GPUs named H100 of compute capability 9.0 ({OURS} here)"),
        ([H100, L4], Needs(gpu="L4", gpu_count=1),
         f"a GPU named L4 alone in CUDA_VISIBLE_DEVICES ({OURS}, NVIDIA L4 (8.9) here)"),
    ],
)  # fmt: skip
def test_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: list[dict[str, str]], needs: Needs, lacks: str
) -> None:
    monkeypatch.setattr(key_parts, "visible_gpus", lambda: tuple(gpus))
    assert lacking(needs) == lacks


def test_memory_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SC_PAGE_SIZE": 1 << 12, "SC_PHYS_PAGES": 24 << 18}
    monkeypatch.setattr(key_parts.os, "sysconf", sizes.__getitem__)
    monkeypatch.setenv(LABELS, "lab, trt86")
    assert lacking(Needs(memory=24 << 30, labels=("trt86", "lab"))) == ""
    lacks = lacking(Needs(memory=64 << 30, labels=("lab", "trt10")))
    assert lacks == "64 GiB of memory (24 GiB here) and the label trt10"
    assert obstacle(lacks) == (
        f"it needs {lacks}",
        "run it on a machine that has it, or list the label in BUILDSYS_LABELS if it applies",
    )
