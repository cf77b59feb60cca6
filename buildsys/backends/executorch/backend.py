"""ExecuTorch: programs for phones and boards, from captured PyTorch programs.

The way through ONNX is closed: ExecuTorch reads programs of torch.export only. XNNPACK runs most
operators; the others run in portable kernels, which are made for correctness.
"""

import contextlib
import inspect
import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from buildsys.backends.captured_program import (
    load_captured,
    named_outputs,
    one_sentence,
    ordered_inputs,
)
from buildsys.backends.declared_ports import check_inputs, ports_of
from buildsys.backends.executorch.description import DESCRIPTION
from buildsys.backends.interface import (
    BuildRequest,
    Figures,
    OperatorUse,
    Options,
    Profiles,
    Run,
    UnsupportedNode,
    raise_refused,
    read_batches,
)
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.system.cpu import cpu_model, usable_cores

RUN_OPTIONS: Options = {"threads": 0}
_MOST_NAMED = 5
_DIALECTS = ("aten", "quantized_decomposed", "dim_order_ops")
_UNCOUNTED = (  # they compute nothing, or quantize
    "getitem", "executorch_call_delegate", "sym_", "view_copy", "_assert", "quantize_per",
    "dequantize_per", "choose_q",
)  # fmt: skip


def prepare(options: Options) -> None:
    """Check that the runtime has the delegate."""
    needed = DELEGATES.get(options["delegate"])
    if needed and not load_library()._is_available(needed):
        raise Unavailable(
            f"the package executorch was built without {needed} for this platform",
            "install another wheel, or set delegate: none",
        )


def build(request: BuildRequest) -> Figures:
    """Write the program; return the settings, and where its operators run."""
    options = request.options
    request.progress("loading the compiler")
    program, delegated, portable, quantized = lower(request)
    operators, is_int8 = delegated + portable, options["precision"] == "int8"
    share = delegated.total() / (operators.total() or 1)
    messages = []
    if options["delegate"] == "xnnpack" and portable:
        names = [f"{name} ({count})" for name, count in portable.most_common(_MOST_NAMED)]
        text = f"XNNPACK runs {100 * share:.0f} % of the operators"
        others = f"portable kernels run the others, most of them {', '.join(names)}"
        messages.append(f"{text}; {others}")
        if share < options["delegated_share"]:
            least = f"{100 * options['delegated_share']:.0f} %"
            raise StageError(
                f"{text}, and the minimum is {least}; {others}",
                "lower delegated_share to accept this engine, or set delegate: none",
            )
    if is_int8 and not quantized:
        text = "the engine was requested in int8, but none of its operators is quantized"
        raise StageError(text, "use fp32 for this network")
    if is_int8 and request.dims:
        messages.append(
            "XNNPACK computes int8 means (global pooling) wrongly once sizes exceed those of the"
            " first run: on a device, run the program once with the largest sizes (done here when"
            " it is loaded)"
        )
    request.engine.write_bytes(program)
    settings = {name: options[name] for name in ("precision", "delegate", "per_channel")}
    settings["threads"] = int(options["threads"]) or usable_cores()
    of_int8 = round(quantized / (operators.total() or 1), 4)
    of_types = {"int8": of_int8, **({"float32": round(1 - of_int8, 4)} if of_int8 < 1 else {})}
    return {
        "settings": settings,
        "profiles": [],
        "layers": dict(operators.most_common()),
        "delegated": {
            "share": round(share, 4),
            "operators": dict(delegated.most_common()),
            "portable": dict(portable.most_common()),
        },
        **({"precision_shares": {"layers": of_types}} if is_int8 else {}),
        "messages": messages,
    }


