"""Kinds, types and times of an engine's layers, and the check of its precision by them."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from buildsys.backends.interface import Figures, Options
from buildsys.errors import StageError

DTYPE_OF_PRECISION = {
    "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "float8e4m3fn",
    "int4": "int4",
}  # fmt: skip
IMAGE_NODES = "preprocess/"  # begins the names of nodes that prepare images
_SLOWEST = 20  # layers in a result file
_MOST_PROFILED_RUNS, _PROFILE_S = 20, 0.5


def is_preprocessing(names: Iterable[str]) -> bool:
    """Check for nodes that prepare images, which do not count for an engine's precision."""
    return any(name.startswith(IMAGE_NODES) for name in names)


def shares(amounts: Mapping[str, float]) -> dict[str, float]:
    """Return each part of the total, by name; {} without a total."""
    total = sum(amounts.values())
    return {name: part / total for name, part in sorted(amounts.items())} if total else {}


def layer_facts(kinds: Iterable[str], dtypes: Iterable[str], source: str) -> Figures:
    """Collect layers by kind and the share of each type; ``source`` is what has them."""
    facts: Figures = {"engine_layers": dict(sorted(Counter(kinds).items()))}
    if by_type := shares(Counter(dtypes)):
        rounded = {dtype: round(share, 4) for dtype, share in by_type.items()}
        facts |= {"precision_shares": {"layers": rounded}, "precision_of": source}
    return facts


def int8_layers(in_int8: Iterable[bool], options: Options) -> Figures:
    """Count the convolutions and matrix products in int8, of int8 engines and those with any."""
    layers = [*in_int8]
    if not layers or (options["precision"] != "int8" and not any(layers)):
        return {}
    return {"int8_layers": {"int8": sum(layers), "all": len(layers)}}


def profiled_runs() -> Iterator[int]:
    """Yield the numbers of the runs of a profile: up to 20 in half a second, at least two."""
    began = time.monotonic()
    for number in range(_MOST_PROFILED_RUNS):
        yield number
        if number and time.monotonic() - began > _PROFILE_S:
            return


def slowest(
    times_ms: Mapping[str, float], most: int | None = _SLOWEST
) -> Iterator[tuple[str, Figures]]:
    """Yield the slowest layers, the slowest first, with ``time_ms`` and their share of all."""
    total = sum(times_ms.values())
    for name in sorted(times_ms, key=lambda name: -times_ms[name])[:most]:
        share = round(times_ms[name] / total, 4) if total else 0.0
        yield name, {"time_ms": round(times_ms[name], 6), "share": share}


def precision_problem(precision: str, shares_of: Mapping[str, float], least: float) -> str:
    """Return the problem of an engine's precision, "" without one.

    An fp32 engine has none: a graph may have layers of other types.
    """
    requested = DTYPE_OF_PRECISION[precision]
    if requested == "float32" or not shares_of:
        return ""
    share = shares_of.get(requested, 0.0)
    if share > 0 and share >= least:
        return ""
    descending = sorted(shares_of.items(), key=lambda item: -item[1])
    rest = ", ".join(f"{100 * other:.0f} % in {dtype}" for dtype, other in descending)
    actual = f"only {100 * share:.1f} % of its layers are" if share else "none of its layers is"
    limit = f" (the minimum is {100 * least:.0f} %)" if least else ""
    return f"the engine was requested in {precision}, but {actual} in {requested}{limit}: {rest}"


def check_precision(facts: Figures, options: Options, hint: str) -> None:
    """Check that enough layers of an engine have its precision.

    Raises: StageError: fewer than ``precision_share`` have it; 0 accepts any precision.
    """
    shares_of = facts.get("precision_shares", {}).get("layers", {})
    least = options["precision_share"]
    if least and (problem := precision_problem(options["precision"], shares_of, least)):
        raise StageError(problem, hint)
