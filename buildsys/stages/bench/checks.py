"""Checks of the section ``bench``."""

from __future__ import annotations

from buildsys.manifest.engine_checks import usable_engines
from buildsys.manifest.problem import Problems
from buildsys.manifest.view import REFUSED, ManifestView

_TENSORRT_ONLY = {  # field of bench -> values with no effect
    "cuda_graph": (False, [False]),
    "transfers": ("none",),
    "in_flight": (1,),
    "wait": ("spin",),
}


def problems(view: ManifestView) -> Problems:
    """Yield duplicate baselines and options unsupported by all engines.

    One engine that supports an option is enough. Options from shared files are not checked, as
    other models may have other engines.
    """
    baselines, captured = view.list("bench", "baselines"), "torch_cuda_graph"
    yield from view.duplicates("bench", "baselines")
    engines = list(usable_engines(view))
    if not engines or len(engines) < len(view.list("engines")):
        return  # an engine refused by the schema may support every option
    if any(engine.backend.needs_cuda for engine in engines):
        return
    on_gpu = [engine.backend.runs_on_gpu(engine.fields) for engine in engines]
    names = [
        f"{engine.fields['backend']} on a {'GPU' if gpu else 'CPU'}"
        for engine, gpu in zip(engines, on_gpu, strict=True)
    ]
    for field, without_effect in _TENSORRT_ONLY.items():
        value = view.get("bench", field)
        if value not in (None, REFUSED, *without_effect) and view.is_own("bench", field):
            text = f"not supported by {' and '.join(dict.fromkeys(names))}, only by TensorRT"
            hint = "remove it, or add a TensorRT engine"
            yield view.problem(("bench", field), text, hint, of_key=True)
    if captured in baselines and view.is_own("bench", "baselines") and not any(on_gpu):
        text = f"{captured} needs a GPU, and no engine of this model runs on one"
        yield view.problem(("bench", "baselines", baselines.index(captured)), text, "remove it")
