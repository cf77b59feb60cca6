"""The result file of the verify stage."""

from buildsys.onnx_graphs.result_types import AgreementFigures, CheckResult, ComparedCases
from buildsys.system.typed_dict import TypedDict


class VerifiedProfile(TypedDict, total=False):
    """One optimization profile with its cases."""

    profile: int
    ranges: dict[str, dict[str, list[int]]]  # input -> min, opt, max
    cases: ComparedCases


class VerifyResult(CheckResult, total=False):
    """The engine compared with the golden outputs."""

    cases: ComparedCases
    agreement: dict[str, AgreementFigures]  # by output
    dims: dict[str, dict[str, int]]  # per case
    profiles: list[VerifiedProfile]
    outside_profiles: list[str]  # cases that fit none of the explicit profiles
    warnings: list[str]
