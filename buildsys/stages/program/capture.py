"""Capture of a network by torch.export."""

import json
import traceback
from collections import Counter
from typing import Any

import torch
from torch.export.passes import move_to_device_pass

from buildsys.errors import BuildsysError, StageError
from buildsys.models.program_nodes import captured_nodes
from buildsys.models.sources.source_module import needs_gpu
from buildsys.models.torch_model import dtype_name, make_network
from buildsys.models.user_code import describe_exception, source_line
from buildsys.onnx_graphs.result_types import TensorPort
from buildsys.stages.export.origins import write_origins
from buildsys.stages.export.request import (
    ExportRequest,
    check_guards,
    collect_warnings,
    export_request,
    recorded_guards,
)
from buildsys.stages.program.result import ProgramResult
from buildsys.system.files import sha256_of
from buildsys.workers.job import Job

PORTS = "ports.json"  # in the archive: names, types and shapes of inputs and outputs
_KEPT = ("val", "nn_module_stack")  # the rest has paths, lines and addresses of this process
_HINT = (
    "torch.export must capture forward as one graph: use torch.where or torch.cond instead of"
    " decisions by values, and keep sizes of dims symbolic; the log has the complete message"
)


def write_program(job: Job) -> ProgramResult:
    """Write ``program`` and ``origins`` of its nodes; return the figures.

    Raises: StageError: the network cannot be built or captured. CheckFailed: the program is wrong
    at sizes within ``dims``.
    """
    if job.threads:
        torch.set_num_threads(job.threads)
    job.progress("building the network")
    network = make_network(job.options, job.project)
    path, warnings = job.outputs["program"], list[str]()
    request = export_request(network, job.options, job.project, path)
    job.progress("capturing the program")
    with collect_warnings(warnings, [], job.project), recorded_guards() as guards:
        program = capture(request)
    check_guards(program, guards, request)
    if needs_gpu(job.options["source"]):  # it is built into engines for other devices
        program = move_to_device_pass(program, "cpu")
    ports = ports_of(program, request)
    origins: dict[str, str] = {}
    for node in captured_nodes(program):
        if line := source_line(node.stack_trace or "", job.project):
            origins.setdefault(node.name, line)  # inputs of branches repeat names of nodes
    write_origins(origins, job.outputs["origins"])
    for node in captured_nodes(program):
        node.meta = {name: node.meta[name] for name in _KEPT if name in node.meta}
    job.progress("writing the program")
    program.example_inputs = None  # a build needs none
    torch.export.save(program, path, extra_files={PORTS: json.dumps(ports, sort_keys=True)})
    operators = Counter(
        str(node.target) for node in program.graph.nodes if node.op == "call_function"
    )
    return ProgramResult(
        weights=network.weights,
        parameters=sum(parameter.numel() for parameter in network.module.parameters()),
        inputs=ports["inputs"],
        outputs=ports["outputs"],
        operators=dict(operators.most_common()),
        bytes=path.stat().st_size,
        sha256=sha256_of(path),
        warnings=warnings,
    )


def capture(request: ExportRequest) -> torch.export.ExportedProgram:
    """Capture the network's program, with the ranges of its dynamic sizes.

    Raises: StageError: torch.export refuses the network.
    """
    hints = {
        name: torch.export.Dim.DYNAMIC(min=span["min"], max=span["max"])
        for name, span in request.ranges.items()
    }
    try:
        with torch.no_grad():
            return torch.export.export(
                request.module,
                request.arguments,
                dynamic_shapes=request.dynamic_shapes(lambda dim: hints[dim]),
                strict=False,
            )
    except BuildsysError:
        raise
    except Exception as error:  # any class
        traceback.print_exception(error)  # to the log: the message has its first line only
        what = describe_exception(error, request.project)
        raise StageError(f"torch.export cannot capture the network: {what}", _HINT) from error


def ports_of(
    program: torch.export.ExportedProgram, request: ExportRequest
) -> dict[str, list[TensorPort]]:
    """Describe inputs and outputs; a dynamic size of an input has the manifest's name.

    Raises: StageError: an input is unused, or a dynamic size was fixed.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    ports: dict[str, list[TensorPort]] = {"inputs": [], "outputs": []}
    names: dict[str, str] = {}  # symbol -> dimension
    for name, node in zip(request.input_names, signature.user_inputs, strict=True):
        tensor: Any = values[str(node)]
        sizes: list[int | str | None] = [
            size if isinstance(size, int) else str(size) for size in tensor.shape
        ]
        for axis, dim in request.dynamic_inputs.get(name, {}).items():
            if isinstance(sizes[axis], int):
                raise StageError(
                    f"the captured program fixes {dim} to {sizes[axis]} (axis {axis} of {name})",
                    "forward fixes that size, such as by int() or a Python loop over it: change the"
                    f" code, or give {dim} one size in dims",
                )
            names.setdefault(str(sizes[axis]), dim)
            sizes[axis] = dim
        ports["inputs"].append({"name": name, "dtype": dtype_name(tensor.dtype), "shape": sizes})
    for name, node in zip(request.output_names, signature.user_outputs, strict=True):
        tensor = values[str(node)]
        shape = [size if isinstance(size, int) else names.get(str(size)) for size in tensor.shape]
        ports["outputs"].append({"name": name, "dtype": dtype_name(tensor.dtype), "shape": shape})
    return ports
