"""Fields of manifests about the simplification."""

from typing import Annotated, Literal

from pydantic import Field

from buildsys.manifest.schema.base import Bytes, Spec, section

_Patterns = tuple[Annotated[str, Field(min_length=1)], ...]


class SimplifySpec(Spec):
    """Simplification of the exported graph."""

    tool: Literal["onnxsim", "onnxslim", "none"] = "onnxsim"
    """Simplifier of the graph; none keeps the exported one."""
    constant_folding: bool = Field(True, description="Compute constant parts of the graph.")
    shape_inference: bool = Field(True, description="Infer the shapes of inner tensors.")
    fuse: bool = Field(True, description="Let the tool fuse operators (onnxsim: its optimizer).")
    skip_passes: _Patterns = ()
    """Names or patterns of passes to skip (onnxslim: of fusions)."""
    extra_passes: _Patterns = ()
    """Names or patterns of further optimizer passes to run (onnxsim)."""
    tensor_size_threshold: Bytes | None = None
    """Largest constant folded into the file (onnxsim), such as 1MiB."""


class Sections(Spec):
    """The section of the stage."""

    simplify: SimplifySpec = section()
