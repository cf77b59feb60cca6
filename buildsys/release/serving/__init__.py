"""Artifacts of other programs, made from the engines of a release."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.errors import StageError
from buildsys.release.index import Index, Variant
from buildsys.release.places import Open
from buildsys.release.resolve import download_engine
from buildsys.system.backend_registry import Reason
from buildsys.system.engine_files import RECORD_NAME, read_record


class ServedEngine(NamedTuple):
    """A downloaded engine of a release."""

    variant: Variant
    release: str
    folder: Path
    figures: Mapping[str, Any]  # engine.json

    @property
    def file(self) -> Path:
        """The engine file."""
        return Path(self.folder, next(iter(self.figures["files"])))

    @property
    def shapes(self) -> Mapping[str, Any]:
        """The description of its inputs and outputs."""
        return {name: self.figures.get(name, []) for name in ("inputs", "outputs")}


def fetch_engine(open_file: Open, index: Index, variant: Variant, folder: Path) -> ServedEngine:
    """Download an engine below a folder.

    Raises: StageError: it is not the engine of the index.
    """
    place = index.place(variant)
    target = folder / variant.model / variant.engine
    target.mkdir(parents=True)
    if reason := download_engine(open_file, place, variant, target):
        raise StageError(reason.problem, reason.remedy)
    record = read_record(target / RECORD_NAME)
    if isinstance(record, Reason):
        raise StageError(record.problem, record.remedy)
    engine = ServedEngine(variant, index.release, target, record.figures)
    ports = [port for ports in engine.shapes.values() for port in ports]
    is_known = all(
        isinstance(port["name"], str) and port["dtype"] and isinstance(port["shape"], list)
        for port in ports
    )
    if not is_known or not record.files or not {*record.files} <= {*variant.files}:
        problem = f"{RECORD_NAME} of {variant.name} lacks files, inputs or outputs"
        raise StageError(problem, "publish it again as another release")
    return engine
