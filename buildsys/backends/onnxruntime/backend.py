"""ONNX Runtime: engines are optimized graphs, saved by a session.

A saved graph is loaded without further optimization, so what runs is what was built. On a CPU,
float16 graphs run through Cast nodes that ONNX Runtime inserts, in float32 between them: that hides
an overflow, which the stage convert checks for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort

from buildsys.backends.cuda.gpus import find_driver
from buildsys.backends.interface import (
    BuildRequest,
    Figures,
    OperatorUse,
    Options,
    Run,
    Session,
    UnsupportedNode,
    raise_refused,
)
from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Tensor
from buildsys.system.cpu import cpu_model, usable_cores

if TYPE_CHECKING:
    from buildsys.backends.interface import Backend
    from buildsys.backends.onnxruntime import backend as _this_module

    _CONFORMS: Backend = _this_module

RUN_OPTIONS: Options = {
    "intra_op_threads": 0, "inter_op_threads": 1, "spinning": True, "session_config": {},
}  # fmt: skip
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_INLINE_LIMIT_BYTES = 1_800_000_000  # an ONNX file is one protobuf message, limited to 2 GiB
_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
_MOST_PROFILED_RUNS, _PROFILE_S = 20, 0.5
_MODES = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}


class OrtSession(OrtGraph):
    """A loaded engine."""

    @property
    def profiles(self) -> list[dict[str, dict[str, tuple[int, ...]]]]:
        """Return no profiles: an engine accepts the same shapes as the graph."""
        return []

    def run(
        self, inputs: Mapping[str, Tensor], profile: int | None = None  # noqa: ARG002
    ) -> dict[str, Tensor]:  # fmt: skip
        """Return the outputs by name."""
        return super().run(inputs)

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:  # noqa: ARG002
        """Return a call for inputs and outputs on the device."""
        self.run(inputs)  # reports wrong inputs
        ports = (*self.inputs, *self.outputs)
        if any(port.dtype == "string" or port.dtype in BIT_DTYPES for port in ports):
            return lambda: self.run(inputs)  # a binding cannot hold these types
        session = self.session
        device = "cuda" if _PROVIDERS["cuda"] in session.get_providers() else "cpu"
        binding = session.io_binding()
        for port in self.inputs:
            array = np.asarray(inputs[port.name].array, order="C")
            value = ort.OrtValue.ortvalue_from_numpy(array, device, 0)
            binding.bind_ortvalue_input(port.name, value)
        for port in self.outputs:
            binding.bind_output(port.name, device)

        def run() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return run

    def duplicate(self) -> OrtSession:
        """Return this session: ONNX Runtime runs it in several threads at once."""
        return self


def prepare(options: Options) -> None:
    """Check the availability of the execution provider.

    Raises: Unavailable: this onnxruntime has no CUDA, or the machine no GPU.
    """
    if options["provider"] != "cuda":
        return
    if _PROVIDERS["cuda"] not in ort.get_available_providers():
        raise Unavailable(
            "the installed onnxruntime has no CUDA provider",
            "pip uninstall onnxruntime; pip install onnxruntime-gpu, on a machine with an NVIDIA"
            " GPU",
        )
    driver = find_driver()
    if not driver.gpus:
        text = f"the CUDA provider needs an NVIDIA GPU, and here {driver.missing}"
        raise Unavailable(text, driver.remedy or "run it on a machine with a GPU")


def unsupported(request: BuildRequest) -> list[UnsupportedNode]:
    """Return the nodes with unknown operators or without a kernel.

    ONNX Runtime's optimizations may still remove a node without a kernel, so a graph that loads
    has none.
    """
    with TemporaryDirectory(dir=request.engine.parent) as folder:
        source = _source(request, Path(folder))
        nodes = _refused_nodes(request, source)
        if nodes:
            session = _session_options(request.options, _optimization(request.options))
            with suppress(StageError):
                _open(source, session, request.options, request.operators)
                return []
        return nodes


def build(request: BuildRequest) -> Figures:
    """Save and reload the optimized graph as the engine; return the settings.

    Some optimizations write a graph that ONNX Runtime itself refuses (1.31: a Split of the same
    name inside and outside a Loop), so a lower level is tried until the file loads.

    Raises: GraphRefusedError: every refused node. StageError: the graph was refused otherwise.
    """
    options, levels = request.options, _levels(request.options)
    refusals: list[StageError] = []
    with TemporaryDirectory(dir=request.engine.parent) as folder:
        source = _source(request, Path(folder))
        for level in levels:
            request.progress("optimizing the graph" + (f" up to {level}" if refusals else ""))
            try:
                providers = _save_optimized(request, source, level)
                _open(
                    request.engine, _session_options(options, "disable"), options, request.operators
                )
                break
            except Unavailable:
                raise
            except StageError as refusal:
                refusals.append(refusal)
        else:
            nodes, first = _refused_nodes(request, source), refusals[0]
            if nodes:
                is_explained = any(node.operator in first.problem for node in nodes)
                others = () if is_explained else (first.problem,)
                raise_refused(request, "ONNX Runtime", nodes, others)
            raise StageError(f"model {request.model}: {first.problem}", first.hint) from first
    names = ("precision", "provider", "inter_op_threads", "execution_mode", "spinning")
    settings = {
        **{name: options[name] for name in names},
        "graph_optimization_level": level,
        "intra_op_threads": int(options["intra_op_threads"]) or usable_cores(),
        "session_config": dict(options["session_config"]),
        "providers": providers,
    }
    messages = _messages(options, level, is_emulated=source != request.onnx)
    if refusals:
        reason = f"ONNX Runtime cannot use the graph optimized up to {levels[0]}"
        messages.insert(0, f"{reason}, so it is optimized up to {level}: {refusals[0].problem}")
    return {
        "settings": settings,
        "profiles": [],
        "messages": messages,
        **_source_nodes(request),
    }


def _source_nodes(request: BuildRequest) -> Figures:
    """Return the source nodes of optimized nodes, {} without onnx."""
    try:
        import onnx

        from buildsys.backends.onnxruntime.source_nodes import source_nodes
    except ModuleNotFoundError as error:  # a toolchain that has only onnxruntime
        if error.name != "onnx":
            raise
        return {}
    files = (request.onnx, request.engine)
    source, engine = (onnx.load(str(file), load_external_data=False).graph for file in files)
    return {"source_nodes": source_nodes(source, engine)}


def _save_optimized(request: BuildRequest, source: Path, level: str) -> list[str]:
    """Write the engine file; return the execution providers of the session."""
    data = request.engine.with_name(f"{request.engine.name}.data")
    for file in (request.engine, data):  # of a higher level
        file.unlink(missing_ok=True)
    session = _session_options(request.options, level)
    session.optimized_model_filepath = str(request.engine)
    # otherwise external weights that no optimization changed would stay next to the source
    source_data = source.with_name(f"{source.name}.data")
    if source_data.exists() or source.stat().st_size > _INLINE_LIMIT_BYTES:
        external = {"file_name": data.name, "min_size_in_bytes": "1024"}
        for field, value in external.items():
            session.add_session_config_entry(
                f"session.optimized_model_external_initializers_{field}", value
            )
    graph = _open(source, session, request.options, request.operators)
    return list(graph.session.get_providers())


def describe(
    engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()  # noqa: ARG001
) -> Figures:  # fmt: skip
    """Return operators, types and tensors of the optimized graph."""
    try:
        from buildsys.backends.onnxruntime.graph_facts import graph_facts  # needs onnx
    except ModuleNotFoundError as error:  # in a toolchain that has only onnxruntime
        if error.name != "onnx":
            raise
        return {"not_described": "without the library onnx the optimized graph cannot be read"}
    return graph_facts(engine)


def load(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> OrtSession:
    """Load a built engine as it is.

    Raises: Unavailable: its execution provider is not available.
    """
    prepare(options)
    return _open(engine, _session_options(options, "disable"), options, operators)


def slowest_layers(
    engine: Path,
    options: Options,
    operators: tuple[OperatorUse, ...],
    inputs: Mapping[str, Tensor],
) -> list[Figures]:
    """Return the slowest nodes, [] on a GPU: its profiler sees launches."""
    from buildsys.backends.onnxruntime.layer_times import read_layers

    if options["provider"] != "cpu":
        return []
    with TemporaryDirectory() as folder:
        session = _session_options(options, "disable")
        session.enable_profiling = True
        session.profile_file_prefix = str(Path(folder) / "profile")
        graph = _open(engine, session, options, operators)
        began = time.monotonic()
        for number in range(_MOST_PROFILED_RUNS):
            graph.run(inputs)
            if number and time.monotonic() - began > _PROFILE_S:
                break
        profile = Path(graph.session.end_profiling())
        try:
            return read_layers(profile)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StageError(f"ONNX Runtime's profile cannot be read: {error}") from error


def load_graph(
    model: Path, provider: str, intra_op_threads: int, operators: tuple[OperatorUse, ...] = ()
) -> OrtSession:
    """Load any ONNX graph with ONNX Runtime's default optimizations.

    Raises: Unavailable: its execution provider is not available. StageError: ONNX Runtime refuses
    the graph.
    """
    options = {"provider": provider}
    prepare(options)
    session = session_options(optimization="all", intra_op_threads=intra_op_threads)
    return _open(model, session, options, operators)


def unload(session: Session) -> None:
    """Free the session's threads and memory, despite remaining references."""
    if isinstance(session, OrtSession):
        del session.session


