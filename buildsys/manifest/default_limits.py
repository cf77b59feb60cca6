"""Default limits of benchmarks, and of comparisons with the golden outputs.

Limits of comparisons without a value in the manifest are at least as wide as the rounding of the
network's own floats. Two correct implementations of a 16-bit network round each result to the
nearest value, by up to eps / 2, in another order. Such errors add up like the square root of their
number: 256 operations in a row give 16 * eps / 2, which is 0.8 % in float16 and 6 % in bfloat16.
"""

from collections.abc import Mapping

STEADY_INTERVAL = 0.05  # distance of a median's interval from it, relative
DEFAULT_LIMITS: Mapping[str, Mapping[str, float]] = {
    "validate": {"rtol": 1e-4, "cosine": 0.9999},
    # engines by precision
    "fp32": {"rtol": 1e-3, "cosine": 0.9999},
    "fp16": {"rtol": 2e-2, "cosine": 0.999},
    "bf16": {"rtol": 1.5e-1, "cosine": 0.99},
    "int8": {"rtol": 3e-1, "cosine": 0.98},
    "fp8": {"rtol": 3e-1, "cosine": 0.98},
    "int4": {"rtol": 3e-1, "cosine": 0.98},
    # all graphs and engines of a network with its own quantizers: values fall on either side of a
    # rounding edge, by one step of 255 in each layer (untrained resnet18: 0.07)
    "quantized": {"rtol": 1e-1, "cosine": 0.995},
}
_AGREEMENT = ("spread_error", "correlation", "slope", "channel_error", "class_agreement")
_INT8 = dict(zip(_AGREEMENT, (0.2, 0.98, 0.1, 0.5, 0.97), strict=True))
# How outputs follow their reference over all samples. tests/bench/precision_limits.py measures how
# many honest engines and faults they tell apart (docs/precision.md).
AGREEMENT_LIMITS: Mapping[str, Mapping[str, float]] = {
    "validate": {"spread_error": 1e-2},
    "fp32": {"spread_error": 5e-2},  # TF32 is more exact
    "fp16": dict(zip(_AGREEMENT, (0.05, 0.998, 0.02, 0.15, 0.99), strict=True)),
    "bf16": dict(zip(_AGREEMENT, (0.1, 0.995, 0.02, 0.25, 0.98), strict=True)),
    "int8": _INT8,
    "fp8": _INT8,
    "int4": _INT8,
    "quantized": _INT8,
}
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDINGS = 16 / 2  # eps of 256 operations in a row


def effective_limits(
    limits: Mapping[str, float | None], kind: str, float_type: str
) -> dict[str, float | None]:
    """Complete the limits of the manifest by defaults.

    ``kind`` is ``validate`` or an engine's precision, ``float_type`` the type of most weights, or
    int8 of a network with quantizers.
    """
    kind = "quantized" if float_type == "int8" else kind
    rounding, least = _ROUNDINGS * _EPS.get(float_type, 0.0), DEFAULT_LIMITS[kind]
    # the cosine of an output in which every element differs by ``rounding``
    cosine = min(least["cosine"], 1 - rounding**2 / 2)
    # a network of bfloat16 varies by its own rounding, whatever the engine's precision
    coarsest = "bf16" if (kind, float_type) == ("fp16", "bfloat16") else kind
    if kind in ("validate", "fp32") and rounding:
        coarsest = ""
    defaults = {
        "rtol": max(least["rtol"], rounding),
        "cosine": cosine,
        **AGREEMENT_LIMITS.get(coarsest, {}),
    }
    unset = {name: value for name, value in defaults.items() if limits.get(name) is None}
    return {**limits, **unset}
