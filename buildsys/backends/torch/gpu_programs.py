"""Programs for a GPU: compiled by torch.compile's Inductor, or kernel by kernel.

The engine file is a ZIP archive. Compiled code is made twice: for the sizes ``opt`` of ``dims``,
and for all of them. It takes the constants as arguments, so new weights need no new code.

Source: PyTorch documentation, "torch.compile Caching", "CUDA semantics".
"""

import io
import json
import os
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.export.passes import move_to_device_pass

from buildsys.backends.captured_program import one_sentence
from buildsys.backends.interface import BuildRequest
from buildsys.backends.torch.description import COMPILE
from buildsys.backends.torch.programs import (
    Program,
    arguments,
    check_version,
    form,
    read_weights,
    weights_file,
    zeros,
)
from buildsys.errors import StageError, Unavailable

_INTERFACE, _PROGRAM, _FIXED, _RANGES = "interface.json", "program.pt2", "fixed.bin", "ranges.bin"
_HINT = "the log has the complete message; another mode or backend may take the network"
_CACHE_PREFIX = "torchinductor_"  # PyTorch's own; code in such folders counts as generated
_COMPILER_LOCK = threading.RLock()  # Inductor's cache is the process's

Compute = Callable[..., Sequence[torch.Tensor]]


@contextmanager
def float32_arithmetic(*, tf32: bool) -> Iterator[None]:
    """Let PyTorch multiply float32 in TF32 on a GPU or not; cuDNN chooses by timing."""
    cudnn = torch.backends.cudnn.flags(
        enabled=True, benchmark=True, deterministic=False, allow_tf32=tf32
    )
    stack = ExitStack()
    with _quiet():
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        stack.callback(torch.set_float32_matmul_precision, before)
        stack.enter_context(cudnn)
    try:
        yield
    finally:
        with _quiet():
            stack.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore warnings about these settings: their newer names need PyTorch 2.9."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def own_workspaces() -> Iterator[None]:
    """Give a CUDA graph cuBLAS workspaces in its own memory while it is captured.

    By default all captures on a stream share workspaces, and torch.compile frees them.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def capability() -> str:
    """Return the compute capability of the first GPU. Raises: Unavailable: there is none."""
    if not torch.cuda.is_available():
        raise Unavailable("this PyTorch sees no GPU", "install a PyTorch built for CUDA")
    return ".".join(map(str, torch.cuda.get_device_capability(0)))


def check_compiler() -> None:
    """Raise Unavailable if torch.compile cannot make code for the GPU."""
    from torch.utils._triton import has_triton

    if not has_triton():
        raise Unavailable("torch.compile needs Triton for a GPU", "pip install triton")


def write_program(program: Program, interface: Mapping[str, Any], request: BuildRequest) -> None:
    """Write the engine file. Raises: StageError: the program cannot be compiled."""
    rows = [(name if value is not None else None, value) for _, name, value in arguments(program)]
    document = {
        **interface,
        "opt": {name: span["opt"] for name, span in request.dims.items()},
        "arguments": [name for name, _ in rows],
        "constants": {name: form(value) for name, value in rows if value is not None},
    }
    with TemporaryDirectory(dir=request.engine.parent) as name:
        folder = Path(name)
        what = f"model {request.model}: PyTorch cannot compile it for the GPU"
        with one_sentence(what, _HINT):
            if interface["mode"] == COMPILE:
                _compile(program, document, request, folder)
            else:
                torch.export.save(program, folder / _PROGRAM)
        (folder / _INTERFACE).write_text(json.dumps(document, sort_keys=True), encoding="utf-8")
        with zipfile.ZipFile(request.engine, "w") as archive:
            for file in sorted(folder.iterdir()):
                has_weights = file.name == _PROGRAM
                kind = zipfile.ZIP_STORED if has_weights else zipfile.ZIP_DEFLATED
                archive.write(file, file.name, kind)


def write_weights(program: Program, engine: Path) -> None:
    """Write the constants of compiled code."""
    rows = {name: v.detach() for _, name, v in arguments(program) if v is not None}
    torch.save(rows, weights_file(engine))


def _compile(
    program: Program, interface: Mapping[str, Any], request: BuildRequest, folder: Path
) -> None:
    from torch._inductor import config, standalone_compile

    program = _on_gpu(program)
    rest = iter(zeros(interface["inputs"], interface["opt"], "cuda"))
    values: list[Any] = [next(rest) if v is None else v for _, _, v in arguments(program)]
    autotune = request.options["autotune"]
    forms = {_FIXED: ("from_example_inputs", values)}
    if any(isinstance(n, str) for port in interface["inputs"] for n in port["shape"]):
        forms[_RANGES] = ("from_graph", symbolic_arguments(program))
    tf32 = float32_arithmetic(tf32=interface["tf32"])
    tuned = config.patch(max_autotune=autotune, coordinate_descent_tuning=autotune)
    with compiler_cache(), tf32, tuned, torch.inference_mode():
        for file, (sizes, examples) in forms.items():
            request.progress(f"compiling for {'opt' if file == _FIXED else 'all'} sizes of dims")
            compiled: Any = standalone_compile(
                program.graph_module,
                examples,
                dynamic_shapes=sizes,  # type: ignore[arg-type]
            )
            compiled.save(path=str(folder / file), format="binary")


def symbolic_arguments(program: Program) -> list[Any]:
    """Mark the outputs of a program, and list arguments, to compile it for all sizes of dims.

    In these arguments only dims are symbols. Given real tensors, PyTorch makes a symbol of every
    size, weights included, and compiles for minutes.
    """
    graph = program.graph_module.graph
    for node in graph.output_node().args[0]:
        if isinstance(node, torch.fx.Node):
            node.meta["example_value"] = node.meta["val"]  # where PyTorch looks for the symbols
    return [node.meta["val"] for node in graph.find_nodes(op="placeholder")]


def read_interface(engine: Path) -> dict[str, Any]:
    """Read an engine file's facts about itself. Raises: StageError: it is damaged."""
    try:
        with zipfile.ZipFile(engine) as archive:
            interface: dict[str, Any] = json.loads(archive.read(_INTERFACE))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        text = f"{engine.name} cannot be read: it is damaged, or no engine of PyTorch for a GPU"
        raise StageError(text, "build it again") from error
    return interface


