"""The interface between stages and backends.

A backend is a module ``backends/NAME/backend.py`` that satisfies ``Backend``. It needs the
standard library, numpy and its own libraries only, so that another Python with other versions of
them can run it. Everywhere in it, ``StageError`` is for what can never work, ``Unavailable`` for
what works on another machine; the functions of our backends do not repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeVar,
    cast,
    runtime_checkable,
)

from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Array, NpzFile, Tensor
from buildsys.system.backend_registry import describe_backend, import_backend
from buildsys.system.toolchains import Toolchain

if TYPE_CHECKING:
    from buildsys.backends.measurement import Contender, GpuTiming

Options = Mapping[str, Any]  # the engine's fields as in the manifest, without its name
Figures = dict[str, Any]  # JSON values for the engine's result file
Run = Callable[[], object]
Profiles = Sequence[Mapping[str, Mapping[str, tuple[int, ...]]]]  # input -> min, opt, max
Fail = Callable[[StageError], NoReturn]


def _raise(error: StageError) -> NoReturn:
    raise error


@dataclass(frozen=True)
class OperatorUse:
    """A custom operator implemented by a library or plugin.

    Operators with a local function are in the graph, not here.
    """

    op: str  # "custom_domain::clampSwish", as the graph's nodes name it
    kind: str  # "library" (of ONNX Runtime) or "plugin" (of TensorRT)
    # a shared library, or the Python file of a plugin; None: a plugin of the engine's own library
    path: Path | None
    project: Path = Path()  # root for imports of Python files
    # ends the stage from within a callback of a C++ library
    fail: Fail = field(default=_raise, compare=False)


@dataclass(frozen=True)
class Calibration:
    """The data and the result file of an int8 calibrator."""

    batches: Path  # .npz with an array ``INDEX/INPUT`` for each input of each batch
    algorithm: str  # "entropy" or "minmax", "" if the builder has its own
    cache: Path  # read if it exists, else written


@dataclass(frozen=True)
class EarlierBuild:
    """An engine of the same options and versions, built from another graph or other weights."""

    engine: Path
    result: Path  # its engine.json


@dataclass(frozen=True)
class Definition:
    """A user's function for filling a network, instead of a graph."""

    function: str  # FILE.py:FUNCTION
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    weights: Path | None = None  # .npz
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # as in the manifest


@dataclass(frozen=True)
class BuildRequest:
    """An engine to build: graph, options, output file."""

    model: str  # for messages
    # with external data, if any, next to it in model.onnx.data; or see ``program``, ``definition``
    onnx: Path
    engine: Path
    options: Options
    # {name: {"shape": [...], "dtype": ...}} as in the manifest
    inputs: Mapping[str, Mapping[str, Any]]
    dims: Mapping[str, Mapping[str, Any]]  # {name: {"min": …, "opt": …, "max": …}}
    operators: tuple[OperatorUse, ...] = ()
    # of torch.export, instead of ``onnx``, for a backend that takes it
    program: Path = Path()
    definition: Definition | None = None  # instead of ``onnx``, for TensorRT
    project: Path = Path()  # root for imports of a network hook and a definition
    timing_cache: Path | None = None  # read if it exists, rewritten with new timings
    # nodes that a search keeps in float32, and their results; {"*": ()}: all nodes
    fp32_nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    calibration: Calibration | None = None  # for an int8 engine of a graph without quantizers
    earlier: tuple[EarlierBuild, ...] = ()  # newest first, only if the options have `refit`
    progress: Callable[[str], None] = field(default=lambda _: None, compare=False)
    count: Callable[[int, int, str], None] = field(default=lambda *_: None, compare=False)