def device(options: Options) -> Figures:
    """Return the processor, or the first GPU for the CUDA provider."""
    if options["provider"] == "cpu":
        return {"kind": "cpu", "name": cpu_model(), "cores": usable_cores()}
    driver = find_driver()
    if not driver.gpus:
        return {"kind": "gpu", "missing": driver.missing}
    gpu = driver.gpus[0]
    return {"kind": "gpu", "name": gpu.name, "compute_capability": gpu.compute_capability}


def _session_options(options: Options, optimization: str) -> ort.SessionOptions:
    # an explicit number of threads: for 0, ONNX Runtime also pins them to cores, which other
    # libraries then share
    session = session_options(
        optimization=optimization,
        intra_op_threads=int(options["intra_op_threads"]) or usable_cores(),
        inter_op_threads=options["inter_op_threads"],
    )
    session.execution_mode = getattr(ort.ExecutionMode, _MODES[options["execution_mode"]])
    for entry in _SPINNING:
        session.add_session_config_entry(entry, "1" if options["spinning"] else "0")
    for entry, value in options["session_config"].items():
        session.add_session_config_entry(entry, value)
    return session


def _open(
    model: Path, session: ort.SessionOptions, options: Options, operators: tuple[OperatorUse, ...]
) -> OrtSession:
    provider = _PROVIDERS[options["provider"]]
    graph = OrtSession(model, session, [provider], [use.path for use in operators])
    # it falls back to the CPU with no more than a log line
    if provider not in graph.session.get_providers():
        raise Unavailable(
            f"ONNX Runtime could not start its {provider}; its log says why",
            "install the CUDA and cuDNN versions of this onnxruntime-gpu",
        )
    return graph