@dataclass
class GpuProgram:
    """A loaded program; all its tensors are on the first GPU."""

    interface: Mapping[str, Any]
    _constants: Mapping[str, torch.Tensor]
    _load: Callable[[str], Compute]
    _loaded: dict[str, Compute] = field(default_factory=dict)

    @cached_property
    def opt(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs for the sizes ``opt``."""
        sizes = self.interface["opt"]
        ports = self.interface["inputs"]
        return tuple(tuple(sizes.get(n, n) for n in port["shape"]) for port in ports)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute the outputs, in order."""
        rest = iter(inputs)
        part = _FIXED if tuple(tuple(v.shape) for v in inputs) == self.opt else _RANGES
        if part not in self._loaded:
            self._loaded[part] = self._load(part)
        names = self.interface["arguments"]
        values = [next(rest) if name is None else self._constants[name] for name in names]
        return list(self._loaded[part](*values))


@contextmanager
def compiler_cache() -> Iterator[None]:
    """Use a cache of Inductor of its own, for a compilation, or a load with the first call."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir
    from torch._inductor.utils import fresh_cache

    temporary = TemporaryDirectory(prefix=_CACHE_PREFIX, ignore_cleanup_errors=True)
    with _COMPILER_LOCK, temporary as folder:
        # if unset, Inductor's compile processes keep writing to the removed cache
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", cache_dir())
        os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(0))
        with fresh_cache(dir=folder):
            yield


def load_gpu_program(engine: Path) -> GpuProgram:
    """Load an engine file onto the first GPU.

    Raises: Unavailable: there is no GPU. StageError: the engine is damaged, or of another version
    of PyTorch or kind of GPU.
    """
    interface, here = read_interface(engine), capability()
    check_version(engine, interface)
    if interface["compute_capability"] != here:
        own = interface["compute_capability"]
        text = f"{engine.name} was built for compute capability {own}, and this GPU has {here}"
        raise StageError(text, "build it on this kind of GPU")
    with one_sentence(f"PyTorch cannot load {engine.name}", "build it again"):
        if interface["mode"] != COMPILE:
            return _load_eager(engine, interface)
        weights = read_weights(weights_file(engine), interface["constants"])
        if missing := sorted(interface["constants"].keys() - weights):
            text = f"{weights_file(engine).name} is of another engine: it has no {missing[0]}"
            raise StageError(text, "build the engine again")
        constants = {name: value.to("cuda") for name, value in weights.items()}
        return GpuProgram(interface, constants, partial(_load_compiled, engine))


def _load_eager(engine: Path, interface: Mapping[str, Any]) -> GpuProgram:
    with zipfile.ZipFile(engine) as archive, archive.open(_PROGRAM) as file:
        content = io.BytesIO(file.read())  # PyTorch reads it out of order
    program = torch.export.load(content)
    aten = torch.ops.aten
    # attention on a GPU may return strides that ``view`` refuses
    for node in program.graph.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default
    program = _on_gpu(program)
    constants = {name: v.detach() for _, name, v in arguments(program) if v is not None}
    return GpuProgram(interface, constants, lambda _: program.graph_module)


def _on_gpu(program: Program) -> Program:
    """Move a program to the GPU, without its checks of devices: they name the CPU."""
    graph = program.graph_module.graph
    for node in [*graph.nodes]:
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)
    program = move_to_device_pass(program, "cuda")
    program.graph_module.recompile()  # its code still makes tensors on the CPU
    return program


def _load_compiled(engine: Path, name: str) -> Compute:
    from torch._inductor.standalone_compile import CompiledArtifact

    with TemporaryDirectory() as folder, zipfile.ZipFile(engine) as archive:
        load: Any = CompiledArtifact.load
        compute: Compute = load(path=archive.extract(name, folder), format="binary")
    return compute
