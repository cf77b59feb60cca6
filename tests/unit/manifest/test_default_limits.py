"""Default limits are no tighter than the rounding of a network's floats."""

import pytest

from buildsys.manifest.default_limits import AGREEMENT_LIMITS, DEFAULT_LIMITS, effective_limits

UNSET = {"rtol": None, "cosine": None, "atol": None, "top1": None}


@pytest.mark.parametrize("kind", DEFAULT_LIMITS)
def test_float32_networks_have_the_default_limits(kind: str) -> None:
    limits = {**UNSET, **DEFAULT_LIMITS[kind], **AGREEMENT_LIMITS.get(kind, {})}
    assert effective_limits(UNSET, kind, "float32") == limits


@pytest.mark.parametrize(
    ("kind", "float_type", "rtol", "cosine"),
    [
        ("validate", "float16", 8 * 2**-10, 0.9999),
        ("fp32", "float16", 8 * 2**-10, 0.9999),
        ("fp16", "float16", 2e-2, 0.999),
        ("validate", "bfloat16", 8 * 2**-7, 1 - 0.0625**2 / 2),
        ("bf16", "bfloat16", 1.5e-1, 0.99),
        ("int8", "float16", 3e-1, 0.98),
        ("validate", "float64", 1e-4, 0.9999),
        # its own quantizers, whatever the engine
        ("validate", "int8", 1e-1, 0.995),
        ("int8", "int8", 1e-1, 0.995),
    ],
)
def test_networks_of_fewer_bits_have_wider_limits(
    kind: str, float_type: str, rtol: float, cosine: float
) -> None:
    found = effective_limits(UNSET, kind, float_type)
    assert (found["rtol"], found["cosine"]) == (rtol, cosine)


def test_outputs_of_low_precision_must_follow_their_reference() -> None:
    assert AGREEMENT_LIMITS.keys() == DEFAULT_LIMITS.keys()
    assert effective_limits({**UNSET, "slope": 0.5}, "int8", "float32")["slope"] == 0.5
    assert effective_limits(UNSET, "int8", "bfloat16")["slope"] == 0.1
    # a network of bfloat16 has its own rounding
    assert effective_limits(UNSET, "fp16", "bfloat16")["spread_error"] == 0.1
    assert effective_limits(UNSET, "fp16", "float16")["spread_error"] == 0.05
    assert "spread_error" not in effective_limits(UNSET, "validate", "float16")


def test_limits_of_the_manifest_are_used_as_they_are() -> None:
    given = {"rtol": 1e-5, "cosine": 0.99999, "atol": 1e-3, "top1": 1.0}
    assert effective_limits(given, "validate", "float16") == given
    only_rtol = effective_limits({**UNSET, "rtol": 0.0}, "validate", "bfloat16")
    assert only_rtol["rtol"] == 0.0
    assert only_rtol["cosine"] == 1 - 0.0625**2 / 2
