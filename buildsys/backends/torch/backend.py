"""PyTorch: programs of torch.export, compiled for the CPU or a GPU, or captured as CUDA graphs."""

import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from buildsys.backends.cuda_gpus import find_driver, gpu_facts
from buildsys.backends.interface import BuildRequest, Figures, OperatorUse, Options, Session
from buildsys.backends.layer_figures import check_precision, layer_facts
from buildsys.backends.torch import aot_inductor, gpu_programs
from buildsys.backends.torch.description import COMPILE, CUDA_GRAPH, DESCRIPTION
from buildsys.backends.torch.programs import (
    Program,
    constants_in_use,
    digest,
    earlier_record,
    form,
    load_program,
    matrix_types,
    operator,
    skeleton_of,
)
from buildsys.errors import Unavailable
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.system.backend_registry import uses_tf32
from buildsys.system.cpu import cpu_model, engine_instructions, usable_cores

if TYPE_CHECKING:
    from buildsys.backends.torch.cuda_graphs import CudaGraphSession

RUN_OPTIONS: Options = {"threads": 0}
_INHERITED = ("settings", "profiles", "layers", "engine_layers", "precision_shares", "precision_of")


def prepare(options: Options) -> None:
    """Check for a GPU, and for Triton to compile for it."""
    if _is_for_gpu(options):
        if not find_driver().gpus:
            hint = "run it on a machine with an NVIDIA GPU, or use mode: aot_inductor"
            raise Unavailable(f"it needs an NVIDIA GPU, and {find_driver().missing}", hint)
        gpu_programs.capability()
        if options["mode"] == COMPILE:
            gpu_programs.check_compiler()


def build(request: BuildRequest) -> Figures:
    """Compile the program, or give an earlier engine of the same program new weights."""
    program, ports = load_program(request)
    options, on_gpu = request.options, _is_for_gpu(request.options)
    target = gpu_programs.capability() if on_gpu else engine_instructions()
    constants = constants_in_use(program)
    forms = {name: form(value) for name, value in constants.items()}
    skeleton = skeleton_of(program, forms, ports, request.dims, torch.__version__, target)
    digests = {name: digest(tensor) for name, tensor in constants.items()}
    basis = {"refit_basis": {"skeleton": skeleton, "weights": digests}}

    def replaceable(engine: Path) -> Collection[str]:
        return digests if on_gpu else aot_inductor.replaceable(engine)

    # a graph of PyTorch's own kernels has no code to keep
    for earlier in request.earlier if options["mode"] != CUDA_GRAPH else ():
        if record := earlier_record(earlier, skeleton, digests, replaceable):
            request.progress("putting the weights into an earlier engine")
            shutil.copyfile(earlier.engine, request.engine)
            _write_weights(program, request)
            origin = {name: record[name] for name in ("engine_sha256", "started", "build_seconds")}
            kept = {name: record[name] for name in _INHERITED if name in record}
            return {**kept, **basis, "refitted_from": origin}
    interface = {**ports, "dims": request.dims, "torch": torch.__version__}
    settings: Figures = {"precision": options["precision"], "mode": options["mode"]}
    if on_gpu:
        settings |= {name: options[name] for name in ("tf32", "autotune")}
        interface |= {"mode": options["mode"], "tf32": uses_tf32(options)}
        gpu_programs.write_program(program, {**interface, "compute_capability": target}, request)
        _write_weights(program, request)
        request.progress("capturing the CUDA graph")
        with closing(_load_on_gpu(request.engine)) as session:
            kernels = session.kernels()
    else:
        settings["threads"] = int(options["threads"]) or torch.get_num_threads()
        interface |= {"instructions": target, "constants": forms}
        kernels = aot_inductor.compile_package(program, interface, request)
        _write_weights(program, request)
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    facts = {
        "settings": settings,
        "profiles": [],
        "layers": dict(Counter(map(operator, nodes)).most_common()),
        **layer_facts(kernels, matrix_types(nodes), "the program's matrix operators"),
    }
    check_precision(facts, options, "lower precision_share to accept this engine")
    return {**facts, **basis}


def describe(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> Figures:
    """Describe inputs and outputs."""
    read = gpu_programs.read_interface if _is_for_gpu(options) else aot_inductor.read_interface
    interface = read(engine)
    return {"inputs": interface["inputs"], "outputs": interface["outputs"]}


def load(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> Session:
    """Load a built engine."""
    if not _is_for_gpu(options):
        return aot_inductor.PackageSession(engine, int(options["threads"]))
    return _load_on_gpu(engine)


def slowest_layers(
    engine: Path, options: Options, operators: tuple[OperatorUse, ...], inputs: Mapping[str, Tensor]
) -> list[Figures]:
    """Return the slowest kernels, [] on a CPU: a package has no times."""
    if not _is_for_gpu(options):
        return []
    with closing(_load_on_gpu(engine)) as session:
        return session.kernel_times(inputs)


def device(options: Options) -> Figures:
    """Describe the GPU or CPU."""
    if _is_for_gpu(options):
        return gpu_facts()
    return {"kind": "cpu", "name": cpu_model(), "cores": usable_cores()}


def _is_for_gpu(options: Options) -> bool:
    return DESCRIPTION.runs_on_gpu(options)


def _write_weights(program: Program, request: BuildRequest) -> None:
    if not _is_for_gpu(request.options):
        aot_inductor.write_weights(program, request.engine)
    elif request.options["mode"] == COMPILE:
        gpu_programs.write_weights(program, request.engine)


def _load_on_gpu(engine: Path) -> "CudaGraphSession":
    """Capture the program as it will run."""
    from buildsys.backends.torch.cuda_graphs import CudaGraphSession  # needs cuda-bindings

    return CudaGraphSession(gpu_programs.load_gpu_program(engine))
