"""One node of the build graph: what a target reads, what it writes and all that its result depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file by its path relative to the build folder (inputs, outputs) or to the project (sources)."""

    path: str
    optional: bool = False


class ToolchainRef(NamedTuple):
    """A toolchain as the project writes it: where it lies on this machine is found when it is needed."""

    name: str
    python: str  # decides nothing by itself: the versions of what it has are in the key
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """A target of the graph, complete: two actions with the same key parts give the same result.

    ``options`` holds the resolved manifest fields that the stage uses and nothing else. It is both what
    the worker receives and what the action key digests, so a stage cannot depend on a field that is
    not in its key.
    """

    target: str  # "engine:resnet50:rtx-fp16"; the only name that doit, the ledger and the user see
    stage: str  # "engine"
    model: str
    variant: str  # engine or precision name, "" for stages that a model has once
    options: Mapping[str, Any]  # JSON values only
    inputs: Mapping[str, FileRef]  # role -> output of another action
    outputs: Mapping[str, FileRef]  # role -> file; always has "result", the stage's JSON
    sources: tuple[
        str, ...
    ] = ()  # user files, relative to the project; digested with what they import
    weights: Mapping[str, str | None] = field(
        default_factory=dict
    )  # files of state dicts -> sha256 they must have
    after: tuple[str, ...] = ()  # targets whose outputs are inputs
    order: tuple[str, ...] = ()  # targets that must have passed before, without being an input
    code: tuple[
        str, ...
    ] = ()  # buildsys modules whose source (with what they import) is in the key
    tools: tuple[str, ...] = ()  # distributions whose versions are in the key
    toolchain: ToolchainRef | None = (
        None  # where the engine is built and run; ``tools`` are those that it has
    )
    # of a stage that uses a toolchain beside our own interpreter: ``tools`` are ours, and these its
    peer_tools: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()  # device facts in the key: "cpu", "cores", "gpu"
    environment: tuple[str, ...] = ()  # families of environment variables in the key
    # role -> output of another action that may reach the words of an error and nothing else: not in the key
    advisory: Mapping[str, FileRef] = field(default_factory=dict, compare=False)
    required: bool = field(
        default=False, compare=False
    )  # being unavailable fails it; not part of its result
    measures: bool = (
        False  # its figures are this machine's, now: not shared with others (benchmarks)
    )
    exclusive: bool = False  # runs alone on the machine (what times a processor)
    alone_on_gpu: bool = False  # runs while nothing else of this kind uses its GPU
    timeout_s: float | None = None
    doc: str = field(default="", compare=False)

    @property
    def runs_in(self) -> ToolchainRef | None:
        """The toolchain whose interpreter runs the stage; None for our own."""
        return None if self.peer_tools else self.toolchain
