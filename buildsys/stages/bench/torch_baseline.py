"""PyTorch baselines: eager, as a CUDA graph, and compiled.

Source: PyTorch documentation, "CUDA semantics: CUDA Graphs", "torch.compile", "Channels Last Memory
Format"; Torch-TensorRT documentation, "TensorRT Backend for torch.compile".
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch

from buildsys.backends.cuda_device import Device, Stream
from buildsys.backends.measurement import Contender, GpuContender, GpuTiming, LocalCall, Slot
from buildsys.backends.torch.gpu_programs import float32_arithmetic, own_workspaces
from buildsys.backends.torch.programs import order_images
from buildsys.errors import Unavailable
from buildsys.models.torch_model import make_network, to_torch
from buildsys.models.user_code import first_line
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.system.backend_registry import uses_tf32
from buildsys.workers.job import Job

Call = Callable[[], Any]
Tensors = dict[str, torch.Tensor]
_DTYPES = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}
_WARM_UP_CALLS = 3  # before a capture
_IMAGE_RANK = 4  # tensors of this rank have a channels-last form


class TorchNetwork:
    """The network on the engine's kind of device, in the requested precision.

    Raises: Unavailable: the engine runs on a GPU, and this PyTorch sees none.
    """

    def __init__(self, job: Job, kind: str, timing: GpuTiming | None) -> None:
        self._timing = timing if kind == "gpu" else None
        if kind == "gpu" and not torch.cuda.is_available():
            raise Unavailable("this PyTorch sees no GPU", "install a PyTorch built for CUDA")
        self._on_gpu = kind == "gpu"
        self._device = torch.device("cuda" if self._on_gpu else "cpu")
        self._precision = job.options["bench"].get("precision", "fp32")
        self._dtype = _DTYPES[self._precision]
        self._tf32 = uses_tf32(job.options["engine"])
        self._progress = job.progress
        self._network = make_network(job.options["network"], job.project)
        self._network.module.to(self._device)
        if self._dtype is not None:
            self._network.module.to(dtype=self._dtype)
            order_images(self._network.module, torch.channels_last)
        self._stack = ExitStack()
        self._gpu: Device | None = None
        self._stream: Any = None

    @contextmanager
    def activate(self, threads: int) -> Iterator[None]:
        """Set threads and inference mode, and on a GPU a separate stream."""
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with self._stack:
                self._stack.enter_context(torch.inference_mode())
                if self._on_gpu:
                    self._open_gpu()
                yield
        finally:
            torch.set_num_threads(before)

    def describe(self) -> str:
        """Describe the network's settings."""
        layout = ", channels last" if self._dtype is not None else ""
        tf32 = f", TF32 {'on' if self._tf32 else 'off'}" if self._precision == "fp32" else ""
        return f"{self._precision}{layout}{tf32}, cuDNN chooses by timing, one inference in flight"

    def form(self, name: str) -> Callable[[Mapping[str, Tensor]], Contender]:
        """Choose the binding of one form of PyTorch by its name in a manifest."""
        forms: dict[str, Callable[[Tensors], Call]] = {
            "torch": self._eager,
            "torch_cuda_graph": self._captured,
            "torch_compile": self._compiled,
            "torch_tensorrt": self._tensorrt,
        }
        return partial(self._bind, forms[name])

    def _bind(self, form: Callable[[Tensors], Call], inputs: Mapping[str, Tensor]) -> Contender:
        tensors: Tensors = {}
        for name, golden in inputs.items():
            tensor = to_torch(golden).to(self._device)
            if self._dtype is not None and tensor.is_floating_point():
                tensor = tensor.to(self._dtype)
                if tensor.dim() == _IMAGE_RANK:
                    tensor = tensor.contiguous(memory_format=torch.channels_last)
            tensors[name] = tensor
        self._network.result(tensors)  # explains wrong inputs
        call = form(tensors)
        if not self._on_gpu:
            return LocalCall(call)
        assert self._gpu is not None
        blocking = self._timing is not None and self._timing.wait == "block"
        slot = Slot(Stream(self._stream.cuda_stream), call)
        contender = GpuContender(self._gpu, [slot], blocking=blocking)
        self._stack.callback(contender.close)
        return contender

    def _eager(self, tensors: Tensors, module: Callable[..., Any] | None = None) -> Call:
        positional, named = self._network.arguments(tensors)
        # a compiled module has no truth value
        called = self._network.module if module is None else module
        return lambda: called(*positional, **named)

    def _captured(self, tensors: Tensors) -> Call:
        call = self._eager(tensors)
        graph: Any = torch.cuda.CUDAGraph()
        try:
            for _ in range(_WARM_UP_CALLS):
                call()
            torch.cuda.synchronize()
            with own_workspaces(), torch.cuda.graph(graph, stream=self._stream):
                result = call()
        except RuntimeError as error:
            reason = f"PyTorch cannot capture the network as a CUDA graph: {first_line(error)}"
            raise Unavailable(reason) from error

        def replay() -> Any:
            graph.replay()
            return result

        return replay

    def _compiled(self, tensors: Tensors) -> Call:
        mode = "reduce-overhead" if self._on_gpu else "default"  # with CUDA graphs
        return self._compile(tensors, "torch.compile", mode=mode)

    def _tensorrt(self, tensors: Tensors) -> Call:
        try:
            settings = import_module("torch_tensorrt").dynamo.CompilationSettings
        except Exception as error:  # any, if it does not find TensorRT's libraries
            reason = f"Torch-TensorRT cannot be imported: {first_line(error)}"
            raise Unavailable(reason, "`pip install torch-tensorrt`") from error
        # else parts that TensorRT refuses run in PyTorch without a word
        options = {"pass_through_build_failures": True, "disable_tf32": not self._tf32}
        if hasattr(settings, "use_explicit_typing"):  # the network's types; always, from 2.14
            options["use_explicit_typing"] = True
        return self._compile(tensors, "Torch-TensorRT", backend="torch_tensorrt", options=options)

    def _compile(self, tensors: Tensors, compiler: str, **how: Any) -> Call:
        self._progress(f"compiling the PyTorch baseline with {compiler}")
        try:
            module = torch.compile(self._network.module, dynamic=False, **how)
            call = self._eager(tensors, module)
            for _ in range(_WARM_UP_CALLS):
                call()
        except Exception as error:  # from any library or compiler it calls
            reason = f"{compiler} fails on the network: {first_line(error)}"
            raise Unavailable(reason) from error
        return call

    def _open_gpu(self) -> None:
        self._gpu = Device(0)  # shares PyTorch's context
        self._stack.callback(self._gpu.close)
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stack.enter_context(torch.cuda.stream(self._stream))
        self._stack.enter_context(float32_arithmetic(tf32=self._tf32))
