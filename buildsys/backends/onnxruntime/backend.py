"""ONNX Runtime: engines are optimized graphs, saved by a session.

A saved graph is loaded without further optimization, so what runs is what was built. With a
provider that compiles nodes, which no session can save, the engine is the graph before that. On a
CPU, float16 graphs run through Cast nodes that ONNX Runtime inserts, in float32 between them: that
hides an overflow, which the stage convert checks for.
"""

from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from buildsys.backends.cuda_gpus import gpu_facts
from buildsys.backends.interface import BuildRequest, Figures, OperatorUse, Options, raise_refused
from buildsys.backends.layer_figures import profiled_runs
from buildsys.backends.onnxruntime.description import DESCRIPTION
from buildsys.backends.onnxruntime.engine_session import (
    RECORD_PLACEMENT,
    add_providers,
    check_placement,
    check_providers,
    compile_graph,
    engine_session_options,
    open_engine,
    read_placement,
)
from buildsys.backends.onnxruntime.execution_providers import (
    compiles,
    engine_providers,
    is_simulated,
    runs_on_cpu_only,
)
from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.graph_reader import read_graph, require_onnx
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.system.cpu import cpu_model, usable_cores

RUN_OPTIONS: Options = {
    "intra_op_threads": 0, "inter_op_threads": 1, "spinning": True, "session_config": {},
}  # fmt: skip
_INLINE_LIMIT_BYTES = 1_800_000_000  # an ONNX file is one protobuf message, limited to 2 GiB


prepare = check_providers


def build(request: BuildRequest) -> Figures:
    """Save and reload the optimized graph as the engine; return the settings.

    Some optimizations write a graph that ONNX Runtime itself refuses (1.31: a Split of the same
    name inside and outside a Loop), so a lower level is tried until the file loads.
    """
    require_onnx()
    from buildsys.backends.onnxruntime.graphs import check_kernels, refused_nodes, source_nodes

    options, engine = request.options, request.engine
    levels = [_optimization(options)]
    if not compiles(options) and levels != ["disable"]:
        levels = list(dict.fromkeys([*levels, "basic", "disable"]))
    refusals: list[StageError] = []
    with TemporaryDirectory(dir=request.engine.parent) as folder:
        source = _source(request, Path(folder))
        for level in levels:
            request.progress("optimizing the graph" + (f" up to {level}" if refusals else ""))
            try:
                session = _save_and_open(request, source, level)
                break
            except Unavailable:
                raise
            except StageError as refusal:
                refusals.append(refusal)
        else:
            first, operators = refusals[0], {use.op for use in request.operators}
            if nodes := refused_nodes(source, operators, str(first.__cause__)):
                raise_refused(request, "ONNX Runtime", nodes)
            raise StageError(f"model {request.model}: {first.problem}", first.hint) from first
    names = ("precision", "provider", "inter_op_threads", "execution_mode", "spinning")
    settings = {
        **{name: options[name] for name in names},
        "graph_optimization_level": level,
        "intra_op_threads": int(options["intra_op_threads"]) or usable_cores(),
        "session_config": dict(options["session_config"]),
        **({"ep_context": True} if options.get("ep_context") else {}),
        "providers": list(options.get("providers") or session.session.get_providers()),
    }
    placement: Figures = {}
    if not runs_on_cpu_only(options):
        placement = read_placement(session, engine, options)
    check_kernels(engine, options)
    messages = _messages(options, level, is_emulated=source != request.onnx)
    messages += check_placement(placement, options)
    if refusals:
        reason = f"ONNX Runtime cannot use the graph optimized up to {levels[0]}"
        messages.insert(0, f"{reason}, so it is optimized up to {level}: {refusals[0].problem}")
    libraries = {}  # and plugins of the providers, with their versions
    for name in DESCRIPTION.run_tools(options):
        with suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    return {
        "settings": settings,
        "profiles": [],
        "messages": messages,
        **({"placement": placement} if placement else {}),
        **({"provider_libraries": libraries} if libraries else {}),
        "source_nodes": source_nodes(read_graph(request.onnx).graph, read_graph(engine).graph),
    }


def _save_and_open(request: BuildRequest, source: Path, level: str) -> OrtGraph:
    """Write the engine file and load it as later stages do."""
    options, engine = request.options, request.engine
    data = engine.with_name(f"{engine.name}.data")
    for file in (engine, data):  # a higher level's
        file.unlink(missing_ok=True)
    if options.get("ep_context"):
        compile_graph(source, engine, options, level)
    elif compiles(options):
        from buildsys.onnx_graphs.onnx_file import save_model  # needs onnx

        save_model(read_graph(source), engine, weights_of=source)
    else:  # as a session has optimized it
        session = engine_session_options(options, level)
        session.optimized_model_filepath = str(engine)
        # otherwise external weights that no optimization changed would stay next to the source
        source_data = source.with_name(f"{source.name}.data")
        if source_data.exists() or source.stat().st_size > _INLINE_LIMIT_BYTES:
            external = {"file_name": data.name, "min_size_in_bytes": "1024"}
            for field, value in external.items():
                session.add_session_config_entry(
                    f"session.optimized_model_external_initializers_{field}", value
                )
        open_engine(source, session, options, request.operators)
    session = engine_session_options(options, _load_level(options))
    if not runs_on_cpu_only(options):
        session.add_session_config_entry(RECORD_PLACEMENT, "1")
    return open_engine(engine, session, options, request.operators)


