"""One hint per kind of difference between a graph and its original."""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from buildsys.onnx_graphs.agreement import ComparedCase
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.system.backend_registry import describe_backend

STABLE_HINT = (
    "choose inputs.NAME.data, thresholds or weights that give stable outputs, such as distinct"
    " scores: trained weights, or those of a python source, with or without randomize: true"
)
SIZE_HINT = (
    "compute the size in forward from x.shape, without int() and float factors, or narrow dims to"
    " sizes at which it is right"
)
UNINFORMATIVE = "choose inputs.NAME.data, thresholds or weights for which it has values"
VARIATION_HINT = (
    "if these outputs hardly vary, as with plain noise and random weights, choose inputs.NAME.data"
    " or weights with which they do"
)
_VALUE_HINT = (
    "forward may decide by sizes or values in Python (if, int(), a dict), which the export keeps as"
    " in its example: use tensor operations there, or narrow dims and inputs.NAME.data"
)
_MOST_EQUAL = {"policy": "tokens", "agreement": 0.99}
_STEPS = {"policy": "elementwise", "rtol": 0, "atol": 1}
_MOST_DECIDED = 0.05  # of the integers, by rounding or equal scores
_LARGEST_INT32 = 2**31 - 1
_SMALL_ERROR = 1e-2  # above it is no rounding


def read_branches(export_result: Path | None) -> list[str]:
    """List the lines where the tracer fixed a branch or value; [] for an unusable file."""
    try:
        content = json.loads(export_result.read_text(encoding="utf-8")) if export_result else {}
        doubts = content.get("doubts", [])
        return [doubt["place"] for doubt in doubts if doubt["kind"] in ("branch", "value")]
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return []


def integer_hint(output: str, compared: Mapping[str, Comparison]) -> str:
    """Write the policy for integers that rounding decides, among all outputs of a case."""
    comparison = compared[output]
    text, policy = "nearly equal scores decide it, allow a share of other values", _MOST_EQUAL
    if comparison.max_abs <= 1 and not isinstance(comparison.worst_expected, bool | str):
        text, policy = "rounding decides it, allow steps of 1", _STEPS
    # a manifest has all outputs or none
    declared = {name: {"compare": policy} if name == output else {} for name in compared}
    return f"if {text}: outputs: {json.dumps(declared)} (not tried)"


def wide_integer_hint(backend: str, wrong: Iterable[Comparison], *, is_wide: bool = False) -> str:
    """Explain integers that a backend narrows to 32 bits, "" if it does not."""
    description = describe_backend(backend)
    values = [c.worst_expected for c in wrong if isinstance(c.worst_expected, int)]
    if not description.narrow_integers:
        return ""
    if not (is_wide or any(abs(value) > _LARGEST_INT32 for value in values)):
        return ""
    return (
        f"{description.title} computes int64 in 32 bits: declare the range of the integers"
        " in inputs.NAME.data (random: integers, high: N), or use another backend"
    )


def difference_hint(case: ComparedCase, output: str, branches: list[str]) -> str:
    """Name what to do about a wrong output, "" if nothing is known."""
    if output not in case.actual or output not in case.expected:
        return ""
    ours, theirs = case.actual[output], case.expected[output]
    if ours.dtype != theirs.dtype:
        dtype = theirs.dtype
        return f"convert the operands in forward before the operation, as in x.to(torch.{dtype})"
    if branches:
        return (
            f"the export has fixed what forward decides at {', '.join(branches)}: use torch.where"
            " or torch.cond there, or narrow dims and inputs.NAME.data to one side"
        )
    if ours.shape != theirs.shape:
        return SIZE_HINT
    comparison = case.compared[output]
    if comparison.non_finite:
        return (
            "write forward so that it stays finite at these values, such as clamp before log, exp"
            " and division, or give inputs.NAME.data the range of your data"
        )
    if theirs.values().dtype.kind not in "fc":
        is_rare = (ours.values() != theirs.values()).mean() <= _MOST_DECIDED
        return integer_hint(output, case.compared) if is_rare else _VALUE_HINT
    if comparison.relative < _SMALL_ERROR:
        return f"if this is rounding, raise validate.rtol above {comparison.relative:.1e}"
    return _VALUE_HINT


def uninformative_changes(zero: Collection[str], outputs: Iterable[str]) -> list[str]:
    """List changes of a manifest whose ``zero`` outputs have no informative case.

    The first draws weights, such as a last layer that starts as zeros.
    """
    accepted = {"compare": {"policy": "auto", "allow_zero": True}}
    # a manifest has all outputs or none
    declared = {name: accepted if name in zero else {} for name in outputs}
    return ["source: {randomize: true}", f"outputs: {json.dumps(declared)}"]
