"""The result file of the command stage."""

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict


class CommandFigure(TypedDict, total=False):
    """A command's number, with its limits."""

    value: float
    unit: str
    interval: list[float]  # as the command gives it
    min: float
    max: float
    passed: bool  # only with a limit


class CommandOutput(TypedDict, total=False):
    """An output file or folder."""

    path: str
    files: int
    bytes: int


class CommandResult(ResultHeader, total=False):
    """Arguments, outputs and figures of a command."""

    run: list[str]
    program_seconds: float
    outputs: dict[str, CommandOutput]
    figures: dict[str, CommandFigure]