@dataclass(frozen=True)
class UnsupportedNode:
    """A node refused by a backend, and the reason."""

    index: int | None
    name: str
    operator: str
    reason: str
    functions: tuple[str, ...] = ()  # the enclosing local functions, outermost first
    output: str = ""  # the name of its first output, if known

    def __str__(self) -> str:
        """Return ``node 4 'name' (Operator) in function: reason`` with the known parts."""
        if self.index is None and not self.name and self.operator:
            return f"the operator {self.operator}: {self.reason}"
        number = "" if self.index is None else f" {self.index}"
        name = f" '{self.name}'" if self.name else ""
        operator = f" ({self.operator})" if self.operator else ""
        inside = f" in {' > '.join(self.functions)}" if self.functions else ""
        return f"node{number}{name}{operator}{inside}: {self.reason}"


@dataclass(eq=False)
class GraphRefusedError(StageError):
    """A backend refuses nodes of a graph."""

    nodes: tuple[UnsupportedNode, ...] = ()
    others: tuple[str, ...] = ()  # problems without a node


def raise_refused(
    request: BuildRequest,
    library: str,
    nodes: Sequence[UnsupportedNode],
    others: Sequence[str] = (),
    hint: str = "",
) -> NoReturn:
    """Raise GraphRefusedError with count, first node and reason per operator."""
    by_operator: dict[str, list[UnsupportedNode]] = {}
    for node in nodes:
        by_operator.setdefault(node.operator, []).append(node)
    problems = [
        str(refused[0])
        if len(refused) == 1
        else f"{len(refused)} nodes {operator}, first {refused[0]}"
        for operator, refused in by_operator.items()
    ]
    raise GraphRefusedError(
        f"model {request.model}: {library} cannot take {'; '.join([*problems, *others])}",
        hint,
        nodes=tuple(nodes),
        others=tuple(others),
    )


@dataclass(frozen=True)
class Port:
    """An input or output of an engine; a dynamic size is a name, None or -1."""

    name: str
    dtype: str  # with ONNX's name
    shape: tuple[int | str | None, ...]


class DeviceTensor(NamedTuple):
    """A contiguous array in the memory of the first GPU."""

    address: int
    shape: tuple[int, ...]
    dtype: str  # with ONNX's name
    array: Any  # keeps the memory alive


AnyTensor = TypeVar("AnyTensor", Tensor, "Tensor | DeviceTensor")
Allocate = Callable[[str, str, tuple[int, ...]], DeviceTensor]  # by name, type and shape


class Session(Protocol):
    """A loaded engine."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs in the order of the graph."""
        ...

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs in the order of the graph."""
        ...

    @property
    def profiles(self) -> Profiles:
        """The ranges of shapes per optimization profile, {input: {min, opt, max}}.

        Empty if the backend has no profiles and accepts the same shapes as the graph.
        """
        ...

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name, in the order of the graph.

        Raises: StageError: ``profile``, an index into ``profiles``, does not hold the inputs'
        shapes.
        """
        ...

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Prepare everything for these inputs; return a call for the computation alone.

        It returns when the outputs are complete. Only the call of the last ``bind`` may be used.
        """
        ...

    def duplicate(self) -> Session:
        """Return a session of this engine for another thread, itself if it is thread-safe.

        Must be closed before this one.
        Raises: StageError: the engine cannot run twice at the same time.
        """
        ...

    def close(self) -> None:
        """Free all resources, despite remaining references."""
        ...


def read_batches(file: Path, inputs: Collection[str]) -> Iterator[Mapping[str, Array]]:
    """Read the calibration batches of an .npz file with the arrays ``INDEX/INPUT``.

    Raises: StageError: the file is damaged, or lacks an input.
    """
    try:
        arrays = NpzFile(file)
        for index in range(len({key.partition("/")[0] for key in arrays})):
            yield {name: arrays[f"{index}/{name}"] for name in inputs}
    except (OSError, ValueError, KeyError) as error:
        raise StageError(
            f"{file.name} contains no calibration batches: {error}",
            "make the calibration data again: the target calibrate of the model writes it",
        ) from error


def required_input(port: Port, inputs: Mapping[str, AnyTensor]) -> AnyTensor:
    """Look up an input by name and check its type.

    Raises: StageError: it is missing, or of another type.
    """
    if port.name not in inputs:
        raise StageError(f"the engine needs the input {port.name}", "pass all inputs by name")
    tensor = inputs[port.name]
    if tensor.dtype != port.dtype:
        text = f"the input {port.name} is {tensor.dtype}, and the engine needs {port.dtype}"
        raise StageError(text, "convert the array first")
    return tensor


def stand_in_types(session: Session) -> Mapping[str, str]:
    """Return output types that a library lacks, and those that its engines return instead.

    A session may declare them as ``stand_in_types``; any other type of an output is wrong.
    """
    types: Mapping[str, str] = getattr(session, "stand_in_types", {})
    return types


@runtime_checkable
class DeviceSession(Protocol):
    """A session on arrays in GPU memory."""

    @property
    def stream(self) -> int:
        """The CUDA stream of calls without another one."""
        ...

    def enqueue(
        self,
        inputs: Mapping[str, Tensor | DeviceTensor],
        allocate: Allocate,
        stream: int | None = None,
        profile: int | None = None,
    ) -> dict[str, DeviceTensor]:
        """Put an inference on a CUDA stream; return its outputs.

        Their memory is from ``allocate``. Without ``stream`` they are complete on return, else as
        soon as the stream gets there. Until then the caller keeps inputs and outputs alive.
        Raises: StageError: an input does not fit or must be in host memory.
        """
        ...

    def contenders(self, inputs: Mapping[str, Tensor], timing: GpuTiming) -> dict[str, Contender]:
        """Make contenders on the GPU's clock, which makes earlier contenders unusable."""
        ...

    def memory_figures(self) -> Figures:
        """Return the engine's memory needs."""
        ...


