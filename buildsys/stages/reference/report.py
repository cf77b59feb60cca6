"""What the report says about golden outputs."""

from buildsys.report.formatting import case_order, first_names
from buildsys.stages.reference.result import ReferenceResult

_MOST_NAMES = 4


def key_figure(result: ReferenceResult) -> str:
    """List the first cases."""
    cases = sorted(result["cases"], key=case_order)
    return f"{'case' if len(cases) == 1 else 'cases'} {first_names(cases, _MOST_NAMES)}"
