"""Sessions of engines with their execution providers, and the provider of each node.

ONNX Runtime gives a node to the first provider that takes it, and what is left to the CPU without a
word. It also puts nodes on the CPU that a GPU could run: those that compute shapes, as their
results are needed there. These have no inputs but shapes and constants.
"""

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime as ort

from buildsys.backends.cuda_gpus import find_driver
from buildsys.backends.interface import Figures, OperatorUse, Options
from buildsys.backends.onnxruntime.execution_providers import (
    CPU,
    EngineProvider,
    Provider,
    allows_cpu,
    engine_providers,
    openvino_plugin_options,
    runs_on_cpu_only,
)
from buildsys.backends.onnxruntime.session import FAILURES, OrtGraph, explain, session_options
from buildsys.errors import CheckFailed, StageError, Unavailable
from buildsys.onnx_graphs.graph_reader import read_graph
from buildsys.system.cpu import usable_cores

_SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
_MATMUL_ACCURACY = "session.qdq_matmulnbits_accuracy_level"  # 1: float32 activations
RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"
_SINCE_PLACEMENT = "1.24"  # the first ONNX Runtime that reports it
_MODES = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}


def check_providers(options: Options) -> None:
    """Check the execution providers and their options."""
    for selected in engine_providers(options):
        provider = selected.provider
        is_there = provider.title in ort.get_available_providers() or (
            provider.plugin and _has_plugin(provider.title, provider.plugin)
        )
        if not is_there:
            problem = f"the installed onnxruntime {ort.__version__} has no {provider.name} provider"
            raise Unavailable(problem, provider.install)
        if provider.needs_nvidia and not (driver := find_driver()).gpus:
            problem = f"the {provider.name} provider needs an NVIDIA GPU, and here {driver.missing}"
            raise Unavailable(problem, driver.remedy or "run it on a machine with a GPU")
    add_providers(ort.SessionOptions(), options)


def engine_session_options(options: Options, optimization: str) -> ort.SessionOptions:
    """Make the session options of an engine, with its providers."""
    # an explicit number of threads: for 0, ONNX Runtime also pins them to cores, which other
    # libraries then share
    session = session_options(
        optimization=optimization,
        intra_op_threads=int(options["intra_op_threads"]) or usable_cores(),
        inter_op_threads=options["inter_op_threads"],
        entries={
            **dict.fromkeys(_SPINNING, "1" if options["spinning"] else "0"),
            # weights of 8 or 4 bits: by default, the activations are rounded to int8 too
            **({_MATMUL_ACCURACY: "1"} if options["precision"] == "fp32" else {}),
            **options["session_config"],
        },
    )
    session.execution_mode = getattr(ort.ExecutionMode, _MODES[options["execution_mode"]])
    add_providers(session, options)
    return session


def add_providers(session: ort.SessionOptions, options: Options) -> None:
    """Add an engine's providers to ``session``; the CPU's is always the last one."""
    for selected in engine_providers(options):
        if selected.name == CPU:
            continue
        values = {**_own_options(selected, options), **selected.options}
        if selected.provider.needs_nvidia:
            load_cuda_libraries()
        try:
            if is_plugin(selected.provider):
                devices = _plugin_devices(selected)
                if selected.name == "openvino":
                    values = openvino_plugin_options(values, _device_type(devices[0]))
                session.add_provider_for_devices(devices, values)
            else:
                session.add_provider(selected.provider.title, values)
        except FAILURES as error:
            reason = str(error).strip().splitlines()[0].rpartition("&) ")[2]
            problem = f"onnxruntime {ort.__version__} cannot start its {selected.name} provider"
            hint = "its device is missing here, or an option is wrong: see the log"
            raise Unavailable(f"{problem}: {reason}", hint) from error


@cache
def load_cuda_libraries() -> None:
    """Load CUDA and cuDNN from the packages next to onnxruntime, such as those of PyTorch.

    The loader of the system does not search there; without them, no provider of NVIDIA starts.
    """
    with redirect_stdout(sys.stderr):  # it prints what it does not find
        ort.preload_dlls()


def _own_options(selected: EngineProvider, options: Options) -> dict[str, str]:
    """Return the provider options that an engine's settings imply."""
    if selected.name == "qnn" and "backend_path" not in selected.options:
        return {"backend_type": "htp"}  # QNN has no default for the processor as its device
    if selected.name != "openvino":
        return {}
    own = {"device_type": "CPU"}
    if options.get("precision") == "fp32" and selected.options.get("device_type", "CPU") == "CPU":
        own["precision"] = "FP32"  # OpenVINO may choose bfloat16 on processors that have it
    return own


def open_engine(
    model: Path, session: ort.SessionOptions, options: Options, operators: tuple[OperatorUse, ...]
) -> OrtGraph:
    """Open a session; ``session`` has the engine's providers."""
    titles = ["CPUExecutionProvider"] if runs_on_cpu_only(options) else None
    graph = OrtGraph(model, session, titles, [use.path for use in operators if use.path])
    # it falls back to the CPU with no more than a log line
    started = graph.session.get_providers()
    for selected in engine_providers(options):
        if selected.provider.title not in started:
            raise Unavailable(
                f"ONNX Runtime could not start its {selected.name} provider; its log says why",
                "install the CUDA and cuDNN versions of this onnxruntime-gpu"
                if selected.provider.needs_nvidia
                else selected.provider.install,
            )
    return graph


@cache
def _has_plugin(title: str, distribution: str) -> bool:
    """Register a provider's plugin with ONNX Runtime, if it is installed."""
    try:
        module: Any = import_module(distribution.replace("-", "_"))
    except ModuleNotFoundError:
        return False
    try:
        ort.register_execution_provider_library(title, module.get_library_path())
    except (*FAILURES, AttributeError, OSError) as error:  # also of an older ONNX Runtime
        reason = str(error).strip().splitlines()[0]
        problem = f"onnxruntime {ort.__version__} cannot load {distribution}: {reason}"
        raise Unavailable(problem, f"pip install -U {distribution} onnxruntime") from error
    return True


