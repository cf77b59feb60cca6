"""The fields of a PyTorch engine, and checks across them."""

from typing import Any, Literal

from pydantic import Field

from buildsys.backends.torch.description import AOT_INDUCTOR, COMPILE, CUDA_GRAPH
from buildsys.manifest.problem import Problems
from buildsys.manifest.schema.engines import EngineBase
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView


class TorchEngine(EngineBase):
    """The captured PyTorch program, compiled for this kind of processor or GPU."""

    backend: Literal["torch"] = Field(description="PyTorch.")
    mode: Literal["aot_inductor", "compile", "cuda_graph"] = Field(
        "aot_inductor",
        description="A package for the CPU; on a GPU, code of torch.compile or PyTorch's kernels.",
    )
    tf32: bool = Field(True, description="On a GPU, multiply float32 in TF32.")
    autotune: bool = Field(False, description="Time more kernels while compiling for a GPU.")
    threads: int = Field(0, ge=0, description="On the CPU; 0: PyTorch's default.")
    refit: bool = Field(True, description="Put new weights into an earlier package of the graph.")
    precision_share: float = Field(
        0.1, ge=0, le=1, description="Fail if fewer operators have the precision; 0: never."
    )


ENGINE = TorchEngine
_MODES = {
    "tf32": (COMPILE, CUDA_GRAPH), "autotune": (COMPILE,), "threads": (AOT_INDUCTOR,),
}  # fmt: skip


def problems(view: ManifestView, path: FieldPath, engine: dict[str, Any]) -> Problems:
    """Yield unsupported precisions, and fields of another mode."""
    mode = engine.get("mode", AOT_INDUCTOR)
    for field, modes in _MODES.items():
        if field in engine and mode not in modes:
            hint = f"remove it, or use mode: {modes[0]}"
            place = view.place_of(path, field)
            yield view.problem(place, f"not supported with mode: {mode}", hint, of_key=True)
    precision = engine.get("precision", "fp32")
    if precision not in ("fp32", "fp16", "bf16"):
        text = f"PyTorch engines are not built in {precision}"
        yield view.problem((*path, "precision"), text, "use fp32, fp16 or bf16")
