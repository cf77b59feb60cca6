"""What a backend is: the one interface between the stages and whatever turns ONNX into an engine.

A backend is a module that satisfies ``Backend``. It needs the standard library, numpy and its own library
only, so that another Python with another version of that library can run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor

Options = Mapping[str, Any]  # the engine's fields as in the manifest, without its name
Figures = dict[str, Any]  # JSON values under the keys of the engine's result file
Run = Callable[[], object]
Fail = Callable[[StageError], NoReturn]


def _say_nothing(message: str) -> None:
    """Drop a progress message."""


def _raise(error: StageError) -> NoReturn:
    """Fail as far as an exception gets."""
    raise error


@dataclass(frozen=True)
class OperatorUse:
    """A custom operator that this backend implements by a file beside the graph.

    Operators that it takes as local functions are not here: the graph has them.
    """

    op: str  # "custom_domain::clampSwish", as the graph's nodes name it
    kind: str  # "library" (of ONNX Runtime) or "plugin" (of TensorRT)
    path: Path  # a shared library, or the Python file of a plugin
    project: Path = Path()  # that Python files belong to
    fail: Fail = field(
        default=_raise, compare=False
    )  # ends the stage from within a callback of a C++ library


@dataclass(frozen=True)
class Calibration:
    """What an int8 calibrator runs on, and where it keeps what it found."""

    batches: Path  # .npz with an array ``INDEX/INPUT`` for each input of each batch
    algorithm: str  # "entropy" or "minmax"
    cache: Path  # read where it exists, else written


@dataclass(frozen=True)
class BuildRequest:
    """An engine to build: from which graph, with which options, into which file."""

    model: str  # for messages
    onnx: Path  # external data, if any, lies beside it as model.onnx.data
    engine: Path
    options: Options
    inputs: Mapping[
        str, Mapping[str, Any]
    ]  # {name: {"shape": [...], "dtype": ...}} as in the manifest
    dims: Mapping[str, Mapping[str, Any]]  # {name: {"min": …, "opt": …, "max": …}}
    operators: tuple[OperatorUse, ...] = ()
    project: Path = Path()  # that the file of a network hook belongs to
    timing_cache: Path | None = None  # read where it exists, rewritten with what the build added
    calibration: Calibration | None = (
        None  # for an int8 engine whose graph has no quantization of its own
    )
    progress: Callable[[str], None] = field(default=_say_nothing, compare=False)


@dataclass(frozen=True)
class UnsupportedNode:
    """A node of the graph that the backend cannot take, and why."""

    index: int | None
    name: str
    operator: str
    reason: str
    functions: tuple[str, ...] = ()  # the local functions that it lies in, outermost first
    since: int | None = None  # the later opset from which the backend takes it
    output: str = ""  # the first tensor that it makes, where known

    def __str__(self) -> str:
        """Return ``node 4 'name' (Operator) in function: reason`` with the parts that are known."""
        number = "" if self.index is None else f" {self.index}"
        name = f" '{self.name}'" if self.name else ""
        operator = f" ({self.operator})" if self.operator else ""
        inside = f" in {' > '.join(self.functions)}" if self.functions else ""
        return f"node{number}{name}{operator}{inside}: {self.reason}"


@dataclass(eq=False)
class GraphRefusedError(StageError):
    """A backend cannot take nodes of a graph: all of them, with the reason of each."""

    nodes: tuple[UnsupportedNode, ...] = ()
    others: tuple[str, ...] = ()  # what it says that is about no node


def refused(
    request: BuildRequest,
    library: str,
    nodes: Sequence[UnsupportedNode],
    others: Sequence[str] = (),
    hint: str = "",
) -> NoReturn:
    """Raise GraphRefusedError: a sentence with every operator, how often it occurs, its first node and the reason."""
    by_operator: dict[str, list[UnsupportedNode]] = {}
    for node in nodes:
        by_operator.setdefault(node.operator, []).append(node)
    told = [_together(operator, alike) for operator, alike in by_operator.items()]
    raise GraphRefusedError(
        f"model {request.model}: {library} cannot take {'; '.join([*told, *others])}",
        hint,
        nodes=tuple(nodes),
        others=tuple(others),
    )


def _together(operator: str, nodes: Sequence[UnsupportedNode]) -> str:
    if len(nodes) == 1:
        return str(nodes[0])
    return f"{len(nodes)} nodes {operator}, first {nodes[0]}"


class Session(Protocol):
    """A loaded engine."""

    @property
    def profiles(self) -> list[dict[str, dict[str, tuple[int, ...]]]]:
        """Return the ranges of shapes that it was built for: per optimization profile {input: {min, opt, max}}.

        [] where the backend has no such thing and takes what the graph takes.
        """
        ...

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name, in the order of the graph.

        Raises: StageError: ``profile``, an index into ``profiles``, does not hold the inputs' shapes.
        """
        ...

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Return a call that only computes: what can be done once for these inputs is done already.

        A call returns when the outputs are complete. Only the call of the last ``bind`` may be used.
        """
        ...


class Backend(Protocol):
    """A module of ``buildsys.backends``."""

    def prepare(self, options: Options) -> None:
        """Check that the library and this machine can build with these options.

        Raises: Unavailable: they cannot, with what to install or where to build.
        StageError: the options contradict each other.
        """
        ...

    def unsupported(self, request: BuildRequest) -> list[UnsupportedNode]:
        """Return every node of the graph that the backend cannot take, before anything is built."""
        ...

    def build(self, request: BuildRequest) -> Figures:
        """Write the engine file; return what is known of it from building.

        Raises: GraphRefusedError: the graph has nodes that it cannot take; all at once, before anything is built.
        StageError: it cannot be built for another reason.
        """
        ...

    def describe(
        self, engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
    ) -> Figures:
        """Return the facts that can be read from a finished engine on this machine; {} where none can."""
        ...

    def load(
        self, engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
    ) -> Session:
        """Make a built engine ready to run.

        Raises: Unavailable: this machine cannot run it.
        """
        ...

    def unload(self, session: Session) -> None:
        """Give back all that a session holds."""
        ...

    def device(self, options: Options) -> Figures:
        """Return the facts of the device that an engine with these options runs on; never raises."""
        ...


def uses_tf32(options: Options) -> bool:
    """Tell whether an fp32 engine of TensorRT multiplies in TF32, which it does unless it is told not to."""
    chosen = options.get("tf32", (options.get("flags") or {}).get("tf32"))
    return True if chosen is None else bool(chosen)
