"""PyTorch: programs of torch.export, compiled by AOTInductor.

A package checks nothing that it gets, and reads memory as it lies: types, shapes and layouts are
checked here, and its constants are in a file of their own, which a refit writes again.

Source: PyTorch documentation, "AOTInductor: Ahead-Of-Time Compilation for Torch.Export-ed Models".
"""

import hashlib
import json
import re
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from buildsys.backends.captured_program import (
    load_captured,
    named_outputs,
    one_sentence,
    ordered_inputs,
)
from buildsys.backends.declared_ports import check_inputs, ports_of
from buildsys.backends.interface import (
    BuildRequest,
    EarlierBuild,
    Figures,
    OperatorUse,
    Options,
    Profiles,
    Run,
)
from buildsys.backends.layer_figures import check_precision, layer_facts
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.system.cpu import cpu_model, engine_instructions, usable_cores
from buildsys.system.files import sha256_of

RUN_OPTIONS: Options = {"threads": 0}
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_MODEL, _INTERFACE = "model", "buildsys_interface"  # names in the package
_COMPILER_HINT = (
    "the log has the complete message; another exporter or backend may take the network"
)
# in the generated wrapper, without declarations
_CALLS = re.compile(r"^(?!extern).*?\b(aoti_torch_cpu_\w+|cpp_fused_\w+)\(", re.MULTILINE)
# operators on matrices, whose types decide how fast an engine is
_MATRICES = ("convolution", "mm", "addmm", "bmm", "baddbmm", "linear", "conv", "scaled_dot_product")
_INHERITED = ("settings", "profiles", "layers", "engine_layers", "precision_shares", "precision_of")


def prepare(options: Options) -> None:
    """Accept every option: all of them work wherever PyTorch does."""


def build(request: BuildRequest) -> Figures:
    """Compile the program, or give an earlier package of the same program new weights."""
    request.progress("reading the program")
    program, ports = load_captured(request, "PyTorch")
    if dtype := _DTYPES.get(request.options["precision"]):
        request.progress("converting the program")
        program = _converted(program, ports, dtype, request)
    program.example_inputs = (_example(ports, request), {})
    skeleton = _skeleton(program, ports, request)
    digests = {name: _digest(tensor) for name, tensor in _constants(program).items()}
    basis = {"refit_basis": {"skeleton": skeleton, "weights": digests}}
    for earlier in request.earlier:
        if record := _same_program(earlier, skeleton, digests):
            request.progress("putting the weights into an earlier package")
            shutil.copyfile(earlier.engine, request.engine)
            _write_weights(program, request.engine)
            origin = {name: record[name] for name in ("engine_sha256", "started", "build_seconds")}
            kept = {name: record[name] for name in _INHERITED if name in record}
            return {**kept, **basis, "refitted_from": origin}
    interface = {
        **ports,
        "dims": request.dims,
        "torch": torch.__version__,
        "instructions": engine_instructions(),
        "constants": {name: _form(value) for name, value in _constants(program).items()},
    }
    _compile(program, interface, request)
    _write_weights(program, request.engine)
    kernels = _CALLS.findall(_wrapper(request.engine))
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    facts = {
        "settings": {
            "precision": request.options["precision"],
            "threads": int(request.options["threads"]) or torch.get_num_threads(),
        },
        "profiles": [],
        "layers": dict(Counter(map(_operator, nodes)).most_common()),
        **layer_facts(kernels, _matrix_types(nodes), "the program's matrix operators"),
    }
    check_precision(facts, request.options, "lower precision_share to accept this engine")
    return {**facts, **basis}


