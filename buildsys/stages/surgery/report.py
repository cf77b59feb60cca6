"""What the report says about changes to a graph."""

from buildsys.report import formatting as q
from buildsys.report.checks import Compared
from buildsys.report.result_files import Result
from buildsys.stages.surgery.result import SurgeryResult


def key_figure(result: SurgeryResult) -> str:
    """Count the steps, and the nodes before and after them."""
    return f"{q.plural(len(result['steps']), 'step')}, {q.node_change(result)}"


def compared(result: Result[SurgeryResult]) -> Compared:
    """List the comparisons of every step."""
    steps = result.content.get("steps", [])
    subject = "graph before each step, or its reference, against the graph after it"
    return Compared(subject, [(step.get("step", ""), step.get("cases", {})) for step in steps])
