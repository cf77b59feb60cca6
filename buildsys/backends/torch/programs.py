"""Programs to compile, with their constants: what an engine depends on but the compiler."""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from buildsys.backends.captured_program import load_captured, one_sentence
from buildsys.backends.interface import BuildRequest, EarlierBuild
from buildsys.backends.torch.description import DESCRIPTION
from buildsys.backends.torch.strides import free_strides
from buildsys.errors import StageError
from buildsys.system.files import sha256_of

Program = torch.export.ExportedProgram
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_IMAGE_RANK = 4
# operators on matrices, whose types decide how fast an engine is
_MATRICES = (
    "convolution", "mm", "matmul", "addmm", "bmm", "baddbmm", "linear", "conv", "einsum",
    "scaled_dot_product",
)  # fmt: skip
# operators that accept operands of different types, in addition to all pointwise operators
_PROMOTING = {
    "cat", "stack", "hstack", "vstack", "dstack", "column_stack", "copy", "copy_", "to", "type_as",
    "expand_as", "reshape_as", "view_as",
}  # fmt: skip
_IN_FLOAT32 = ("fft_", "linalg_")  # in low precision for some sizes only, or never


def load_program(request: BuildRequest) -> tuple[Program, dict[str, Any]]:
    """Load the program to compile, in the engine's precision, and its inputs and outputs.

    Raises: StageError: it changes its buffers, or cannot be converted.
    """
    request.progress("reading the program")
    program, ports = load_captured(request, "PyTorch")
    # without calls that change tensors
    functional = program.run_decompositions({torch.ops.aten.grid_sampler.default: _sampled})
    if changed := functional.graph_signature.buffers_to_mutate.values():
        text = f"model {request.model}: forward changes the buffer {', '.join(changed)}"
        raise StageError(text, "an engine keeps no state: return it, and pass it as an input")
    dtype, layout = _DTYPES[request.options["precision"]], torch.preserve_format
    # not for AOTInductor, which renames constants of functional programs
    if on_gpu := DESCRIPTION.runs_on_gpu(request.options):
        program = functional
        if free_strides(program):
            layout = torch.channels_last  # in which images are faster
    # standalone_compile refuses the symbols of a program from a file
    if on_gpu or dtype != torch.float32:
        request.progress("converting the program")
        program = _exported(_Converted(program, dtype, layout), ports, request)
    return program, ports


def _sampled(x: torch.Tensor, grid: torch.Tensor, *modes: int) -> Any:
    """Sample with PyTorch's kernels: torch.compile cannot trace cuDNN's."""
    aten = torch.ops.aten
    sample = aten.grid_sampler_2d if x.dim() == _IMAGE_RANK else aten.grid_sampler_3d
    return sample(x, grid, *modes)


class _Converted(torch.nn.Module):
    """A program in a float type, float32 as it is, with the inputs and outputs that it had.

    A network that computes in float32 and goes back to its own type was captured with float32 for
    both: its numbers stay in float32 up to the next operator that needs one type.
    """

    def __init__(self, program: Program, dtype: torch.dtype, layout: torch.memory_format) -> None:
        super().__init__()
        self.program: Any = program.module(check_guards=False)
        if dtype != torch.float32:
            self.program.to(dtype)
        order_images(self.program, layout)
        self.dtype = dtype

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Convert float32 inputs, and outputs of the type back."""
        converted = (x.to(self.dtype) if x.dtype == torch.float32 else x for x in inputs)
        outputs = _OneType(self.program, self.dtype).run(*converted)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        return tuple(y.float() if y.dtype == self.dtype else y for y in outputs)


def order_images(module: torch.nn.Module, layout: torch.memory_format) -> None:
    """Store the weights of 2-D convolutions in a memory format."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() == _IMAGE_RANK:
            tensor.data = tensor.data.to(memory_format=layout)


class _OneType(torch.fx.Interpreter):
    """Runs a program, and converts operands to the types that its operators accept."""

    def __init__(self, program: torch.fx.GraphModule, dtype: torch.dtype) -> None:
        super().__init__(program)
        self.dtype = dtype

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Convert the operands and call the operator; skip assertions about types."""
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return None
        args, kwargs = tree_map(self._in_range, (args, kwargs))
        name = _operator_name(target)
        if name.startswith(_IN_FLOAT32):
            args, kwargs = tree_map(partial(_cast, torch.float32), (args, kwargs))
        elif _needs_one_type(target):
            types = [x.dtype for x in tree_leaves((args, kwargs)) if _is_float(x)]
            if len({*types}) > 1:  # an operator that changes its first operand keeps its type
                dtype = types[0] if target._schema.is_mutable else self.dtype
                args, kwargs = tree_map(partial(_cast, dtype), (args, kwargs))
        return super().call_function(target, args, kwargs)

    def _in_range(self, value: Any) -> Any:
        """Replace the limits of float32, with which networks mask: they would be infinite."""
        if isinstance(value, float) and abs(value) == torch.finfo(torch.float32).max:
            return math.copysign(torch.finfo(self.dtype).max, value)
        return value


def _needs_one_type(target: Any) -> bool:
    """Check for an operator of PyTorch that does not promote types itself."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = _operator_name(target)
    return name == "lerp" or not (name in _PROMOTING or torch.Tag.pointwise in target.tags)