def describe(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> Figures:
    """Describe inputs and outputs."""
    _, interface = open_program(engine)
    return {"inputs": interface["inputs"], "outputs": interface["outputs"]}


def load(
    engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
) -> "ExecuTorchSession":
    """Load a built engine."""
    prepare(options)
    # XNNPACK in ExecuTorch 1.5.1 computes int8 means wrongly once sizes exceed the first run's
    is_int8 = options["precision"] == "int8"
    return ExecuTorchSession(engine, int(options["threads"]), largest_first=is_int8)


def device(options: Options) -> Figures:
    """Describe the CPU."""
    return {"kind": "cpu", "name": cpu_model(), "cores": usable_cores()}


def lower(request: BuildRequest) -> tuple[bytes, Counter[str], Counter[str], int]:
    """Lower the captured program to one of ExecuTorch.

    Returns its content, and the figures of ``count_operators``.
    """
    from executorch.exir import to_edge_transform_and_lower

    program, ports = load_captured(request, "ExecuTorch")
    if DESCRIPTION.quantizes(request.options):
        program = quantize(program, ports, request)
    partitioners = []
    if request.options["delegate"] == "xnnpack":
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        partitioners.append(XnnpackPartitioner())
    interface = {
        **ports,
        "dims": {n: {p: s[p] for p in ("min", "max")} for n, s in request.dims.items()},
    }
    request.progress("lowering the program")
    failed = f"model {request.model}: ExecuTorch cannot lower the program"
    hint = (
        "replace the operators that the message names, use delegate: none, or fewer dynamic"
        " dimensions; the log has the complete message"
    )
    with one_sentence(failed, hint):
        edge = to_edge_transform_and_lower(
            program,
            partitioner=partitioners,
            constant_methods={INTERFACE: json.dumps(interface, sort_keys=True)},
        )
        counts = count_operators(edge.exported_program().graph_module)
        lowered = edge.to_executorch()
    names = {
        f"{operator.name}.{operator.overload}".removesuffix(".")
        for plan in lowered.executorch_program.execution_plan
        for operator in plan.operators
    }
    reason = "the runtime of the package executorch has no kernel for it"
    if missing := sorted(names - set(load_library()._get_operator_names())):
        nodes = [UnsupportedNode(None, "", operator, reason) for operator in missing]
        raise_refused(request, "ExecuTorch", nodes)
    return lowered.buffer, *counts


def count_operators(graph: torch.fx.GraphModule) -> tuple[Counter[str], Counter[str], int]:
    """Count the calls by operator, of the delegate and outside it, and those on int8."""
    delegated, portable, quantized = Counter[str](), Counter[str](), 0
    for node in graph.graph.nodes:
        if node.op == "get_attr" and hasattr(getattr(graph, node.target, None), "original_module"):
            inner = getattr(graph, node.target).original_module.graph_module
            _, inside, on_int8 = count_operators(inner)
            delegated += inside
            quantized += on_int8
        elif node.op == "call_function":
            parts = getattr(node.target, "__name__", str(node.target)).split(".")
            name = parts[1] if parts[0] in _DIALECTS else parts[0]
            if not name.startswith(_UNCOUNTED):
                portable[name] += 1
                inputs = (source.target for source in node.all_input_nodes)
                quantized += any("dequantize" in str(target) for target in inputs)
    return delegated, portable, quantized


def quantize(
    program: torch.export.ExportedProgram, ports: dict[str, Any], request: BuildRequest
) -> torch.export.ExportedProgram:
    """Return ``program`` with int8 quantizers, from the calibration data of the manifest."""
    assert request.calibration is not None
    try:
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
            XNNPACKQuantizer,
            get_symmetric_quantization_config,
        )
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    except ImportError as error:
        raise Unavailable(
            f"int8 engines of ExecuTorch need torchao: {error}",
            "pip install 'buildsys[executorch]'",
        ) from error
    inputs = [port["name"] for port in ports["inputs"]]
    batches = [
        tuple(torch.from_numpy(np.array(array)) for array in batch.values())
        for batch in read_batches(request.calibration.batches, inputs)
    ]
    config = get_symmetric_quantization_config(is_per_channel=request.options["per_channel"])
    quantizer: Any = XNNPACKQuantizer().set_global(config)
    dims = [
        {
            axis: torch.export.Dim.DYNAMIC(min=span["min"], max=span["max"])
            for axis, size in enumerate(port["shape"])
            if isinstance(size, str)
            for span in (request.dims[size],)
        }
        for port in ports["inputs"]
    ]
    request.progress(f"quantizing with {len(batches)} batches")
    failed = f"model {request.model}: PyTorch cannot quantize it"
    with one_sentence(failed, "the log has the complete message"), torch.no_grad():
        prepared = prepare_pt2e(program.module(), quantizer)
        for number, tensors in enumerate(batches):
            request.count(number, len(batches), "batches")
            prepared(*tensors)
        quantized = convert_pt2e(prepared)
        shapes_of = inspect.signature(quantized.forward).bind(*dims).arguments
        example = list(batches[0])
        for number, axes in enumerate(dims):
            for axis in axes:
                if example[number].shape[axis] == 1:  # torch.export would fix it
                    example[number] = example[number].repeat_interleave(2, dim=axis)
        return torch.export.export(
            quantized, tuple(example), dynamic_shapes=dict(shapes_of), strict=False
        )