def is_plugin(provider: Provider) -> bool:
    """Check whether the provider is a plugin, not part of onnxruntime.

    ONNX Runtime 1.31 counts a registered plugin with a device as available, 1.24 does not.
    """
    if provider.title not in ort.get_available_providers():
        return True
    devices = ort.get_ep_devices() if provider.plugin and hasattr(ort, "get_ep_devices") else ()
    return any(device.ep_name == provider.title for device in devices)


def _plugin_devices(selected: EngineProvider) -> list[Any]:
    """Find the devices of a plugin provider that its ``device_type`` names."""
    provider, kind = selected.provider, selected.options.get("device_type", "")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == provider.title]
    chosen = [device for device in devices if kind in ("", _device_type(device))]
    if not chosen:
        kinds = ", ".join(map(_device_type, devices)) or "none"
        problem = f"{provider.plugin} finds no {kind or 'device'} here (devices: {kinds})"
        raise Unavailable(problem, provider.elsewhere)
    return chosen[:1]


def _device_type(device: Any) -> str:
    return str(device.ep_metadata.get("ov_device") or device.device.type.name)


def compile_graph(source: Path, engine: Path, options: Options, level: str) -> None:
    """Write a graph whose EPContext nodes contain compiled nodes."""
    session = engine_session_options(options, level)
    try:
        compiler = ort.ModelCompiler(  # since 1.23
            session,
            str(source),
            embed_compiled_data_into_model=True,  # so the digest of the file covers it
            flags=ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
        )
        compiler.compile_to_file(str(engine))
    except (*FAILURES, AttributeError) as error:
        refusal = explain("cannot keep what its providers compile", error)
        hint = "remove ep_context (the nodes are then compiled at every load), or update it"
        raise StageError(refusal.problem, refusal.hint or hint) from error


_SHAPES = ("Shape", "Size")
_MOST_NAMED = 100  # in a result
_MOST_IN_A_SENTENCE = 5  # in a sentence


class _Node(NamedTuple):
    operator: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.operator})" if self.name else f"a {self.operator}"


def read_placement(graph: OrtGraph, model: Path, options: Options) -> Figures:
    """Read {provider: {"nodes": …}} of a session; {} if ONNX Runtime does not report it.

    The CPU has further figures: ``shapes``, its nodes that compute shapes, and ``names``, the first
    of the others.
    """
    if not hasattr(graph.session, "get_provider_graph_assignment_info"):
        if allows_cpu(options):
            return {}
        raise Unavailable(
            f"onnxruntime {ort.__version__} does not report the providers of nodes, so nodes on the"
            " CPU would go unnoticed",
            f"pip install 'onnxruntime>={_SINCE_PLACEMENT}', or add cpu to providers",
        )
    by_title = {selected.provider.title: selected.name for selected in engine_providers(options)}
    nodes: dict[str, list[_Node]] = {name: [] for name in by_title.values() if name != CPU}
    for part in graph.session.get_provider_graph_assignment_info():
        placed = nodes.setdefault(by_title.get(part.ep_name, CPU), [])
        for node in part.get_nodes():
            domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}::"
            placed.append(_Node(f"{domain}{node.op_type}", node.name))
    placement: Figures = {name: {"nodes": len(placed)} for name, placed in nodes.items()}
    if on_cpu := nodes.get(CPU):
        of_shapes = {*_shape_nodes(read_graph(model).graph)}
        others = [str(node) for node in on_cpu if node not in of_shapes]
        placement[CPU] |= {"shapes": len(on_cpu) - len(others), "names": others[:_MOST_NAMED]}
    return placement


def check_placement(placement: Figures, options: Options) -> Iterator[str]:
    """Yield a message about nodes on the CPU."""
    others = [name for name in placement if name != CPU]
    if not others:
        return
    elsewhere = sum(placement[name]["nodes"] for name in others)
    on_cpu = placement.get(CPU, {})
    if not elsewhere:
        raise CheckFailed(
            f"no node runs on {' or '.join(others)}: all {on_cpu.get('nodes', 0)} run on the CPU",
            "read in the log if it did not start, give the inputs fixed shapes, replace the"
            " operators that it does not support, or use providers: [cpu]",
        )
    count = on_cpu.get("nodes", 0) - on_cpu.get("shapes", 0)
    if not count:
        return
    run = "runs" if count == 1 else "run"
    names = [
        *on_cpu["names"][:_MOST_IN_A_SENTENCE],
        *(["…"] if count > _MOST_IN_A_SENTENCE else []),
    ]
    text = f"{count} of {count + elsewhere} nodes {run} on the CPU: {', '.join(names)}"
    if not allows_cpu(options):
        raise CheckFailed(
            f"{text}; providers lists only {', '.join(others)}",
            "add cpu at the end of providers to allow it, or replace these operators",
        )
    yield text


def _shape_nodes(graph: Any) -> Iterator[_Node]:
    """Yield the nodes of a graph, not of bodies in it, that compute shapes or constants only."""
    from buildsys.onnx_graphs.onnx_file import operator_name  # needs onnx

    constants, sizes = {tensor.name for tensor in graph.initializer}, set[str]()
    for node in graph.node:
        inputs = {name for name in node.input if name}
        if node.op_type in _SHAPES or (inputs & sizes and inputs <= sizes | constants):
            sizes.update(node.output)
        elif inputs <= constants and not node.op_type.startswith("Random"):
            constants.update(node.output)
        else:
            continue
        yield _Node(operator_name(node), node.name)
