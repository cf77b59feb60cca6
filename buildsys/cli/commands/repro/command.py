"""doit repro: two clean builds of a model, compared byte by byte."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from buildsys.cli.command import (
    JSON,
    Options,
    ProjectCommand,
    option,
    print_json,
    print_lines,
    require_model,
    unknown_name,
)
from buildsys.cli.commands.repro.artifacts import EQUAL, Artifact, compare_builds
from buildsys.cli.commands.repro.two_builds import Built, build_twice
from buildsys.cli.console.rows import format_table
from buildsys.errors import UsageError
from buildsys.execution.builder_versions import builder_versions
from buildsys.manifest.project import load_project
from buildsys.plan.action import Action
from buildsys.plan.project_plan import plan_model

SCHEMA = "buildsys/repro/1"
# stages whose files are artifacts, in build order
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
_MEASURING_STAGES = ("validate", "verify", "bench", "report")
_DIFFERENT, _NOT_BUILT = 1, 2
_TERMINATED = 143


class Repro(ProjectCommand):
    """Check the reproducibility of a model's build."""

    doc_purpose = "build a model twice in clean folders and compare the artifacts byte by byte"
    doc_usage = "MODEL [STAGE ...]"
    options = (
        option("until", "the last stage to build"),
        JSON,
        option("keep", "keep both folders and print their paths", flag=True),
    )

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Return 1 for an unexpected difference, 2 for a failed build."""
        project = load_project(root)
        model = require_model("repro", project.models, names[:1])
        plan = plan_model(project.models[model].data, builder_versions(root, project.state))
        actions = select_actions(plan, model, names[1:], options["until"])
        with _clean_folder(keep=options["keep"]) as folder:
            builds: list[Built] = []
            for built in build_twice(
                project, Path(options["dodoFile"]).name, actions, folder, _say
            ):
                builds.append(built)
                if len(built.failed()) == len(actions):
                    break  # the second build would fail in the same way
            _say("comparing")
            artifacts: list[Artifact] = []
            if len(builds) == 2:
                artifacts = compare_builds(builds[0].folder, builds[1].folder, model, actions)
        different = [artifact for artifact in artifacts if artifact.is_broken]
        failed = {name: why for built in reversed(builds) for name, why in built.failed().items()}
        if options["json"]:
            status = "failed" if failed else "different" if different else "reproducible"
            print_json(
                {
                    "schema": SCHEMA,
                    "model": model,
                    "status": status,
                    "artifacts": [artifact.as_json() for artifact in artifacts],
                    "builds": [built.as_json(kept=options["keep"]) for built in builds],
                    "failed": failed,
                }
            )
        else:
            lines = _lines(model, builds, artifacts, failed)
            if options["keep"]:
                lines.append(f"kept: {', '.join(str(built.root) for built in builds)}")
            print_lines([*lines, _conclusion(artifacts, different, failed)])
        return _NOT_BUILT if failed else _DIFFERENT if different else 0


def select_actions(
    plan: Sequence[Action], model: str, stages: Sequence[str], until: str
) -> list[Action]:
    """Return the actions to build, with their dependencies, in build order.

    Raises: UsageError: an unknown stage, or one without artifacts.
    """
    listed = f"stages: {', '.join(STAGES)}"
    for stage in (*stages, *([until] if until else [])):
        if stage in _MEASURING_STAGES:
            raise UsageError(f"{stage} writes measurements, not artifacts to compare", listed)
        if stage not in STAGES:
            raise unknown_name("stage", stage, STAGES, listed)
    if stages and until:
        raise UsageError("name stages or --until, not both")
    chosen = stages or (STAGES[: STAGES.index(until) + 1] if until else STAGES)
    wanted = {action.target for action in plan if action.stage in chosen}
    for action in reversed(plan):  # each comes after its dependencies
        if action.target in wanted:
            wanted.update(action.after)
    if not wanted:
        raise UsageError(f"{model} has no targets of the stage {', '.join(stages)}")
    return [action for action in plan if action.target in wanted]


def _lines(
    model: str, builds: Sequence[Built], artifacts: Sequence[Artifact], failed: dict[str, str]
) -> list[str]:
    took = " and ".join(f"{built.seconds:.1f} s" for built in builds)
    rows = []
    for one in artifacts:
        sizes = ["none" if size is None else f"{size} bytes" for size in one.sizes]
        text = sizes[0] if sizes[0] == sizes[1] else " / ".join(sizes)
        if one.first_byte is not None:
            text += f", first differing byte {one.first_byte}"
        text += f": {one.difference}" if one.difference else ""
        text += f" ({one.exemption})" if one.exemption and one.state != EQUAL else ""
        state = one.state.upper() if one.is_broken else one.state
        rows.append((f"  {state}", one.target, one.file, text))
    lines = [f"{model}: two builds in clean folders, {took}", *format_table(("",) * 4, rows)[1:]]
    lines += [f"  {target} could not be built: {reason}" for target, reason in failed.items()]
    first = builds[0].targets if builds else {}
    for target, end in first.items():
        if end["status"] == "unavailable":
            lines.append(f"  {target} is unavailable here: {end['reason']}")
    return lines


def _conclusion(
    artifacts: Sequence[Artifact], different: Sequence[Artifact], failed: dict[str, str]
) -> str:
    expected = sum(not artifact.exemption for artifact in artifacts)
    if different:
        first = f"first {different[0].target} {different[0].file}"
        return f"not reproducible: {len(different)} of {expected} artifacts differ, {first}"
    if failed:
        return f"not checked: {len(failed)} targets could not be built"
    return f"reproducible: all {expected} artifacts are byte-equal"


@contextmanager
def _clean_folder(*, keep: bool) -> Iterator[Path]:
    """Make a temporary folder; remove it even after Ctrl-C and SIGTERM."""
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