def describe(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> Figures:
    """Describe operators, types and tensors of the optimized graph."""
    from buildsys.backends.onnxruntime.graphs import graph_facts  # needs onnx

    return graph_facts(engine, options)


def load(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> OrtGraph:
    """Load a built engine as it is."""
    prepare(options)
    session = engine_session_options(options, _load_level(options))
    return open_engine(engine, session, options, operators)


def slowest_layers(
    engine: Path, options: Options, operators: tuple[OperatorUse, ...], inputs: Mapping[str, Tensor]
) -> list[Figures]:
    """Return the slowest nodes, [] on a GPU: its profiler sees launches."""
    from buildsys.backends.onnxruntime.graphs import read_layers  # needs onnx

    if any(selected.provider.needs_nvidia for selected in engine_providers(options)):
        return []
    with TemporaryDirectory() as folder:
        session = engine_session_options(options, _load_level(options))
        session.enable_profiling = True
        session.profile_file_prefix = str(Path(folder) / "profile")
        graph = open_engine(engine, session, options, operators)
        for _ in profiled_runs():
            graph.run(inputs)
        profile = Path(graph.session.end_profiling())
        return read_layers(profile, with_providers=not runs_on_cpu_only(options))


def load_graph(
    model: Path, provider: str, intra_op_threads: int, operators: tuple[OperatorUse, ...] = ()
) -> OrtGraph:
    """Load any ONNX graph with ONNX Runtime's default optimizations."""
    options = {"provider": provider}
    check_providers(options)
    session = session_options(optimization="all", intra_op_threads=intra_op_threads)
    add_providers(session, options)
    return open_engine(model, session, options, operators)


def device(options: Options) -> Figures:
    """Describe the device of the first provider: a processor, an NVIDIA GPU or another one."""
    first = engine_providers(options)[0]
    chosen = first.options.get("device_type", "CPU") if first.name == "openvino" else first.name
    if chosen.upper() == "CPU" or first.name == "xnnpack" or is_simulated(options):
        return {"kind": "cpu", "name": cpu_model(), "cores": usable_cores()}
    if not first.provider.needs_nvidia:
        return {
            "kind": "xpu",
            "name": f"{first.name} {first.options.get('device_type', '')}".strip(),
        }
    return gpu_facts()


def _source(request: BuildRequest, folder: Path) -> Path:
    """Prepare the graph to optimize; bfloat16, which has few kernels on the CPU, is emulated."""
    from buildsys.onnx_graphs.onnx_file import load_model, save_model  # these need onnx
    from buildsys.onnx_graphs.tensor_types import emulate, float_types

    is_bfloat16 = request.options["precision"] == "bf16"
    with suppress(StageError):  # ONNX Runtime says more about a file that is not ONNX
        is_bfloat16 = is_bfloat16 or "bfloat16" in float_types(read_graph(request.onnx))
    if not is_bfloat16 or not runs_on_cpu_only(request.options):
        return request.onnx
    emulated = folder / "model.onnx"
    save_model(emulate(load_model(request.onnx), "bf16"), emulated)
    return emulated


def _optimization(options: Options) -> str:
    """Return the highest optimization level; at most basic for fp8.

    Beyond basic, ONNX Runtime removes a Relu before a float8 quantizer, as if float8 had no
    negative values (1.31), and fuses quantizers to integer kernels, which do not support float8.
    """
    level: str = options["graph_optimization_level"]
    return "basic" if options["precision"] == "fp8" and level in ("extended", "all") else level


def _load_level(options: Options) -> str:
    """Choose the optimization of a built engine: none, unless its providers still compile it."""
    return _optimization(options) if compiles(options) else "disable"


def _messages(options: Options, level: str, *, is_emulated: bool) -> list[str]:
    precision, is_cpu = options["precision"], runs_on_cpu_only(options)
    messages = {
        "optimized for the kind of processor that built it: it may not run, or run slowly, on"
        " others": level == "all" and not compiles(options),
        "the CPU computes float16 in float32, without rounding between its nodes; "
        "the stage convert has checked that rounding and the range of float16": (
            is_cpu and precision == "fp16"
        ),
        "fp8 is computed in float32 between its quantizers, optimized up to basic; its speed is"
        " not meaningful": precision == "fp8",
        "qnn simulates its device on this processor; its speed is not meaningful": (
            is_simulated(options)
        ),
        "bfloat16 is emulated: computed in float32, every result rounded; its speed is not"
        " meaningful": is_emulated,
    }
    return [text for text, applies in messages.items() if applies]