def describe(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> Figures:
    """Describe inputs and outputs."""
    interface = _interface(engine)
    return {"inputs": interface["inputs"], "outputs": interface["outputs"]}


def load(engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()) -> "TorchSession":
    """Load a built engine."""
    return TorchSession(engine, int(options["threads"]))


def device(options: Options) -> Figures:
    """Describe the CPU."""
    return {"kind": "cpu", "name": cpu_model(), "cores": usable_cores()}


class _Converted(torch.nn.Module):
    """A program in another float type, with the inputs and outputs that it had."""

    def __init__(self, program: torch.export.ExportedProgram, dtype: torch.dtype) -> None:
        super().__init__()
        self.program: Any = program.module(check_guards=False).to(dtype)
        self._dtype = dtype

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Convert float32 inputs, and outputs of the type back."""
        outputs = self.program(
            *(x.to(self._dtype) if x.dtype == torch.float32 else x for x in inputs)
        )
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        return tuple(y.float() if y.dtype == self._dtype else y for y in outputs)


def _converted(
    program: torch.export.ExportedProgram,
    ports: Mapping[str, Any],
    dtype: torch.dtype,
    request: BuildRequest,
) -> torch.export.ExportedProgram:
    """Capture the program in another float type."""
    hints = {
        name: torch.export.Dim.DYNAMIC(min=span["min"], max=span["max"])
        for name, span in request.dims.items()
    }
    shapes = [port["shape"] for port in ports["inputs"]]
    dynamic = tuple({a: hints[s] for a, s in enumerate(shape) if s in hints} for shape in shapes)
    what = f"model {request.model}: PyTorch cannot convert the program to {dtype}"
    with one_sentence(what, "use fp32, or convert parts of the network in its own code"):
        return torch.export.export(
            _Converted(program, dtype),
            _example(ports, request),
            dynamic_shapes=(dynamic,),
            strict=False,
        )


def _example(ports: Mapping[str, Any], request: BuildRequest) -> tuple[torch.Tensor, ...]:
    """Make inputs within ``dims``, of sizes that torch.export does not fix: it fixes 1."""
    sizes = {name: min(span["max"], max(2, span["opt"])) for name, span in request.dims.items()}
    return tuple(
        torch.zeros([sizes.get(n, n) for n in port["shape"]], dtype=getattr(torch, port["dtype"]))
        for port in ports["inputs"]
    )


def _compile(
    program: torch.export.ExportedProgram, interface: Mapping[str, Any], request: BuildRequest
) -> None:
    """Write the package."""
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        compiler = get_cpp_compiler()
    except InvalidCxxCompiler as error:
        text = "AOTInductor needs a C++ compiler, and there is none"
        raise Unavailable(text, "install g++, or name a compiler in the variable CXX") from error
    request.progress(f"compiling with {Path(compiler).name}")
    settings: dict[str, Any] = {
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.metadata": {_INTERFACE: json.dumps(interface, sort_keys=True)},
        "always_keep_tensor_constants": True,  # Inductor compiles small ones in
        "cpp.dynamic_threads": True,  # else the number of threads here is compiled in
    }
    with one_sentence(f"model {request.model}: AOTInductor cannot compile it", _COMPILER_HINT):
        aoti_compile_and_package(
            program, package_path=str(request.engine.absolute()), inductor_configs=settings
        )


def _constants(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the parameters, buffers and other constants in use by name."""
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    values = {**program.constants, **program.state_dict}
    used = (node.name for node in program.graph.nodes if node.op == "placeholder" and node.users)
    return {names[name]: values[names[name]] for name in used if name in names}


def _form(tensor: torch.Tensor) -> list[Any]:
    return [str(tensor.dtype), list(tensor.shape), list(tensor.stride())]


def _digest(tensor: torch.Tensor) -> str:
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.sha256(content.tobytes()).hexdigest()[:32]


def _skeleton(
    program: torch.export.ExportedProgram, ports: Mapping[str, Any], request: BuildRequest
) -> str:
    """Digest all that a package depends on but the values of its constants."""
    types = {name: _form(tensor) for name, tensor in _constants(program).items()}
    graph = (str(program.graph), str(program.range_constraints), types)
    parts = (*graph, ports, request.dims, torch.__version__, engine_instructions())
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _same_program(
    earlier: EarlierBuild, skeleton: str, digests: Mapping[str, str]
) -> Mapping[str, Any] | None:
    """Read the result of an earlier build that differs in replaceable constants only."""
    with suppress(OSError, ValueError, KeyError, TypeError):  # removed since, or older
        record = json.loads(earlier.result.read_text(encoding="utf-8"))
        basis, files = record["refit_basis"], record["files"]
        if basis["skeleton"] != skeleton:
            return None
        if sha256_of(earlier.engine) != files[earlier.engine.name]["sha256"]:
            return None
        compiled_in = digests.keys() - set(_loader(earlier.engine).get_constant_fqns())
        if all(basis["weights"][name] == digests[name] for name in compiled_in):
            return dict(record)
    return None


def _write_weights(program: torch.export.ExportedProgram, engine: Path) -> None:
    constants = _constants(program)
    names = _loader(engine).get_constant_fqns()
    torch.save({name: constants[name].detach() for name in sorted(names)}, _weights_file(engine))


def _weights_file(engine: Path) -> Path:
    return engine.with_suffix(".weights")


def _loader(engine: Path) -> Any:
    """Load a package. Running it before its constants are loaded is a crash."""
    try:
        return torch._C._aoti.AOTIModelPackageLoader(str(engine), _MODEL, False, 1, -1)
    except RuntimeError as error:
        text = " ".join(str(error).split())[:200]
        raise StageError(f"PyTorch cannot load {engine.name}: {text}", "build it again") from error


def _metadata(engine: Path) -> dict[str, str]:
    """Read a package's facts about itself, without loading its code."""
    load: Any = torch._C._aoti.AOTIModelPackageLoader.load_metadata_from_package  # type: ignore[attr-defined]
    try:
        return dict(load(str(engine), _MODEL))
    except RuntimeError as error:
        text = f"PyTorch cannot read {engine.name}: it is damaged, or no package of AOTInductor"
        raise StageError(text, "build it again") from error


def _interface(engine: Path) -> dict[str, Any]:
    metadata = _metadata(engine)
    if _INTERFACE not in metadata:
        text = f"{engine.name} has no names of inputs and outputs, which a build here writes"
        raise StageError(text, "build it again")
    interface: dict[str, Any] = json.loads(metadata[_INTERFACE])
    return interface


def _wrapper(engine: Path) -> str:
    with zipfile.ZipFile(engine) as archive:
        names = [name for name in archive.namelist() if name.endswith(".wrapper.cpp")]
        return archive.read(names[0]).decode() if names else ""


def _operator(node: torch.fx.Node) -> str:
    return str(node.target).removeprefix("aten.").partition(".")[0]


def _matrix_types(nodes: Sequence[torch.fx.Node]) -> Iterator[str]:
    for node in nodes:
        value = node.meta.get("val")
        if _operator(node).startswith(_MATRICES) and isinstance(value, torch.Tensor):
            yield str(value.dtype).removeprefix("torch.")


class TorchSession:
    """A loaded package."""

    profiles: Profiles = ()

    def __init__(self, engine: Path, threads: int) -> None:
        interface = _interface(engine)
        if interface["torch"] != torch.__version__:
            raise StageError(
                f"{engine.name} was compiled with PyTorch {interface['torch']}, and this is"
                f" {torch.__version__}: a package only runs with its own version",
                f"pip install torch=={interface['torch'].partition('+')[0]}, or build it again",
            )
        if missing := {*interface["instructions"]} - {*engine_instructions()}:
            # PyTorch only warns, and the code would crash
            text = f"{engine.name} was compiled for processors with {', '.join(sorted(missing))}"
            raise StageError(text, "build it on this kind of processor")
        self._engine, self._threads = engine, threads
        self._dims: Mapping[str, Mapping[str, int]] = interface["dims"]
        self.inputs, self.outputs = ports_of(interface["inputs"]), ports_of(interface["outputs"])
        if threads:
            torch.set_num_threads(threads)  # the whole process's
        self._weights = _read_weights(_weights_file(engine), interface["constants"])
        self._loader = _loader(engine)
        with one_sentence(f"{engine.name} does not take its weights", "build it again"):
            # the package keeps pointers into these tensors
            self._loader.load_constants(self._weights, False, True, True)

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        """Return the outputs by name."""
        return named_outputs(self.outputs, self._call(self._feeds(inputs)))

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:
        """Return a call that drops its outputs."""
        feeds, run = self._feeds(inputs), self._loader.run
        self._call(feeds)  # reports wrong inputs
        return lambda: run(feeds)

    def close(self) -> None:
        """Free the package and its constants."""
        del self._loader, self._weights

    def duplicate(self) -> "TorchSession":
        """Make a session with separate memory."""
        return TorchSession(self._engine, self._threads)

    def _call(self, feeds: list[torch.Tensor]) -> Any:
        try:
            return self._loader.run(feeds)
        except RuntimeError as error:
            text = " ".join(str(error).split())[:200]
            raise StageError(f"PyTorch cannot run the engine: {text}", "see the log") from error

    def _feeds(self, inputs: Mapping[str, Tensor]) -> list[torch.Tensor]:
        """Return the inputs in order, contiguous."""
        check_inputs(self.inputs, self._dims, inputs)
        return ordered_inputs(self.inputs, inputs)


def _read_weights(file: Path, forms: Mapping[str, list[Any]]) -> dict[str, torch.Tensor]:
    """Read constants and compare their types and shapes, which a package does not.

    Raises: StageError: the file is damaged or of another engine.
    """
    try:
        weights: dict[str, torch.Tensor] = torch.load(file, weights_only=True, mmap=True)
    except Exception as error:  # any, from a damaged archive
        text = f"PyTorch cannot read {file.name}: {' '.join(str(error).split())[:200]}"
        raise StageError(text, "build the engine again") from error
    for name, value in weights.items():
        if (form := _form(value)) != forms.get(name):
            text = f"{file.name} is of another engine: {name} is {form}, not {forms.get(name)}"
            raise StageError(text, "build the engine again")
    return weights
