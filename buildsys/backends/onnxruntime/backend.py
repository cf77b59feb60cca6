"""ONNX Runtime: the optimized graph that a session saves is the engine.

A saved graph is loaded without further optimization, so what runs is what was built. On a CPU, float16
graphs run through Cast nodes that ONNX Runtime puts in, in float32 between them: it hides an overflow,
which the stage convert looks for.
"""

from __future__ import annotations

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
    refused,
)
from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Tensor
from buildsys.system.cpu import cpu_model, usable_cores

if TYPE_CHECKING:
    from buildsys.backends.interface import Backend
    from buildsys.backends.onnxruntime import backend as _this_module

    _CONFORMS: Backend = _this_module

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_INLINE_LIMIT_BYTES = 1_800_000_000  # an ONNX file is one protobuf message, which ends at 2 GiB
_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
_MODES = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}


class OrtSession:
    """A loaded engine."""

    def __init__(self, graph: OrtGraph, device: str) -> None:
        self.graph = graph
        self._device = device

    @property
    def profiles(self) -> list[dict[str, dict[str, tuple[int, ...]]]]:
        """Return nothing: an engine takes what the graph takes."""
        return []

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the outputs by name."""
        return self.graph.run(inputs)

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:  # noqa: ARG002
        """Return a call that runs the graph on inputs that lie on its device; outputs stay there."""
        self.graph.run(inputs)  # wrong inputs are explained here
        ports = (*self.graph.inputs, *self.graph.outputs)
        if any(port.dtype == "string" or port.dtype in BIT_DTYPES for port in ports):
            return lambda: self.graph.run(inputs)  # what a binding cannot hold
        session = self.graph.session
        binding = session.io_binding()
        for port in self.graph.inputs:
            array = np.asarray(inputs[port.name].array, order="C")
            binding.bind_ortvalue_input(
                port.name, ort.OrtValue.ortvalue_from_numpy(array, self._device, 0)
            )
        for port in self.graph.outputs:
            binding.bind_output(port.name, self._device)

        def run() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return run


def prepare(options: Options) -> None:
    """Check that the execution provider is there.

    Raises: Unavailable: this onnxruntime has no CUDA, or the machine no GPU.
    """
    if options["provider"] != "cuda":
        return
    if _PROVIDERS["cuda"] not in ort.get_available_providers():
        raise Unavailable(
            "the installed onnxruntime has no CUDA provider",
            "pip uninstall onnxruntime; pip install onnxruntime-gpu, on a machine with an NVIDIA GPU",
        )
    driver = find_driver()
    if not driver.gpus:
        raise Unavailable(
            f"the CUDA provider needs an NVIDIA GPU, and here {driver.missing}",
            driver.remedy or "run it on a machine with a GPU",
        )


def unsupported(request: BuildRequest) -> list[UnsupportedNode]:
    """Return the nodes whose operator ONNX Runtime does not know, or has no kernel for in these types.

    Its own optimizations may still remove a node without a kernel, so nothing counts as refused that it loads.
    """
    with TemporaryDirectory(dir=request.engine.parent) as folder:
        source = _source(request, Path(folder))
        nodes = _refused_nodes(request, source)
        if nodes:
            options = request.options
            session = _session_options(options, optimization=_optimization(options))
            with suppress(StageError):
                _open(source, session, options, request.operators)
                return []
        return nodes


def build(request: BuildRequest) -> Figures:
    """Optimize the graph and save it as the engine; return the settings in force.

    Raises: GraphRefusedError: every node that it cannot take. StageError: the graph was refused otherwise.
    """
    options = request.options
    with TemporaryDirectory(dir=request.engine.parent) as folder:
        source = _source(request, Path(folder))
        session = _session_options(options, optimization=_optimization(options))
        session.optimized_model_filepath = str(request.engine)
        # Weights that lie beside the source and that no optimization touched would stay there.
        if _size(source) > _INLINE_LIMIT_BYTES or source.with_name(f"{source.name}.data").exists():
            data = f"{request.engine.name}.data"
            session.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name", data
            )
            session.add_session_config_entry(
                "session.optimized_model_external_initializers_min_size_in_bytes", "1024"
            )
        request.progress("optimizing the graph")
        try:
            graph = _open(source, session, options, request.operators)
        except StageError as refusal:
            nodes = _refused_nodes(request, source)
            if nodes:
                told = any(node.operator in refusal.problem for node in nodes)
                refused(request, "ONNX Runtime", nodes, () if told else (refusal.problem,))
            raise StageError(f"model {request.model}: {refusal.problem}", refusal.hint) from refusal
    return {
        "settings": _settings(options, graph),
        "profiles": [],
        "messages": list(_messages(options)),
    }


def describe(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> Figures:  # noqa: ARG001
    """Return the nodes per operator, the types and the tensors of the optimized graph: its file says it all."""
    try:
        from buildsys.backends.onnxruntime.graph_facts import (
            graph_facts,  # needs onnx, which running an engine does not
        )
    except ModuleNotFoundError as error:  # in a toolchain that has onnxruntime alone
        if error.name != "onnx":
            raise
        return {"not_described": "without the library onnx the optimized graph cannot be read"}
    return graph_facts(engine)


def load(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> OrtSession:
    """Load a built engine as it is.

    Raises: Unavailable: its execution provider is not here.
    """
    prepare(options)
    session = _session_options(options, optimization="disable")
    return OrtSession(_open(engine, session, options, operators), options["provider"])


def load_graph(
    model: Path, provider: str, intra_op_threads: int, operators: tuple[OperatorUse, ...] = ()
) -> OrtSession:
    """Load a graph that is no engine, as ONNX Runtime optimizes it with its own defaults.

    Raises: Unavailable: its execution provider is not here. StageError: ONNX Runtime refuses the graph.
    """
    options = {"provider": provider}
    prepare(options)
    session = session_options(optimization="all", intra_op_threads=intra_op_threads)
    return OrtSession(_open(model, session, options, operators), provider)


def unload(session: Session) -> None:
    """Free the session with its threads and memory, also where the caller still holds it."""
    if isinstance(session, OrtSession):
        del session.graph


def device(options: Options) -> Figures:
    """Return the processor, or the first GPU for the CUDA provider."""
    if options["provider"] == "cpu":
        return {"kind": "cpu", "name": cpu_model(), "cores": usable_cores()}
    driver = find_driver()
    if not driver.gpus:
        return {"kind": "gpu", "missing": driver.missing}
    return {
        "kind": "gpu",
        "name": driver.gpus[0].name,
        "compute_capability": driver.gpus[0].compute_capability,
    }


def threads(options: Options) -> int:
    """Return the number of threads that one operator uses: 0 in the manifest is one per physical core."""
    return int(options["intra_op_threads"]) or usable_cores()


def _session_options(options: Options, *, optimization: str) -> ort.SessionOptions:
    # an explicit number of threads: for 0, ONNX Runtime also pins them to cores, which other libraries then share
    session = session_options(
        optimization=optimization,
        intra_op_threads=threads(options),
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
) -> OrtGraph:
    wanted = _PROVIDERS[options["provider"]]
    graph = OrtGraph(model, session, [wanted], [use.path for use in operators])
    if (
        wanted not in graph.session.get_providers()
    ):  # it falls back to the CPU with no more than a log line
        raise Unavailable(
            f"ONNX Runtime could not start its {wanted}; its log says why",
            "install the CUDA and cuDNN versions that this onnxruntime-gpu is made for",
        )
    return graph


def _source(request: BuildRequest, folder: Path) -> Path:
    return _emulated(request.onnx, folder) if _emulates(request.options) else request.onnx


def _emulates(options: Options) -> bool:
    return bool(
        options["precision"] == "bf16" and options["provider"] == "cpu"
    )  # it has few bfloat16 kernels


def _emulated(onnx_file: Path, folder: Path) -> Path:
    """Return a file with a float32 graph that rounds as the bfloat16 one does."""
    from buildsys.onnx_graphs.onnx_file import load_model, save_model
    from buildsys.onnx_graphs.rounding.emulation import (
        emulate,
    )  # needs onnx, which running an engine does not

    emulated = folder / "model.onnx"
    save_model(emulate(load_model(onnx_file), "bf16"), emulated)
    return emulated


def _refused_nodes(request: BuildRequest, source: Path) -> list[UnsupportedNode]:
    try:
        from buildsys.backends.onnxruntime.unsupported_nodes import (
            refused_nodes,  # needs onnx, which running an engine does not
        )
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        return []  # what ONNX Runtime itself says is all that can be told
    return refused_nodes(source, {use.op for use in request.operators})


def _optimization(options: Options) -> str:
    """Return the level in force.

    Beyond basic, ONNX Runtime takes a Relu before a float8 quantizer away, as if float8 had no negative values (1.31),
    and fuses quantizers to integer kernels, which take no float8.
    """
    level: str = options["graph_optimization_level"]
    return "basic" if options["precision"] == "fp8" and level in ("extended", "all") else level


def _settings(options: Options, graph: OrtGraph) -> Figures:
    names = ("precision", "provider", "inter_op_threads", "execution_mode", "spinning")
    return {
        **{name: options[name] for name in names},
        "graph_optimization_level": _optimization(options),
        "intra_op_threads": threads(options),
        "session_config": dict(options["session_config"]),
        "providers": list(graph.session.get_providers()),
    }


def _messages(options: Options) -> list[str]:
    messages = []
    if _optimization(options) == "all":
        messages.append(
            "optimized for the kind of processor that built it: other processors may not run it, or slowly"
        )
    if options["provider"] == "cpu" and options["precision"] == "fp16":
        messages.append(
            "the CPU computes float16 in float32, without rounding between its nodes; "
            "that rounding and the range of float16 were checked by the stage convert"
        )
    if options["precision"] == "fp8":
        messages.append(
            "fp8 is computed in float32 between its quantizers, optimized up to basic; its speed says nothing"
        )
    if _emulates(options):
        messages.append(
            "bfloat16 is emulated: computed in float32, every result rounded; its speed says nothing"
        )
    return messages


def _size(onnx_file: Path) -> int:
    data = onnx_file.with_name(f"{onnx_file.name}.data")
    return onnx_file.stat().st_size + (data.stat().st_size if data.is_file() else 0)
