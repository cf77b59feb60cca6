"""Versions and identities of installed libraries, found without importing them.

The RECORD of a distribution lists its files with their digests. Its part for modules and libraries
is the identity: equal for the same wheel on every machine, other for another wheel of the same
version. An edit in site-packages changes the identity, too: the stamps of all modules are compared
(4 µs each), and if one differs all modules are read again.

Also the distributions of modules imported by a user's file.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import util
from importlib.machinery import PathFinder
from inspect import getmodulename
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.errors import StageError
from buildsys.system import compilers
from buildsys.system.files import Stamp, in_library, stamp

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from buildsys.system.files import TextCache
    from buildsys.system.toolchains import Interpreter, Toolchain

ABSENT = "absent"
UNUSABLE = "unusable"
# distributions of the same module under other names
_OTHER_BUILDS = {
    "onnxruntime": (
        "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-migraphx",
        "onnxruntime-rocm",
    ),
}  # fmt: skip
# the same, one per CUDA version; a package with the plain name may depend on one of these
_CUDA_BUILDS = {
    "tensorrt": (
        "tensorrt-cu11", "tensorrt-cu12", "tensorrt-cu13", "tensorrt-bindings", "nvidia-tensorrt",
    ),
    "tensorrt-rtx": ("tensorrt-rtx-cu12", "tensorrt-rtx-cu13"),
}  # fmt: skip
# environment variables that change what a library computes, by library
ENVIRONMENT = {
    "torch": re.compile(
        r"(TORCH|PYTORCH|ATEN|ONEDNN|DNNL|ONNXSCRIPT|TORCHDYNAMO|TORCHLIB)_.+"
        r"|MKL_(CBWR|ENABLE_INSTRUCTIONS)"
    ),
    "onnxruntime": re.compile(r"ORT_.+"),
    "onnxsim": re.compile(r"ONNXSIM_.+"),
    "onnxslim": re.compile(r"ONNXSLIM_.+"),
    "gpu": re.compile(r"NVIDIA_TF32_OVERRIDE|CUBLAS_.+|CUBLASLT_.+|CUDNN_.+|TRT_.+|TENSORRT_.+"),
    "speed": re.compile(
        r"(OMP|GOMP|KMP|MKL|OPENBLAS|MALLOC|CUDA)_.+"
        r"|LD_PRELOAD|GLIBC_TUNABLES|PYTHONOPTIMIZE|PYTHONMALLOC"
    ),
}
# variables for paths and logging, and the choice of a GPU, whose facts are in the key instead
_NO_RESULT = re.compile(
    r"(_HOME|_DIR|_PATH|_ROOT|_LOGS?|_LOG_.*|_CACHE.*|_STACKTRACES|_VERBOSE)$"
    r"|^ORT_DISABLE_TELEMETRY$|^CUDA_(VISIBLE_DEVICES|DEVICE_ORDER)$"
)
# modules without a distribution, e.g. unpacked from an archive
_VERSION_FILES = ("_version.py", "version.py", "__init__.py")
_WRITTEN_VERSION = re.compile(
    r"""^(?:__version__|version|VERSION)\s*(?::\s*str\s*)?=\s*["']([0-9][^"'\s]*)["']""",
    re.MULTILINE,
)
_READ_BYTES = 1 << 16
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_EXTRA = re.compile(r";.*\bextra\b")
_SCHEMA = "package/2"
_Record = dict[str, list[str]]  # module -> digest and size as in RECORD


def tool_versions(names: Iterable[str], toolchain: Toolchain | None = None) -> dict[str, str]:
    """Look up the installed version of each distribution, or ``absent``.

    ``python`` is the interpreter's major and minor version; ``cc`` and ``c++`` are compilers.
    With a ``toolchain`` they are those of its interpreter.
    """
    path, release = tuple(sys.path), python_version()
    if toolchain is not None:
        interpreter = _interpreter(toolchain)
        if interpreter is None:
            python = UNUSABLE if toolchain.python.exists() else ABSENT
            return {name: python if name == "python" else ABSENT for name in names}
        path, release = interpreter.path, interpreter.release
    versions = {}
    for name in names:
        if name == "python":
            versions[name] = release
        elif name in compilers.LANGUAGES and toolchain is None:
            versions[name] = compilers.compiler_identity(name)
        else:
            versions[name] = distribution_version(name, path)
    return versions


@cache
def distribution_version(name: str, path: tuple[str, ...]) -> str:
    """Look up the version of a distribution or its other builds, or ``absent``."""
    plain, installed = normalized(name), installed_versions(path)
    builds = (plain, *_OTHER_BUILDS.get(plain, ()))
    listed = {build: installed[build] for build in builds if build in installed}
    for build in _CUDA_BUILDS.get(plain, ()):
        if build in installed and installed[build] not in listed.values():
            listed[build] = installed[build]
    if listed:
        names = {build: "" if build == plain else f" ({build})" for build in listed}
        return " + ".join(f"{version}{names[build]}" for build, version in listed.items())
    from importlib import metadata  # slow; only needed for eggs and zip files

    other = next(iter(metadata.distributions(name=name, path=list(path))), None)
    version = other.version if other is not None else ""
    return version or _package_version(name.replace("-", "_"), path) or ABSENT


def builds_of(name: str) -> tuple[str, ...]:
    """Return the normalized names of a distribution and its other builds."""
    plain = normalized(name)
    return (plain, *_OTHER_BUILDS.get(plain, ()), *_CUDA_BUILDS.get(plain, ()))


def module_path(toolchain: Toolchain) -> tuple[str, ...]:
    """Return the module path of a toolchain's interpreter. () if it is unusable."""
    interpreter = _interpreter(toolchain)
    return () if interpreter is None else interpreter.path


