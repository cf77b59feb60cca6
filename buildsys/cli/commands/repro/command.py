"""doit repro: two clean builds of a model, compared byte by byte."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from buildsys.cli.command import (
    JSON,
    TERMINATED,
    Options,
    ProjectCommand,
    option,
    print_answer,
    unknown_name,
)
from buildsys.cli.commands.repro.two_builds import BUILD, Built, build_twice, report_progress
from buildsys.cli.console.rows import format_table
from buildsys.cli.graph_files import ask_inspection
from buildsys.cli.session import Session
from buildsys.errors import StageError, UsageError
from buildsys.manifest.project import load_project
from buildsys.plan.action import Action
from buildsys.system.backend_registry import describe_backend
from buildsys.system.files import MAX_RESULT_BYTES, read_limited

SCHEMA = "buildsys/repro/1"
# stages whose files are artifacts, in build order
STAGES = (
    "operators", "export", "program", "surgery", "simplify", "reference", "calibrate", "search",
    "convert", "engine", "command",
)  # fmt: skip
_MEASURING_STAGES = ("validate", "verify", "bench", "gate", "report")
_DIFFERENT, _NOT_BUILT = 1, 2
EQUAL, DIFFERENT, NOT_EXPECTED, ONE_SIDED = (
    "equal", "different", "not expected to be equal", "in one build only",
)  # fmt: skip
_PIECE_BYTES = 1 << 20
_LONGEST = 300  # of a difference: names in files may have any length
_TIMES = frozenset({"started", "seconds", "peak_rss_mib", "build_seconds", "phases"})


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
        session = Session(load_project(root))
        model, project = session.one_model("repro", names[:1]), session.project
        plan, targets = list(session.actions.of(model).values()), session.targets_of(names[0])
        if len(targets) == len(plan):
            targets = []
        actions = select_actions(plan, model, names[1:], options["until"], targets)
        with _clean_folder(keep=options["keep"]) as folder:
            builds: list[Built] = []
            dodo = Path(options["dodoFile"]).name
            for built in build_twice(project, dodo, actions, folder):
                builds.append(built)
                if len(built.failed()) == len(actions):
                    break  # the second build would fail in the same way
            report_progress("comparing")
            artifacts: list[Artifact] = []
            if len(builds) == 2:
                artifacts = compare_builds(builds[0].root, builds[1].root, model, actions)
        different = [artifact for artifact in artifacts if artifact.is_broken]
        failed = {name: why for built in reversed(builds) for name, why in built.failed().items()}
        document = {
            "schema": SCHEMA,
            "model": model,
            "status": "failed" if failed else "different" if different else "reproducible",
            "artifacts": [artifact.as_json() for artifact in artifacts],
            "builds": [built.as_json(kept=options["keep"]) for built in builds],
            "failed": failed,
        }
        expected = sum(not artifact.exemption for artifact in artifacts)
        conclusion = f"reproducible: all {expected} artifacts are byte-equal"
        if different:
            first = f"first {different[0].target} {different[0].file}"
            counts = f"{len(different)} of {expected} artifacts differ"
            conclusion = f"not reproducible: {counts}, {first}"
        elif failed:
            conclusion = f"not checked: {len(failed)} targets could not be built"
        lines = _lines(model, builds, artifacts, failed)
        if options["keep"]:
            lines.append(f"kept: {', '.join(str(built.root) for built in builds)}")
        print_answer(options, document, [*lines, conclusion])
        return _NOT_BUILT if failed else _DIFFERENT if different else 0


def select_actions(
    plan: Sequence[Action],
    model: str,
    stages: Sequence[str],
    until: str,
    targets: Sequence[str] = (),
) -> list[Action]:
    """Return the actions to build, with their dependencies, in build order.

    ``targets`` restricts them, as ``stages`` does.
    Raises: UsageError: an unknown stage, or one without artifacts.
    """
    listed = f"stages: {', '.join(STAGES)}"
    named = dict.fromkeys(action.stage for action in plan if action.target in targets)
    for stage in (*named, *stages, *([until] if until else [])):
        if stage in _MEASURING_STAGES:
            raise UsageError(f"{stage} writes measurements, not artifacts to compare", listed)
        if stage not in STAGES:
            raise unknown_name("stage", stage, STAGES, listed)
    if (stages or targets) and until:
        raise UsageError("name stages or --until, not both", "leave one of them out")
    chosen = stages or (STAGES[: STAGES.index(until) + 1] if until else () if targets else STAGES)
    wanted = {one.target for one in plan if one.stage in chosen or one.target in targets}
    for action in reversed(plan):  # each comes after its dependencies
        if action.target in wanted:
            wanted.update(action.after)
    if not wanted:
        raise UsageError(
            f"{model} has no targets of the stage {', '.join(stages)}",
            "`doit list --all` lists the targets",
        )
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
        cut = "…" if len(one.difference) > _LONGEST else ""
        text += f": {one.difference[:_LONGEST]}{cut}" if one.difference else ""
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


@contextmanager
def _clean_folder(*, keep: bool) -> Iterator[Path]:
    """Make a temporary folder; remove it even after Ctrl-C and SIGTERM."""
    folder = Path(tempfile.mkdtemp(prefix="buildsys-repro-")).resolve()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield folder
    finally:
        interrupts = signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupts)


@dataclass(frozen=True)
class Artifact:
    """One file of both builds."""

    target: str
    file: str  # relative to the model's folder
    exemption: str  # why it need not be equal; "" if it must be
    sizes: tuple[int | None, int | None]  # bytes; None if a build has not made it
    first_byte: int | None = None  # the first that differs; None if all are equal
    difference: str = ""  # what is stored there
    field: Mapping[str, Any] | None = None  # of a graph: kind, name, field, and both values

    @property
    def state(self) -> str:
        """Return EQUAL, DIFFERENT, NOT_EXPECTED or ONE_SIDED."""
        if self.first_byte is None and None not in self.sizes:
            return EQUAL
        if self.exemption:
            return NOT_EXPECTED
        return ONE_SIDED if None in self.sizes else DIFFERENT

    @property
    def is_broken(self) -> bool:
        """Return True if it should be equal and is not."""
        return self.state in (DIFFERENT, ONE_SIDED)

    def as_json(self) -> dict[str, Any]:
        """Return the artifact under the field names of the JSON output."""
        return {
            "target": self.target, "file": self.file, "state": self.state,
            "expected": not self.exemption, "why": self.exemption, "bytes": list(self.sizes),
            "first_byte": self.first_byte, "difference": self.difference, "field": self.field,
        }  # fmt: skip


def compare_builds(
    first_root: Path, second_root: Path, model: str, actions: Sequence[Action]
) -> list[Artifact]:
    """Return every file of ``model`` in build order, except logs."""
    first, second = first_root / BUILD, second_root / BUILD
    found = {
        path.relative_to(build).as_posix()
        for build in (first, second)
        for path in (build / model).rglob("*")
        if path.is_file() and path.suffix != ".log"
    }
    declared = {ref.path for action in actions for ref in action.outputs.values()}
    artifacts = []
    for action in actions:
        roles = {ref.path: role for role, ref in action.outputs.items()}
        folder = action.outputs["result"].path.rpartition("/")[0] + "/"
        others = sorted(path for path in found - declared if path.startswith(folder))
        for path in [*(path for path in roles if path in found), *others]:
            found.discard(path)
            file = path.removeprefix(f"{model}/")
            exemption = _exemption(action, roles.get(path))
            artifacts.append(_compare(action.target, file, exemption, first / path, second / path))
    differing = [
        one
        for one in artifacts
        if one.first_byte is not None and one.file.endswith((".onnx", ".onnx.data"))
    ]
    if not differing:
        return artifacts
    pairs = [
        {
            "first": str(first / model / one.file),
            "second": str(second / model / one.file),
            "first_byte": one.first_byte,
        }
        for one in differing
    ]
    try:
        answer = ask_inspection("first_differences", {"pairs": pairs})["differences"]
    except StageError:  # the byte positions must do
        return artifacts
    fields = {one.file: field for one, field in zip(differing, answer, strict=True) if field}
    return [
        replace(one, difference=fields[one.file]["sentence"], field=fields[one.file])
        if one.file in fields
        else one
        for one in artifacts
    ]


def _exemption(action: Action, role: str | None) -> str:
    """Return the reason for accepting differences in a file, if any."""
    if role is None:
        return "an exporter's own report, with times and paths"
    if role == "result":
        return "a record with times"
    if action.stage != "engine":
        return ""
    engine = action.options["engine"]
    return describe_backend(engine["backend"]).not_reproducible(engine)


def _compare(target: str, file: str, exemption: str, first: Path, second: Path) -> Artifact:
    sizes = tuple(path.stat().st_size if path.is_file() else None for path in (first, second))
    artifact = Artifact(target, file, exemption, (sizes[0], sizes[1]))
    if None in sizes:
        return artifact
    position = first_difference(first, second)
    if position is None:
        return artifact
    return replace(artifact, first_byte=position, difference=_describe(first, second))


def first_difference(first: Path, second: Path) -> int | None:
    """Return the position of the first differing byte, None if equal."""
    position = 0
    with first.open("rb") as one, second.open("rb") as other:
        while True:
            here, there = one.read(_PIECE_BYTES), other.read(_PIECE_BYTES)
            if here != there:
                # bisected, as a loop over bytes is slow; here[:low] is equal
                low, high = 0, min(len(here), len(there))
                while low < high:
                    middle = (low + high + 1) // 2
                    if here[low:middle] == there[low:middle]:
                        low = middle
                    else:
                        high = middle - 1
                return position + low
            if not here:
                return None
            position += len(here)


def _describe(first: Path, second: Path) -> str:
    """Return the difference between two JSON or npz files; "" for others."""
    try:
        if first.suffix == ".json":
            here, there = (json.loads(read_limited(f, MAX_RESULT_BYTES)) for f in (first, second))
            key = next(_changed_keys(here, there, ""), "")
            return f"{key} differs" if key else "only times differ"
        if first.suffix != ".npz":
            return ""
        with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
            names, others = one.namelist(), other.namelist()
            if names != others:
                return f"its arrays are {', '.join(names)} and {', '.join(others)}"
            changed = [n for n in names if one.getinfo(n).CRC != other.getinfo(n).CRC]
        return f"array {changed[0].removesuffix('.npy')}" if changed else ""
    except (OSError, ValueError, RecursionError, NotImplementedError, zipfile.BadZipFile):
        return ""


def _changed_keys(first: Any, second: Any, where: str) -> Iterator[str]:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for name in dict.fromkeys((*first, *second)):
            if name not in _TIMES:
                key = f"{where}.{name}" if where else name
                yield from _changed_keys(first.get(name), second.get(name), key)
    elif first != second:
        yield where
