"""One node of the build graph with everything its result depends on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

RESULT = "result"  # the role that every action has


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file by its path in the build folder.

    With ``folder`` it is a listing: a JSON list of the files in that folder, which belong to the
    same target. Their contents are in the keys of its readers.
    """

    path: str
    optional: bool = False
    folder: str = ""


class ToolchainRef(NamedTuple):
    """A toolchain of the project, located on use."""

    name: str
    python: str  # not in the key: the versions of what it has installed are
    env: tuple[tuple[str, str], ...] = ()


class Needs(NamedTuple):
    """What a machine must have to run an action."""

    gpu: str = ""  # words of its name
    compute_capability: str = ""
    gpu_count: int = 0
    memory: int = 0  # bytes
    exclusive: bool = False  # nothing else runs on the machine meanwhile
    time_s: float = 0.0  # limit for schedulers that ask for one
    labels: tuple[str, ...] = ()


NO_NEEDS = Needs()


def needs_of(declared: Mapping[str, Any] | None) -> Needs:
    """Read the needs of a manifest."""
    if declared is None:
        return NO_NEEDS
    fields = {name: value for name, value in declared.items() if value is not None}
    has_gpu = "gpu" in fields or "compute_capability" in fields
    fields |= {"labels": tuple(fields["labels"]), "time_s": fields.pop("time", 0.0)}
    return Needs(gpu_count=fields.pop("count", int(has_gpu)), **fields)


class BaselineRef(NamedTuple):
    """The search for an engine's earlier build, during key creation."""

    engine: str  # path of the engine, whose digest identifies a build
    target: str  # the target that built it


@dataclass(frozen=True, slots=True)
class Action:
    """A complete target; equal key parts give equal results.

    ``options`` holds exactly the resolved manifest fields that the stage uses. The worker receives
    them and the action key digests them, so no stage can depend on a field outside its key.
    """

    target: str  # "engine:resnet50:rtx-fp16", the name in doit, the ledger and the console
    stage: str  # "engine"
    model: str
    variant: str  # engine, precision or surgery point; "" for stages with one target per model
    options: Mapping[str, Any]  # JSON values only
    inputs: Mapping[str, FileRef]  # role -> output of another action
    outputs: Mapping[str, FileRef]  # role -> file; always has "result", the stage's JSON
    # user files, relative to the project; digested together with everything they import
    sources: tuple[str, ...] = ()
    # files, folders (with a slash) and $VARIABLES that user code reads, declared in the manifest
    reads: tuple[str, ...] = ()
    strict_reads: bool = field(default=False, compare=False)  # fail after other reads
    weights: Mapping[str, str | None] = field(default_factory=dict)  # file -> required sha256
    after: tuple[str, ...] = ()  # targets whose outputs are inputs
    order: tuple[str, ...] = ()  # targets that must pass first without being an input
    code: tuple[str, ...] = ()  # buildsys modules in the key, together with what they import
    # modules of another team's backend, in the key like ``code``
    packages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()  # distributions whose versions are in the key
    # commands whose printed text is in the key, one list of arguments each
    probes: tuple[tuple[str, ...], ...] = ()
    toolchain: ToolchainRef | None = None  # ``tools`` are looked up there, unless peer_tools is set
    # distributions of the toolchain if the stage runs in our interpreter; ``tools`` are then ours
    peer_tools: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()  # device facts in the key: "cpu", "cores", "gpu"
    environment: tuple[str, ...] = ()  # families of environment variables in the key
    # role -> file that can only affect the text of an error; not in the key
    advisory: Mapping[str, FileRef] = field(default_factory=dict, compare=False)
    required: bool = field(default=False, compare=False)  # fail if unavailable; not in the key
    baseline: BaselineRef | None = None  # a gate: the earlier build is in the key
    # an engine: may take earlier builds of other weights as a start; verified like a new one
    refits: bool = field(default=False, compare=False)
    measures: bool = False  # a benchmark: its result is never shared with other machines
    exclusive: bool = False  # runs alone on the machine, as it times a processor
    alone_on_gpu: bool = False  # no other action of this kind uses the GPU meanwhile
    needs: Needs = NO_NEEDS  # in the key if the machine does not meet them
    timeout_s: float | None = None
    # what its worker has imported: nothing, the libraries for graphs and engines, or torch too
    server: Literal["bare", "light", "torch"] = field(default="light", compare=False)
    preload: tuple[str, ...] = field(default=(), compare=False)  # modules that its worker keeps

    def owns(self, path: str) -> bool:
        """Check if a file is an output, or in a folder of outputs."""
        return any(
            path == ref.path or (ref.folder and path.startswith(f"{ref.folder}/"))
            for ref in self.outputs.values()
        )

    @property
    def runs_in(self) -> ToolchainRef | None:
        """The toolchain of the stage's interpreter, None for our own."""
        return None if self.peer_tools else self.toolchain


def missing_outputs(action: Action, status: str, outputs: Mapping[str, object]) -> list[str]:
    """List the required outputs that are absent or None in ``outputs``.

    The result file is always required, and after a pass every output that is not optional.
    """
    return [
        ref.path
        for role, ref in action.outputs.items()
        if (role == RESULT or (status == "passed" and not ref.optional))
        and outputs.get(ref.path) is None
    ]