def _cast(dtype: torch.dtype, value: Any) -> Any:
    return value.to(dtype) if _is_float(value) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _exported(network: _Converted, ports: Mapping[str, Any], request: BuildRequest) -> Program:
    """Capture a converted program."""
    hints = {
        name: torch.export.Dim.DYNAMIC(min=span["min"], max=span["max"])
        for name, span in request.dims.items()
    }
    shapes = [port["shape"] for port in ports["inputs"]]
    dynamic = tuple({a: hints[s] for a, s in enumerate(shape) if s in hints} for shape in shapes)
    what = f"model {request.model}: PyTorch cannot convert the program to {network.dtype}"
    with one_sentence(what, "use fp32, or convert parts of the network in its own code"):
        return torch.export.export(
            network,
            example_inputs(ports, request),
            dynamic_shapes=(dynamic,),
            strict=False,
        )


def example_inputs(ports: Mapping[str, Any], request: BuildRequest) -> tuple[torch.Tensor, ...]:
    """Make inputs within ``dims``, of sizes that torch.export does not fix: it fixes 1."""
    sizes = {name: min(span["max"], max(2, span["opt"])) for name, span in request.dims.items()}
    return zeros(ports["inputs"], sizes)


def zeros(
    ports: Sequence[Mapping[str, Any]], sizes: Mapping[str, int], device: str = "cpu"
) -> tuple[torch.Tensor, ...]:
    """Make an input of zeros for each port."""
    return tuple(
        torch.zeros(
            [sizes.get(n, n) for n in port["shape"]],
            dtype=getattr(torch, port["dtype"]),
            device=device,
        )
        for port in ports
    )


def constants_in_use(program: Program) -> dict[str, torch.Tensor]:
    """Return the parameters, buffers and other constants in use by name."""
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    return {
        name: value
        for node, name, value in arguments(program)
        if value is not None and node in used
    }


def arguments(program: Program) -> Iterator[tuple[str, str, torch.Tensor | None]]:
    """Yield node, name and value of every argument of the graph; None for an input's value."""
    values = {**program.constants, **program.state_dict}
    for spec in program.graph_signature.input_specs:
        is_input = spec.kind == torch.export.graph_signature.InputKind.USER_INPUT
        yield spec.arg.name, spec.target or "", None if is_input else values[spec.target]


def form(tensor: torch.Tensor) -> list[Any]:
    """Return type, shape and strides as JSON values."""
    return [str(tensor.dtype), list(tensor.shape), list(tensor.stride())]


def digest(tensor: torch.Tensor) -> str:
    """Digest the values of a constant."""
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(content.tobytes()).hexdigest()[:32]


def skeleton_of(program: Program, *parts: object) -> str:
    """Digest all that a compiled program depends on but the values of its constants."""
    content = (str(program.graph), str(program.range_constraints), *parts)
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def earlier_record(
    earlier: EarlierBuild,
    skeleton: str,
    digests: Mapping[str, str],
    replaceable: Callable[[Path], Collection[str]],
) -> Mapping[str, Any] | None:
    """Read the result of an earlier build that differs in replaceable constants only."""
    with suppress(OSError, ValueError, KeyError, TypeError):  # removed since, or older
        record = json.loads(earlier.result.read_text(encoding="utf-8"))
        basis, files = record["refit_basis"], record["files"]
        if basis["skeleton"] != skeleton:
            return None
        if sha256_of(earlier.engine) != files[earlier.engine.name]["sha256"]:
            return None
        compiled_in = digests.keys() - {*replaceable(earlier.engine)}
        if all(basis["weights"][name] == digests[name] for name in compiled_in):
            return dict(record)
    return None


def weights_file(engine: Path) -> Path:
    """Return the path of an engine's constants."""
    return engine.with_suffix(".weights")


def read_weights(file: Path, forms: Mapping[str, list[Any]]) -> dict[str, torch.Tensor]:
    """Read constants and compare their types and shapes, which compiled code does not.

    Raises: StageError: the file is damaged or of another engine.
    """
    try:
        weights: dict[str, torch.Tensor] = torch.load(file, weights_only=True, mmap=True)
    except Exception as error:  # any, from a damaged archive
        text = f"PyTorch cannot read {file.name}: {' '.join(str(error).split())[:200]}"
        raise StageError(text, "build the engine again") from error
    for name, value in weights.items():
        if (own := form(value)) != forms.get(name):
            text = f"{file.name} is of another engine: {name} is {own}, not {forms.get(name)}"
            raise StageError(text, "build the engine again")
    return weights


def check_version(engine: Path, interface: Mapping[str, Any]) -> None:
    """Compare the versions of PyTorch. Raises: StageError: they differ."""
    if interface["torch"] != torch.__version__:
        raise StageError(
            f"{engine.name} was compiled with PyTorch {interface['torch']}, and this is"
            f" {torch.__version__}: an engine of PyTorch only runs with its own version",
            f"pip install torch=={interface['torch'].partition('+')[0]}, or build it again",
        )


def operator(node: torch.fx.Node) -> str:
    """Return the name of a node's operator, without namespace and overload."""
    return _operator_name(node.target)


def _operator_name(target: Any) -> str:
    return str(target).removeprefix("aten.").partition(".")[0]


def matrix_types(nodes: Sequence[torch.fx.Node]) -> Iterator[str]:
    """Yield the types of the results of operators on matrices."""
    for node in nodes:
        value = node.meta.get("val")
        if operator(node).startswith(_MATRICES) and isinstance(value, torch.Tensor):
            yield str(value.dtype).removeprefix("torch.")
