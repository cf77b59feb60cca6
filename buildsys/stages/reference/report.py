"""What the report says about golden outputs."""

from buildsys.report.formatting import case_order
from buildsys.stages.reference.result import ReferenceResult


def key_figure(result: ReferenceResult) -> str:
    """List the cases."""
    cases = sorted(result["cases"], key=case_order)
    return f"{'case' if len(cases) == 1 else 'cases'} {', '.join(cases)}"