# a method that returns names, types and ranges: the format itself has positions only
INTERFACE = "buildsys_interface"
DELEGATES = {"xnnpack": "XnnpackBackend"}


class ExecuTorchSession:
    """A loaded engine."""

    profiles: Profiles = ()

    def __init__(self, engine: Path, threads: int, *, largest_first: bool = False) -> None:
        """Load the program; raise StageError for a damaged file or one of another version.

        largest_first: run once with the largest sizes.
        """
        self._engine, self._threads, self._largest_first = engine, threads, largest_first
        self._program, interface = open_program(engine)
        self._dims: Mapping[str, Mapping[str, int]] = interface["dims"]
        self.inputs, self.outputs = ports_of(interface["inputs"]), ports_of(interface["outputs"])
        library = load_library()
        if library._threadpool_get_thread_count() != (threads or usable_cores()):
            library._unsafe_reset_threadpool(threads or usable_cores())  # the whole process's
        try:
            self._method = self._program.load_method("forward")
        except RuntimeError as error:
            raise StageError(
                f"ExecuTorch cannot load {engine.name}: {error}",
                "build it with this version of ExecuTorch, or install the one it was built with",
            ) from error
        if largest_first and self._dims:
            largest = {name: span["max"] for name, span in self._dims.items()}
            feeds = []
            for port in self.inputs:
                shape: Any = [largest.get(str(size), size) for size in port.shape]
                feeds.append(torch.zeros(shape, dtype=getattr(torch, port.dtype)))
            self._call(feeds, clone=False)

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name."""
        return named_outputs(self.outputs, self._call(self._feeds(inputs), clone=True))

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Return a call that leaves its outputs in the program's memory."""
        feeds, method = self._feeds(inputs), self._method
        self._call(feeds, clone=False)  # reports wrong inputs
        return lambda: method(feeds, False)

    def close(self) -> None:
        """Free method and program."""
        del self._method, self._program

    def duplicate(self) -> "ExecuTorchSession":
        """Make a session with separate memory."""
        return ExecuTorchSession(self._engine, self._threads, largest_first=self._largest_first)

    def _call(self, feeds: list[torch.Tensor], *, clone: bool) -> Any:
        try:
            return self._method(feeds, clone)
        except (RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise StageError(
                f"ExecuTorch cannot run the engine: {text}", "the log has ExecuTorch's messages"
            ) from error

    def _feeds(self, inputs: Mapping[str, Tensor]) -> list[torch.Tensor]:
        """Return the inputs in order."""
        check_inputs(self.inputs, self._dims, inputs)  # the runtime checks upper bounds only
        return ordered_inputs(self.inputs, inputs)


def open_program(engine: Path) -> tuple[Any, dict[str, Any]]:
    """Return the program of a file and its interface."""
    library = load_library()
    problem = "it is damaged, or of another version"
    with contextlib.suppress(RuntimeError, ValueError):
        program = library._load_program(
            str(engine), program_verification=library.Verification.InternalConsistency
        )
        names = [program.get_method_name(index) for index in range(program.num_methods())]
        if INTERFACE in names:
            (text,) = program.load_method(INTERFACE)([])
            return program, json.loads(text)
        problem = "it has no names of inputs and outputs, which a build here writes"
    raise StageError(f"ExecuTorch cannot load {engine.name}: {problem}", "build it again")


@cache
def load_library() -> Any:
    """Load the runtime without the compiler, whose import takes seconds."""
    try:
        from executorch.extension.pybindings import _C
    except ImportError as error:
        raise Unavailable(
            f"the package executorch has no runtime that can be loaded here: {error}",
            "pip install --force-reinstall --no-deps executorch",
        ) from error
    return _C
