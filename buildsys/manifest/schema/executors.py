"""The executors of project.yaml: where targets run besides this machine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from buildsys.manifest.schema.base import VARIABLE_PATTERN, MachineSpec, OneOf, Seconds, Spec


class ExecutorBase(Spec):
    """Equal machines that take targets."""

    offers: MachineSpec | None = Field(None, description="What each of the machines has.")
    jobs: int = Field(8, ge=1, le=10_000, description="Number of targets at a time.")
    env: dict[Annotated[str, Field(pattern=VARIABLE_PATTERN)], str] = Field(
        {}, description="Additional environment variables of the jobs."
    )
    store: str | None = Field(
        None, min_length=1, description="The shared cache as these machines name it."
    )
    remember: Seconds = Field(
        86_400.0, gt=0, description="Time until the machines are asked for their libraries again."
    )


class LocalExecutorSpec(Spec):
    """The machine of doit, elsewhere than first in the order."""

    kind: Literal["local"] = Field(description="This machine.")


class ProcessExecutorSpec(ExecutorBase):
    """A command that runs buildsys: ssh to a machine, a container, or another process here."""

    kind: Literal["process"] = Field(description="A command on this machine, such as ssh.")
    command: tuple[str, ...] = Field(
        (), description="Command that runs buildsys, such as [ssh, gpu1, buildsys]."
    )


Executor = Annotated[
    LocalExecutorSpec | ProcessExecutorSpec, OneOf(("local", "process"), field="kind")
]
