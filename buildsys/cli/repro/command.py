"""``doit repro MODEL``: build a model twice in clean folders and compare what comes out."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from buildsys.cli.inspect.onnx_process import ask
from buildsys.cli.name_suggestions import known_model
from buildsys.cli.repro.artifacts import Artifact, compare_builds
from buildsys.cli.repro.two_builds import Built, build_twice
from buildsys.cli.repro.verdict import Verdict
from buildsys.errors import StageError, UsageError
from buildsys.execution.builder_versions import builder_versions
from buildsys.manifest.project import load_project
from buildsys.plan.action import Action
from buildsys.plan.project_plan import plan_model
from buildsys.system.suggestions import nearest

# whose files are artifacts, in the chain's order
STAGES = (
    "operators",
    "export",
    "surgery",
    "simplify",
    "reference",
    "calibrate",
    "convert",
    "engine",
)
_FIGURES = ("validate", "verify", "bench", "report")
_GRAPHS = (".onnx", ".onnx.data")
_TERMINATED = 143


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    model: str
    stages: Sequence[str] = ()
    until: str = ""
    keep: bool = False


def compare_two_builds(root: Path, request: Request) -> Verdict:
    """Build the artifacts of a model twice and compare them; nothing in the project's folders is written.

    Raises: UsageError: no such model or stage. ManifestErrors, StageError: there is nothing to compare.
    """
    project = load_project(root)
    known_model("repro", project.models, [request.model] if request.model else [])
    actions = select(
        plan_model(project.models[request.model].data, builder_versions(root, project.state)),
        request,
    )
    with _clean_folder(keep=request.keep) as folder:
        builds: list[Built] = []
        for built in build_twice(project, [action.target for action in actions], folder, _say):
            builds.append(built)
            if len(built.failed()) == len(actions):
                break  # the second build would tell the same again
        _say("comparing")
        artifacts = list(_compare(builds, request.model, actions))
        return Verdict(request.model, builds, artifacts, folder if request.keep else None)


def select(plan: Sequence[Action], request: Request) -> list[Action]:
    """Return the actions to build, in the order of the plan, with all that they need.

    Raises: UsageError: a stage that there is not, or that makes no artifacts.
    """
    for stage in (*request.stages, *([request.until] if request.until else [])):
        _check_stage(stage)
    if request.stages and request.until:
        raise UsageError("name stages or --until, not both")
    upto = STAGES[: STAGES.index(request.until) + 1] if request.until else STAGES
    wanted = {action.target for action in plan if action.stage in (request.stages or upto)}
    for action in reversed(plan):  # each comes after what it needs
        if action.target in wanted:
            wanted.update(action.after)
    chosen = [action for action in plan if action.target in wanted]
    if not chosen:
        raise UsageError(f"{request.model} has no targets of the stage {', '.join(request.stages)}")
    return chosen


def _check_stage(stage: str) -> None:
    if stage in _FIGURES:
        raise UsageError(
            f"{stage} is never repeated by repro: what it writes are figures, not artifacts",
            f"stages: {', '.join(STAGES)}",
        )
    if stage not in STAGES:
        near = nearest(stage, STAGES)
        hint = f"nearest: {', '.join(near)}" if near else f"stages: {', '.join(STAGES)}"
        raise UsageError(f"there is no stage {stage!r}", hint)


def _compare(builds: Sequence[Built], model: str, actions: Sequence[Action]) -> Iterator[Artifact]:
    if len(builds) < 2:
        return
    first, second = (built.build for built in builds)
    artifacts = list(compare_builds(first, second, model, actions))
    differing = [a for a in artifacts if a.first_byte is not None and a.file.endswith(_GRAPHS)]
    fields = _graph_differences(
        [(first / model / a.file, second / model / a.file, a.first_byte) for a in differing]
    )
    found = {artifact.file: field for artifact, field in zip(differing, fields, strict=True)}
    for artifact in artifacts:
        field = found.get(artifact.file)
        yield replace(artifact, difference=field["sentence"], field=field) if field else artifact


def _graph_differences(
    pairs: Iterable[tuple[Path, Path, int | None]],
) -> list[dict[str, Any] | None]:
    """Return the first field that differs of each pair of files; None leaves the byte position."""
    requests = [
        {"first": str(first), "second": str(second), "first_byte": byte}
        for first, second, byte in pairs
    ]
    try:
        answer = ask("first_differences", {"pairs": requests}) if requests else {"differences": []}
    except StageError:
        return [None] * len(requests)
    found: list[dict[str, Any] | None] = answer["differences"]
    return found


@contextmanager
def _clean_folder(*, keep: bool) -> Iterator[Path]:
    """Make a temporary folder, and remove it also after Ctrl-C and SIGTERM."""
    folder = Path(tempfile.mkdtemp(prefix="buildsys-repro-")).resolve()
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield folder
    finally:
        interrupts = signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupts)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise SystemExit(_TERMINATED)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