class Backend(Protocol):
    """The functions of a backend module.

    One whose ``describe`` does not time layers may have another, with the inputs of a run:
    ``slowest_layers(engine, options, operators, inputs) -> list[Figures]``.
    """

    @property
    def RUN_OPTIONS(self) -> Options:  # noqa: N802 (a constant of the module)
        """``load``'s public options with their defaults."""
        ...

    def prepare(self, options: Options) -> None:
        """Check the options against the library and this machine.

        Raises: Unavailable: they cannot; says what to install or where to build.
        StageError: the options contradict each other.
        """
        ...

    def build(self, request: BuildRequest) -> Figures:
        """Write the engine file; return the facts known from building.

        Raises: GraphRefusedError: all nodes that the backend refuses, before anything is built.
        StageError: the build failed for another reason.
        """
        ...

    def describe(
        self, engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
    ) -> Figures:
        """Read the facts of an engine; {} if unreadable on this machine."""
        ...

    def load(
        self, engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
    ) -> Session:
        """Load a built engine. Raises: Unavailable: this machine cannot run it."""
        ...

    def device(self, options: Options) -> Figures:
        """Describe the engine's device; never raise."""
        ...


def load_backend(
    name: str, toolchain: Toolchain | None = None, unusable: str = "", *, to_run: bool = False
) -> Backend:
    """Import and return a backend.

    This interpreter belongs to ``toolchain``, if given. ``unusable`` is the problem of a package
    whose fields could not be read when the manifest was. ``to_run`` is for use of ``load``.
    Raises: Unavailable: there is no such backend, its package is broken, or one of its libraries
    is not installed or cannot be loaded. With ``to_run``, before its library is loaded: this
    operating system does not run its engines.
    """
    if unusable:
        raise Unavailable(unusable)
    description = describe_backend(name)
    if description.problem:
        raise Unavailable(description.problem, description.install)
    if to_run and (problem := description.system_problem()):
        raise problem
    where, install = "", description.install
    if toolchain is not None:
        where = f" in the toolchain {toolchain.name}"
        install = f"{toolchain.pip} {description.packages}"
    for module, library in description.libraries.items():
        try:
            import_module(module)
        except (ImportError, OSError, RuntimeError) as error:
            text = f"the library {library}{where} cannot be loaded: {error}"
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing and f"{module}.".startswith(f"{missing}."):
                text = f"the library {library} is not installed{where}"
            raise Unavailable(text, install) from error
    return cast(Backend, import_backend(name, "backend"))
