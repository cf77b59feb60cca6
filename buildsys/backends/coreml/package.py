"""Core ML packages as one reproducible zip file.

A package is a folder. Entries are sorted, stored without compression (whose bytes depend on the
version of zlib) and have the date of zip's epoch; identifiers are made from the content.
"""

import hashlib
import json
import shutil
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from buildsys.backends.coreml.description import COMPUTE_UNITS
from buildsys.backends.declared_ports import check_inputs, int32_array, ports_of
from buildsys.backends.interface import Run
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of

MODEL = "Data/com.apple.CoreML/model.mlmodel"
MANIFEST = "Manifest.json"
INTERFACE = "buildsys.interface"  # metadata: names, types and ranges as in the manifest
_DATE = "com.github.apple.coremltools.conversion_date"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644 << 16


@dataclass(frozen=True)
class Package:
    """A package read from an engine file."""

    spec: Any  # coremltools.proto.Model_pb2.Model
    interface: dict[str, Any]


def write_engine(folder: Path, engine: Path, interface: dict[str, Any]) -> None:
    """Zip the package in ``folder``, without what differs from build to build."""
    from coremltools.proto import Model_pb2

    spec = Model_pb2.Model()
    spec.ParseFromString((folder / MODEL).read_bytes())
    metadata = spec.description.metadata.userDefined
    metadata.pop(_DATE, None)
    metadata[INTERFACE] = json.dumps(interface, sort_keys=True)
    (folder / MODEL).write_bytes(spec.SerializeToString(deterministic=True))
    set_identifiers(folder)
    zip_package(folder, engine)


def set_identifiers(folder: Path) -> None:
    """Replace the random identifiers of a package by digests of its content."""
    manifest = json.loads((folder / MANIFEST).read_text())
    names = {}
    for old, entry in manifest["itemInfoEntries"].items():
        item, digest = folder / "Data" / entry["path"], hashlib.sha256(entry["path"].encode())
        for file in sorted(item.rglob("*")) if item.is_dir() else [item]:
            if file.is_file():
                digest.update(file.read_bytes())
        names[old] = str(uuid.uuid5(uuid.NAMESPACE_OID, digest.hexdigest())).upper()
    manifest["itemInfoEntries"] = {
        names[old]: entry for old, entry in manifest["itemInfoEntries"].items()
    }
    manifest["rootModelIdentifier"] = names[manifest["rootModelIdentifier"]]
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=4, sort_keys=True))


def zip_package(folder: Path, engine: Path) -> None:
    """Write ``folder`` to a zip with reproducible bytes."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    with zipfile.ZipFile(engine, "w", zipfile.ZIP_STORED) as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.relative_to(folder.parent).as_posix(), _EPOCH)
            entry.external_attr, entry.create_system = _MODE, 3
            entry.file_size = file.stat().st_size
            with file.open("rb") as source, archive.open(entry, "w") as target:
                shutil.copyfileobj(source, target, 1 << 20)


def unpack(engine: Path, folder: Path) -> Path:
    """Unzip an engine into ``folder``; return the package."""
    with _opened(engine) as (archive, root):
        archive.extractall(folder)
    return folder / root


def read_engine(engine: Path) -> Package:
    """Read the content of an engine, without unzipping its weights."""
    from coremltools.proto import Model_pb2

    spec = Model_pb2.Model()
    with _opened(engine) as (archive, root):
        spec.ParseFromString(archive.read(f"{root}/{MODEL}"))
        interface = json.loads(spec.description.metadata.userDefined[INTERFACE])
    return Package(spec, interface)


@contextmanager
def _opened(engine: Path) -> Iterator[tuple[zipfile.ZipFile, str]]:
    """Yield the zip of an engine and the folder of its package.

    Raises: StageError: the file is damaged, or what the block reads from it.
    """
    from google.protobuf.message import DecodeError

    try:
        with zipfile.ZipFile(engine) as archive:
            names = archive.namelist()
            root, *others = {name.partition("/")[0] for name in names} or {""}
            inside = all(".." not in name.split("/") and name[:1] != "/" for name in names)
            if others or not root.endswith(".mlpackage") or not inside:
                raise StageError(f"{engine.name} is no Core ML package", "build it again")
            yield archive, root
    except (zipfile.BadZipFile, OSError, EOFError, KeyError, ValueError, DecodeError) as error:
        text = f"{engine.name} is damaged: {' '.join(str(error).split()) or type(error).__name__}"
        raise StageError(text, "copy it again, or build it") from error


def sized(shape: Sequence[int | str | None], sizes: Mapping[str, int]) -> list[int]:
    """Return ``shape`` with the ``sizes`` of its dimensions."""
    return [sizes[size] if isinstance(size, str) else int(size or 0) for size in shape]


def operations(spec: Any) -> Iterator[Any]:
    """Yield the operations of a package's program, also those in blocks."""
    for function in spec.mlProgram.functions.values():
        for block in function.block_specializations.values():
            yield from block_operations(block)


def block_operations(block: Any) -> Iterator[Any]:
    """Yield the operations of a block and of the blocks in it."""
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from block_operations(inner)


class CoreMlSession:
    """A loaded engine."""

    def __init__(self, engine: Path, compute_units: str) -> None:
        """Compile the package; raise StageError for a damaged one."""
        import coremltools as ct

        self._loaded_from = engine, compute_units
        self._interface = interface = read_engine(engine).interface
        self.inputs, self.outputs = ports_of(interface["inputs"]), ports_of(interface["outputs"])
        self._folder = TemporaryDirectory()
        package = unpack(engine, Path(self._folder.name))
        units = ct.ComputeUnit[COMPUTE_UNITS[compute_units]]
        self._model: Any = ct.models.MLModel(str(package), compute_units=units)

    @property
    def profiles(self) -> list[dict[str, dict[str, tuple[int, ...]]]]:
        """One profile for each enumerated shape."""
        return [
            {
                port.name: dict.fromkeys(("min", "opt", "max"), tuple(sized(port.shape, sizes)))
                for port in self.inputs
            }
            for sizes in self._interface.get("shapes", ())
        ]

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name."""
        results = self._predict(self._feeds(inputs))
        return {
            port["name"]: tensor_of(
                np.asarray(results[port["feature"]], port["dtype"]), port["dtype"]
            )
            for port in self._interface["outputs"]
        }

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Return a call with these inputs."""
        feeds, model = self._feeds(inputs), self._model
        self._predict(feeds)  # reports wrong inputs
        return lambda: model.predict(feeds)

    def duplicate(self) -> "CoreMlSession":
        """Make a session with a separate model."""
        return CoreMlSession(*self._loaded_from)

    def close(self) -> None:
        """Free the model and its files."""
        del self._model
        self._folder.cleanup()

    def _predict(self, feeds: Mapping[str, Array]) -> Mapping[str, Any]:
        try:
            results: Mapping[str, Any] = self._model.predict(feeds)
        except Exception as error:  # any class
            text = f"Core ML cannot run the engine: {' '.join(str(error).split())[:300]}"
            raise StageError(text, "the log has the complete message") from error
        return results

    def _feeds(self, inputs: Mapping[str, Tensor]) -> dict[str, Array]:
        """Return the inputs by their names in the package."""
        check_inputs(self.inputs, self._interface["dims"], inputs)
        feeds: dict[str, Array] = {}
        for port in self._interface["inputs"]:
            array = inputs[port["name"]].array
            if port["dtype"] == "int64":
                array = int32_array(port["name"], array, "Core ML")
            feeds[port["feature"]] = np.ascontiguousarray(array)
        return feeds
