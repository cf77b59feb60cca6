"""Facts known without the engine library."""

from buildsys.system.backend_registry import BackendDescription

DESCRIPTION = BackendDescription(
    title="ONNX reference",
    libraries={"onnx": "onnx"},  # module -> distribution
    install="pip install onnx",
    packages="onnx",
    engine_file="engine.reference",
)
