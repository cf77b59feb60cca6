"""Facts of TensorRT-RTX as a backend, known without its library."""

from buildsys.backends.tensorrt.description import CUDA, TensorRt

DESCRIPTION = TensorRt(
    title="TensorRT-RTX",
    libraries={"tensorrt_rtx": "tensorrt_rtx", **CUDA},
    install="pip install 'buildsys[rtx]'",
    packages="tensorrt-rtx cuda-bindings onnx",
    operator_kinds=("function", "plugin"),
    gpu_generations=("7.5", "8.0", "8.6", "8.9", "12.0", "12.1"),
    builds_without_gpu=True,
)
