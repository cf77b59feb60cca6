"""One backend's implementation of a graph's custom operators.

The option ``operators`` of a job has an entry per operator that the backend does not run as the
graph's local function. Such a function is removed from the backend's copy of the graph: the
manifest decides which implementation runs, not the runtime (a function wins over a plugin in
TensorRT, a library over a function in ONNX Runtime).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.backends.interface import OperatorUse
from buildsys.errors import StageError
from buildsys.onnx_graphs.graph_reader import read_graph
from buildsys.system.backend_registry import describe_backend
from buildsys.workers.job import Job

# onnx is imported lazily: only graphs with custom operators need it
if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class Implementation:
    """A backend's implementations, in addition to the graph's functions."""

    backend: str
    uses: tuple[OperatorUse, ...] = ()
    missing: frozenset[str] = frozenset()  # operators without an implementation for this backend
    functions: Path | None = None  # file of functions that replace the graph's

    @property
    def is_declared(self) -> bool:
        """True if the manifest declares custom operators for this backend."""
        return bool(self.uses or self.missing or self.functions)

    @property
    def libraries(self) -> list[Path]:
        """The shared libraries, each once."""
        paths = dict.fromkeys(use.path for use in self.uses)
        return [path for path in paths if path is not None and path.suffix != ".py"]

    def apply(self, model: ModelProto) -> bool:
        """Adapt a model to the backend; return False if nothing changed.

        Raises: StageError: the graph has an operator without an implementation.
        """
        if not self.is_declared:
            return False
        from buildsys.onnx_graphs.onnx_file import load_model
        from buildsys.stages.operators.local_functions import add_functions, remove_functions

        for op in self.missing_operators(model):
            description = describe_backend(self.backend)
            kinds = " or ".join(description.operator_kinds)
            raise StageError(
                f"nothing implements {op} for {description.title}",
                f"add {kinds} to its entry in ops",
            )
        changed = remove_functions(model, {*(use.op for use in self.uses), *self.missing})
        if self.functions is not None:
            add_functions(model, load_model(self.functions))
        return changed or self.functions is not None

    def graph(self, path: Path, folder: Path) -> Path:
        """Return ``path``, or a copy in ``folder`` adapted to the backend.

        Raises: StageError: the graph has an operator without an implementation.
        """
        if not self.is_declared:
            return path
        model = read_graph(path)
        if not self.apply(model):
            return path
        from buildsys.onnx_graphs.onnx_file import save_model

        folder.mkdir(parents=True, exist_ok=True)
        copy = folder / path.name
        save_model(model, copy)
        data = path.with_name(f"{path.name}.data")
        if data.is_file():
            shutil.copyfile(data, copy.with_name(f"{copy.name}.data"))
        return copy

    def missing_operators(self, graph: Path | ModelProto) -> list[str]:
        """List the declared operators of a graph without an implementation."""
        if not self.missing:
            return []
        from buildsys.onnx_graphs.onnx_file import nodes_of
        from buildsys.stages.operators.local_functions import operator_of

        model = read_graph(graph) if isinstance(graph, Path) else graph
        return sorted(self.missing & {operator_of(node) for node in nodes_of(model)})


def implementation_of(job: Job, backend: str = "onnxruntime") -> Implementation:
    """Find a backend's implementation from a job's options and inputs."""
    uses, missing = [], []
    for entry in job.options.get("operators", ()):
        if entry["kind"] is None:
            missing.append(entry["op"])
        elif entry["kind"] in ("library", "plugin"):
            path = None  # a bundled plugin
            if "library" in entry:
                path = job.inputs[f"library.{entry['library']}"]
            elif "python" in entry:
                path = job.project / entry["python"]
            uses.append(OperatorUse(entry["op"], entry["kind"], path, job.project, job.fail))
    return Implementation(backend, tuple(uses), frozenset(missing), job.inputs.get("functions"))
