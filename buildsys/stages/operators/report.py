"""What the report says about custom operators."""

from buildsys.report import formatting as q
from buildsys.stages.operators.result import OperatorsResult


def key_figure(result: OperatorsResult) -> str:
    """Count the functions and libraries."""
    functions = sum(len(made) for made in result.get("functions", {}).values())
    libraries = len(result.get("libraries", {}))
    parts = [q.plural(functions, "local function")] if functions else []
    parts += [q.plural(libraries, "library", "libraries")] if libraries else []
    return ", ".join(parts) or "nothing to make"
