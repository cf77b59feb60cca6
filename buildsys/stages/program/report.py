"""What the report says about a captured program."""

from buildsys.report import formatting as q
from buildsys.stages.program.result import ProgramResult


def key_figure(result: ProgramResult) -> str:
    """Describe the program."""
    calls = sum(result["operators"].values())
    return f"{q.plural(calls, 'operator')}, {q.size(result['bytes'])}"
