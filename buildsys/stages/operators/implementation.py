"""How one backend implements the custom operators of a graph: with the graph's functions, its own, or other files.

A job's option ``operators`` has an entry per operator that the backend does not take as the graph's own function. A
function beside a library or a plugin is taken out of what the backend reads: which of the two wins is decided by the
manifest, not by the runtime (a function wins over a plugin in TensorRT, a library over a function in ONNX Runtime).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.backends.interface import OperatorUse
from buildsys.errors import StageError
from buildsys.workers.job import Job

if TYPE_CHECKING:
    from onnx import ModelProto

_NAMES = {
    "onnxruntime": ("ONNX Runtime", "library"),
    "tensorrt": ("TensorRT", "plugin"),
    "tensorrt_rtx": ("TensorRT-RTX", "plugin"),
}


@dataclass(frozen=True)
class Implementation:
    """What implements the operators for one backend, beside the functions that the graph has."""

    backend: str
    uses: tuple[OperatorUse, ...] = ()
    missing: frozenset[str] = frozenset()  # operators with nothing for this backend
    functions: Path | None = None  # the file of those that it takes in place of the graph's

    @property
    def is_declared(self) -> bool:
        """Whether the manifest is known to say anything of custom operators."""
        return bool(self.uses or self.missing or self.functions)

    @property
    def libraries(self) -> list[Path]:
        """The shared libraries, each once."""
        return list(dict.fromkeys(use.path for use in self.uses if use.path.suffix != ".py"))

    def apply(self, model: ModelProto) -> bool:
        """Change a model's functions to what the backend is to read; return whether that changes anything."""
        if not self.is_declared:
            return False
        from buildsys.onnx_graphs.onnx_file import load_model  # onnx, which only such graphs need
        from buildsys.stages.operators.function_placement import put_in, take_out

        changed = take_out(model, {*(use.op for use in self.uses), *self.missing})
        if self.functions is not None:
            put_in(model, load_model(self.functions))
        return changed or self.functions is not None

    def graph(self, path: Path, folder: Path) -> Path:
        """Return the file that the backend is to read: ``path`` itself, or a changed copy in ``folder``.

        Raises: StageError: the graph has an operator that nothing implements for the backend.
        """
        if not self.is_declared:
            return path
        from buildsys.onnx_graphs.onnx_file import load_model, save_model

        model = load_model(path, external_data=False)
        self.require(model)
        if not self.apply(model):
            return path
        folder.mkdir(parents=True, exist_ok=True)
        copy = folder / path.name
        save_model(model, copy)
        data = path.with_name(f"{path.name}.data")
        if data.is_file():
            shutil.copyfile(data, copy.with_name(f"{copy.name}.data"))
        return copy

    def require(self, model: ModelProto) -> None:
        """Raise StageError where the graph has an operator that nothing implements for the backend."""
        name, other = _NAMES[self.backend]
        for op in sorted(self.missing & _operators(model).keys()):
            raise StageError(
                f"nothing implements {op} for {name}",
                f"add function or {other} to its entry in ops",
            )

    def is_complete_for(self, path: Path) -> bool:
        """Tell whether all operators of a graph that are declared have an implementation for the backend."""
        if not self.missing:
            return True
        from buildsys.onnx_graphs.onnx_file import load_model

        return not self.missing & _operators(load_model(path, external_data=False)).keys()


def implementation_of(job: Job, backend: str = "onnxruntime") -> Implementation:
    """Return what a job says of a backend's operators."""
    entries = job.options.get("operators", ())
    return Implementation(
        backend,
        uses=tuple(_use(job, entry) for entry in entries if entry["kind"] in ("library", "plugin")),
        missing=frozenset(entry["op"] for entry in entries if entry["kind"] is None),
        functions=job.inputs.get("functions"),
    )


def _use(job: Job, entry: Mapping[str, str]) -> OperatorUse:
    path = (
        job.inputs[f"library.{entry['library']}"]
        if "library" in entry
        else job.project / entry["python"]
    )
    return OperatorUse(entry["op"], entry["kind"], path, job.project, job.fail)


def _operators(model: ModelProto) -> Counter[str]:
    from buildsys.stages.operators.nodes import nodes_of, operator_of

    return Counter(operator_of(node) for node in nodes_of(model))