def _source(request: BuildRequest, folder: Path) -> Path:
    """Return the graph to optimize; emulated bfloat16 is float32 with rounding."""
    if not _is_emulated(request):
        return request.onnx
    # these need onnx, unlike running an engine
    from buildsys.onnx_graphs.emulation import emulate
    from buildsys.onnx_graphs.onnx_file import load_model, save_model

    emulated = folder / "model.onnx"
    save_model(emulate(load_model(request.onnx), "bf16"), emulated)
    return emulated


def _is_emulated(request: BuildRequest) -> bool:
    """Check for bfloat16 on the CPU. It has few kernels for it."""
    if request.options["provider"] != "cpu":
        return False
    if request.options["precision"] == "bf16":
        return True
    try:
        from buildsys.onnx_graphs.onnx_file import load_model
        from buildsys.onnx_graphs.tensor_types import float_types
    except ModuleNotFoundError as error:  # a toolchain without onnx
        if error.name != "onnx":
            raise
        return False
    try:
        return "bfloat16" in float_types(load_model(request.onnx, external_data=False))
    except StageError:  # ONNX Runtime says more about a file that is not ONNX
        return False


def _refused_nodes(request: BuildRequest, source: Path) -> list[UnsupportedNode]:
    try:
        from buildsys.backends.onnxruntime.unsupported_nodes import refused_nodes  # needs onnx
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        return []
    return refused_nodes(source, {use.op for use in request.operators})


def _optimization(options: Options) -> str:
    """Return the highest optimization level; at most basic for fp8.

    Beyond basic, ONNX Runtime removes a Relu before a float8 quantizer, as if float8 had no
    negative values (1.31), and fuses quantizers to integer kernels, which do not support float8.
    """
    level: str = options["graph_optimization_level"]
    return "basic" if options["precision"] == "fp8" and level in ("extended", "all") else level


def _levels(options: Options) -> list[str]:
    """Return the optimization levels to try, the highest first."""
    highest = _optimization(options)
    lower = ("basic", "disable")
    return [highest, *lower[lower.index(highest) + 1 if highest in lower else 0 :]]


def _messages(options: Options, level: str, *, is_emulated: bool) -> list[str]:
    precision, is_cpu = options["precision"], options["provider"] == "cpu"
    messages = {
        "optimized for the kind of processor that built it: it may not run, or run slowly, on"
        " others": level == "all",
        "the CPU computes float16 in float32, without rounding between its nodes; "
        "the stage convert has checked that rounding and the range of float16": (
            is_cpu and precision == "fp16"
        ),
        "fp8 is computed in float32 between its quantizers, optimized up to basic; its speed is"
        " not meaningful": precision == "fp8",
        "bfloat16 is emulated: computed in float32, every result rounded; its speed is not"
        " meaningful": is_emulated,
    }
    return [text for text, applies in messages.items() if applies]