def _interpreter(toolchain: Toolchain) -> Interpreter | None:
    from buildsys.system.toolchains import find_interpreter

    with suppress(StageError):
        return find_interpreter(toolchain)
    return None


def python_version() -> str:
    """Return implementation, major and minor version of this interpreter."""
    return f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])}"


def environment_facts(families: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Select the variables relevant to ``families``, keys of ENVIRONMENT or patterns."""
    patterns = [ENVIRONMENT.get(family) or re.compile(family) for family in families]
    return {
        name: value
        for name, value in environment.items()
        if not _NO_RESULT.search(name) and any(pattern.fullmatch(name) for pattern in patterns)
    }


def in_a_family(variable: str) -> bool:
    """Check for a variable of ENVIRONMENT: in the keys, or without effect."""
    return any(pattern.fullmatch(variable) for pattern in ENVIRONMENT.values())


@cache
def installed_versions(search_path: tuple[str, ...]) -> Mapping[str, str]:
    """List normalized name -> version of the distributions on a module path."""
    return {
        name: Path(folder).name.removesuffix(".dist-info").partition("-")[2]
        for name, folder in distribution_folders(search_path).items()
    }


@cache
def distribution_folders(search_path: tuple[str, ...]) -> Mapping[str, str]:
    """List normalized name -> ``.dist-info`` folder of distributions."""
    # ten times as fast as importlib.metadata, which parses a page of metadata per distribution
    folders: dict[str, str] = {}
    for folder in search_path:
        try:
            entries = os.listdir(folder or ".")  # noqa: PTH208 - only the names matter
        except OSError:
            continue  # a zip file or a missing folder: both are common on sys.path
        for entry in entries:
            if entry.endswith(".dist-info"):
                name = entry.removesuffix(".dist-info").partition("-")[0]
                folders.setdefault(normalized(name), f"{folder or '.'}/{entry}")
    return folders


def normalized(name: str) -> str:
    """Normalize the spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _package_version(module: str, path: Sequence[str]) -> str:
    """Find the version of a package without a distribution; "" without the package.

    It is the one written in its files. Without a version, the files identify it.
    """
    folders = (Path(entry, module) for entry in path)
    folder = next((folder for folder in folders if (folder / "__init__.py").is_file()), None)
    if folder is None:
        return ""
    for name in _VERSION_FILES:
        with suppress(OSError):
            text = (folder / name).read_bytes()[:_READ_BYTES].decode(errors="replace")
            if version := _WRITTEN_VERSION.search(text):
                return version[1]
    with os.scandir(folder) as entries:
        # importing the package creates __pycache__
        files = [(e.path, e.stat()) for e in entries if e.name != "__pycache__"]
    stamps = sorted((file, status.st_mtime_ns, status.st_size) for file, status in files)
    digest = hashlib.sha256(json.dumps(stamps).encode()).hexdigest()
    return f"of unknown version, files {digest[:12]}"


def distributions_of(
    module: str, texts: TextCache, *, known: Collection[str], path: tuple[str, ...]
) -> list[str]:
    """Find the distributions of a top-level module on a module path, and their requirements.

    Requirements of ``known`` distributions are not followed: stages name those they depend on.
    """
    versions = installed_versions(path)
    state = hashlib.sha256(json.dumps(sorted(versions.items())).encode()).hexdigest()
    cached = f"libraries/1:{state}:{'+'.join(sorted(known))}:{module}"
    text = texts.get(cached)
    if text is not None:
        return list(json.loads(text))
    from importlib import metadata  # slow, but needed only once per environment and module

    waiting = [normalized(module)]
    if waiting[0] not in versions:
        providers = _providers(path, state).get(module, ())
        waiting = sorted(
            {normalized(provider.metadata["Name"]) for provider in providers}, reverse=True
        )
    names: dict[str, None] = {}
    while waiting:
        name = waiting.pop()
        if name in names or name not in versions:
            continue
        names[name] = None
        installed = next(iter(metadata.distributions(name=name, path=list(path))), None)
        if name in known or installed is None:
            continue
        requires = (line for line in installed.requires or () if not _EXTRA.search(line))
        matches = filter(None, map(_REQUIREMENT.match, requires))
        waiting += sorted((normalized(match[1]) for match in matches), reverse=True)
    texts.set(cached, json.dumps(list(names)))
    return list(names)


@cache
def _providers(path: tuple[str, ...], _state: str) -> dict[str, list[Distribution]]:
    """Find the distributions of each top-level module, for a state of the installed versions.

    metadata.packages_distributions misses many before Python 3.11.
    """
    from importlib import metadata

    providers: dict[str, list[Distribution]] = {}
    for distribution in metadata.distributions(path=list(path)):
        tops = {*(distribution.read_text("top_level.txt") or "").split()}
        if not tops:  # distribution.files makes an object of each file: 20 times as slow
            record = distribution.read_text("RECORD")
            rows = csv.reader((record or "").splitlines())
            files = [row[0] for row in rows if row] or map(str, distribution.files or ())
            parts = (file.partition("/") for file in files)
            tops = {top if below else getmodulename(top) or "" for top, _, below in parts}
        for top in tops:
            providers.setdefault(top, []).append(distribution)
    return providers


def source_root(
    module: str, path: tuple[str, ...] | None = None, *, in_libraries: bool = False
) -> str | None:
    """Find the folder of a module outside all libraries, or None.

    ``in_libraries`` accepts modules copied into site-packages without a distribution.
    """
    try:
        spec = util.find_spec(module) if path is None else PathFinder.find_spec(module, list(path))
    except (ImportError, ValueError, AttributeError):  # third-party finders raise any of these
        return None
    if spec is None:
        return None
    file = spec.origin if spec.has_location else None
    places = [*(spec.submodule_search_locations or ()), *([file] if file else [])]
    accepted = (place for place in places if in_libraries or not in_library(f"{place}/"))
    place = next(filter(os.path.exists, accepted), None)
    return None if place is None else os.path.dirname(place)  # noqa: PTH120


def package_identities(
    names: Iterable[str], path: tuple[str, ...], texts: TextCache
) -> dict[str, str]:
    """Identify each distribution that has a RECORD."""
    folders = distribution_folders(path)
    identities = {}
    for name in names:
        builds = [_identity(folders[build], texts) for build in builds_of(name) if build in folders]
        if any(builds):
            identities[name] = " + ".join(filter(None, builds))
    return identities


def _identity(folder: str, texts: TextCache) -> str:
    """Identify the distribution of a ``.dist-info`` folder; "" without modules in its RECORD."""
    record = f"{folder}/RECORD"
    record_stamp = stamp(record)
    if record_stamp is None:
        return ""
    name = f"{_SCHEMA}:{record}:{tuple(record_stamp)}"
    text = texts.get(name)
    if text is None:
        entries = _modules_in(record)
        digest = hashlib.sha256(json.dumps(sorted(entries.items())).encode()).hexdigest()[:32]
        # scripts, data or a link to an editable source have no identity
        texts.set(name, text := "\n".join((digest if entries else "", *entries)))
    digest, *modules = text.split("\n")
    if not digest:
        return ""
    root = os.path.dirname(folder)  # noqa: PTH120
    begun_ns = time.time_ns()
    stamps = {module: stamp(f"{root}/{module}") for module in modules}
    state = hashlib.sha256(repr([*stamps.values()]).encode()).hexdigest()
    identity = texts.get(f"{name}:{state}")
    if identity is None:
        edited = sorted(_edited(root, _modules_in(record), stamps, record_stamp))
        identity = digest
        if edited:
            identity = hashlib.sha256(json.dumps([digest, edited]).encode()).hexdigest()[:32]
        # a file written just now can be written again under the same times
        if all(seen is None or seen.is_settled(begun_ns) for seen in stamps.values()):
            texts.set(f"{name}:{state}", identity)
    return identity


def _modules_in(record: str) -> _Record:
    """List the modules and libraries in a RECORD, with digests and sizes.

    Scripts name their interpreter, and metadata its installer: they differ between machines.
    """
    entries: _Record = {}
    for line in Path(record).read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, rest = line.rpartition(",")
        name, _, digest = name.rpartition(",")
        is_module = name.endswith((".py", ".pyd")) or ".so" in name.rpartition("/")[2]
        if is_module and digest and not name.startswith(("../", "/", '"')):
            entries[name] = [digest, rest]
    return entries


def _edited(
    root: str, entries: _Record, stamps: Mapping[str, Stamp | None], record_stamp: Stamp
) -> Iterator[list[str]]:
    """Yield the modules different from RECORD, with their digests.

    A shared library is only read if its size or time differs: torch's have gigabytes.
    """
    for name, (digest, size) in entries.items():
        module = stamps[name]
        if module is None:
            yield [name, ABSENT]
            continue
        same_size = not size or size == str(module.size)
        if not name.endswith(".py") and same_size and module.mtime_ns <= record_stamp.mtime_ns:
            continue
        algorithm, _, expected = digest.partition("=")
        try:
            actual = hashlib.new(algorithm, Path(root, name).read_bytes()).digest()
        except (OSError, ValueError):
            yield [name, ABSENT]
            continue
        if base64.urlsafe_b64encode(actual).decode().rstrip("=") != expected:
            yield [name, actual.hex()]
