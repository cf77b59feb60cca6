"""What report and history say about the check of an engine."""

from typing import Any

from buildsys.report.checks import Compared
from buildsys.report.formatting import error_text, recorded_error, worst_comparison
from buildsys.report.result_files import Result
from buildsys.stages.verify.result import VerifyResult


def key_figure(result: VerifyResult) -> str:
    """Name the largest error."""
    return error_text(worst_comparison({"": result["cases"]}))


def compared(result: Result[VerifyResult]) -> Compared:
    """List the comparisons, of each optimization profile if there are several."""
    content, engine = result.content, result.variant
    subject, dims = f"golden outputs against engine {engine}", content.get("dims", {})
    profiles = [
        (f"profile {profile.get('profile')}", profile.get("cases", {}))
        for profile in content.get("profiles", [])
    ]
    if len(profiles) <= 1:
        return Compared(subject, [(engine, content.get("cases", {}))], dims)
    named = [(f"{engine}, {profile}", cases) for profile, cases in profiles]
    return Compared(subject, named, dims, tuple(name for name, cases in profiles if not cases))


def history_figures(result: VerifyResult) -> dict[str, Any]:
    """Collect the largest error with its place."""
    return recorded_error(worst_comparison({"": result.get("cases", {})}))
