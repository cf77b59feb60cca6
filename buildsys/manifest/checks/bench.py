"""What the section ``bench`` asks for must be possible with the engines of the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from buildsys.manifest.problem import Problem, show_value

if TYPE_CHECKING:
    from buildsys.manifest.checks.model import View

_BY_THE_GPU = {  # field -> its default, in the forms that it may be written in
    "cuda_graph": (False, [False]),
    "transfers": ("none",),
    "in_flight": (1,),
    "wait": ("spin",),
}
_TIMED_BY_GPU = ("tensorrt", "tensorrt_rtx")
_ON_GPU_ONLY = "torch_cuda_graph"


def bench_problems(view: View) -> Iterator[Problem]:
    """Yield what no engine of a model can honour, and baselines that are named twice.

    Where there are engines on a GPU and others, the fields hold for those on a GPU. What several models share is not
    looked at: some may have other engines.
    """
    baselines = view.list("bench", "baselines")
    for index, name in enumerate(baselines):
        if name in baselines[:index]:
            yield view.problem(
                ("bench", "baselines", index), f"the baseline {show_value(name)} is given twice"
            )
    engines = [engine for engine in view.list("engines") if isinstance(engine, dict)]
    if not engines or any(engine.get("backend") in _TIMED_BY_GPU for engine in engines):
        return
    yield from _not_by_the_gpu(view, engines)
    on_gpu = any(engine.get("provider") == "cuda" for engine in engines)
    if _ON_GPU_ONLY in baselines and view.own("bench", "baselines") and not on_gpu:
        text = f"{_ON_GPU_ONLY} runs on a GPU, and no engine of this model does"
        yield view.problem(("bench", "baselines", baselines.index(_ON_GPU_ONLY)), text, "remove it")


def _not_by_the_gpu(view: View, engines: list[dict[str, Any]]) -> Iterator[Problem]:
    kinds = dict.fromkeys(_kind(engine) for engine in engines)
    for field, defaults in _BY_THE_GPU.items():
        value = view.get("bench", field)
        if (
            value is None
            or not view.own("bench", field)
            or any(value == default for default in defaults)
        ):
            continue
        text = f"{' and '.join(kinds)} cannot honour it: it is for engines of TensorRT"
        yield view.problem(("bench", field), text, "remove it, or add such an engine", of_key=True)


def _kind(engine: dict[str, Any]) -> str:
    where = "a GPU" if engine.get("provider") == "cuda" else "a CPU"
    return f"the backend {engine.get('backend')} on {where}"
