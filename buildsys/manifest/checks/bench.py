"""Checks of the section ``bench`` against the engines of the model."""

from __future__ import annotations

from buildsys.manifest.checks.view import REFUSED, ManifestView
from buildsys.manifest.problem import Problems

_TENSORRT_ONLY = {  # field -> values with no effect
    "cuda_graph": (False, [False]),
    "transfers": ("none",),
    "in_flight": (1,),
    "wait": ("spin",),
}


def bench_problems(view: ManifestView) -> Problems:
    """Yield duplicate baselines and options unsupported by all engines.

    One engine that supports an option is enough. Options from shared files are not checked, as
    other models may have other engines.
    """
    baselines = view.list("bench", "baselines")
    yield from view.duplicates("bench", "baselines")
    engines = [engine for _, engine in view.maps("engines", ...)]
    if not engines or len(engines) < len(view.list("engines")):
        return  # an engine refused by the schema may support every option
    if any(engine.get("backend") in ("tensorrt", "tensorrt_rtx", REFUSED) for engine in engines):
        return
    on_gpu = [engine.get("provider") == "cuda" for engine in engines]
    names = [
        f"{engine.get('backend')} on a {'GPU' if gpu else 'CPU'}"
        for engine, gpu in zip(engines, on_gpu, strict=True)
    ]
    for field, without_effect in _TENSORRT_ONLY.items():
        value = view.get("bench", field)
        if value not in (None, REFUSED, *without_effect) and view.is_own("bench", field):
            text = f"not supported by {' and '.join(dict.fromkeys(names))}, only by TensorRT"
            hint = "remove it, or add a TensorRT engine"
            yield view.problem(("bench", field), text, hint, of_key=True)
    captured = "torch_cuda_graph"
    if captured in baselines and view.is_own("bench", "baselines") and not any(on_gpu):
        text = f"{captured} needs a GPU, and no engine of this model runs on one"
        yield view.problem(("bench", "baselines", baselines.index(captured)), text, "remove it")
