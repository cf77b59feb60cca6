"""Commands: builders outside of this project, such as those of language models."""

import shlex
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from buildsys.manifest.schema.base import Name, NeedsSpec, Seconds, Spec, Variable, Word

_Word = Annotated[Word, Field(max_length=100)]


def _split(value: object) -> object:
    """Split a command on one line into its arguments. No shell reads it."""
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"{error}; write a list of arguments") from None


Arguments = Annotated[
    tuple[str, ...],
    BeforeValidator(_split),
    Field(min_length=1),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}}),
]


class FigureLimit(Spec):
    """Limits of a command's figure."""

    min: float | None = Field(None, description="Least value.")
    max: float | None = Field(None, description="Largest value.")

    @model_validator(mode="after")
    def _check_limits(self) -> "FigureLimit":
        if self.min is None and self.max is None:
            raise ValueError("add min or max")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is more than max {self.max:g}")
        return self


class CommandSpec(Spec):
    """A program with declared inputs and outputs."""

    name: Name = Field(description="Name of the command in targets and paths.")
    run: Arguments
    """Program and arguments; {inputs.X}, {outputs.X} and {figures} are paths."""
    inputs: dict[_Word, str] = Field({})
    """Files and folders/ of the project, or outputs of other targets such as {simplified}."""
    outputs: dict[_Word, str] = Field({})
    """Files and folders/ that it writes, relative to its working folder."""
    limits: dict[str, FigureLimit] = Field({}, description="Limits of the reported figures.")
    toolchain: Name | None = None
    """Toolchain of project.yaml with its programs and Python."""
    versions: tuple[Name, ...] = ()
    """Python distributions that it uses; without one of them it is unavailable."""
    probes: tuple[Arguments, ...] = ()
    """Commands such as [trtexec, --version]; what they print is in the key."""
    env: dict[Variable, str | None] = Field({})
    """Environment variables; null: as in the environment of the build."""
    device: Literal["cpu", "cuda"] = "cpu"
    """cuda: it needs an NVIDIA GPU, depends on its kind, and has it alone."""
    measures: bool = False
    """It times something: it runs alone, and its results are not shared."""
    needs: NeedsSpec | None = None
    """Needs of this command, instead of the model's."""
    required: bool = Field(False, description="Fail the build if it cannot run here.")
    timeout: Seconds | None = Field(None, gt=0, description="Limit, instead of timeout.command.")


class Sections(Spec):
    """The section of the stage."""

    commands: tuple[CommandSpec, ...] = ()
    """Other programs to run: builders, checks and benchmarks, in order."""
