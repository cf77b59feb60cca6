"""buildsys check: more comparisons with the original model, or two builds byte by byte."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.cli.command import (
    TERMINATED,
    add_json,
    add_names,
    natural_number,
    positive_integer,
    print_answer,
    unknown_name,
)
from buildsys.cli.console.rows import format_table
from buildsys.cli.graph_differences import difference_lines
from buildsys.cli.graph_files import ask_inspection, graph_request, require_graph
from buildsys.cli.session import BuildSession
from buildsys.cli.worker_pool import run_stage
from buildsys.errors import StageError, UsageError
from buildsys.execution.freshness import FRESH
from buildsys.manifest.shape_cases import format_dims
from buildsys.plan.action import RESULT, Action
from buildsys.plan.graph_points import changes_golden, graph_points, size_ranges
from buildsys.project.load import STATE_FOLDER, Project, load_project
from buildsys.report.formatting import plural
from buildsys.report.result_files import adapter
from buildsys.report.run_results import FAILED, FINISHED, NOT_RUN, UNAVAILABLE, RunResults
from buildsys.stages.table import ENGINE, REFERENCE, STAGE_INFO, VALIDATE, stage_info, target_of
from buildsys.store.locks import machine_lock_folder
from buildsys.system.backend_registry import describe_backend
from buildsys.system.processes import package_environment

SCHEMA = "buildsys/stress/1"
_STAGE = "buildsys.stages.validate.stress"
_COLUMNS = ("run>", "sizes", "seed>", "values", "graph", "output", "difference")
_VALUES = {0: "as data", 1: "extreme", -1: "extreme, mirrored"}
REPRODUCIBLE_SCHEMA = "buildsys/repro/2"
EQUAL, DIFFERENT, NOT_EXPECTED = "equal", "different", "not expected to be equal"
_NOT_REPRODUCIBLE, _NOT_BUILT = 1, 2
# paths of different length and depth: a path in a file shifts all that follows
_FOLDERS = {"1": "a/project", "4242": "the-second-of-two/deeper/checkout"}  # by hash seed
_COPIED_BYTES = 1 << 20  # larger files (weights, data) are linked: their place does not matter
_PIECE_BYTES = 1 << 16
BUILD_PROGRAM = "from buildsys.cli.main import main; main()"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys check``."""
    add_names(parser, "MODEL | --reproducible MODEL [STAGE ...]")
    parser.add_argument(
        "-n", "--count", type=positive_integer, default=50, help="number of sizes and inputs"
    )
    parser.add_argument(
        "--seed", type=natural_number, help="first seed; default: a new one in each run"
    )
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="build the model twice in clean folders and compare the artifacts byte by byte",
    )
    parser.add_argument(
        "--keep", action="store_true", help="--reproducible: keep both folders, print their paths"
    )
    add_json(parser)


def run(options: Namespace) -> int:
    """Return 1 for a difference, or if nothing was compared."""
    if options.reproducible:
        return compare_two_builds(options)
    if options.keep:
        raise UsageError("--keep keeps the folders of two builds", "add --reproducible")
    session = BuildSession.read_only(options.root)
    model = session.one_model("check", options.names)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    comparison = compare_more_inputs(session, model, options.count, seed)
    document = {"schema": SCHEMA, "model": model, "seed": seed, **comparison}
    print_answer(options, document, _lines(model, document))
    return 1 if comparison["failures"] or not comparison["compared"] else 0


def compare_more_inputs(session: BuildSession, model: str, count: int, seed: int) -> dict[str, Any]:
    """Compare a model's graphs with the original in a worker, outside the build folder.

    Raises: UsageError: its graphs are not up to date, or not comparable.
    """
    project, spec = session.project, session.project.models[model].data
    require_graph(project, model)
    actions = session.actions.of(model)
    validate, reference = (actions[target_of(stage, model)] for stage in (VALIDATE, REFERENCE))
    states = session.explain(validate.after)
    if stale := [target for target in validate.after if states[target].state != FRESH]:
        hint = f"run `buildsys build {validate.target}` first"
        raise UsageError(f"{stale[0]} is not up to date", hint)
    points = graph_points(spec)
    if changes_golden((*points.unsimplified.steps, *points.final.steps)):
        problem = f"surgery changes the inputs or outputs of {model}, so its graphs cannot be"
        hint = "run it for a model without such steps"
        raise UsageError(f"{problem} compared with the original model", hint)
    files = {**reference.inputs, **validate.inputs}
    inputs = {role: project.build / ref.path for role, ref in files.items()}
    drawn = {"count": count, "seed": seed, "spans": size_ranges(spec, points.exported)}
    options = {**validate.options, **reference.options, **drawn}
    target = f"stress:{model}"
    result = run_stage(project, _STAGE, target, options, inputs, server=reference.server)
    return {name: result[name] for name in ("count", "compared", "skipped", "failures")}


def _lines(model: str, comparison: Mapping[str, Any]) -> list[str]:
    failures, skipped = comparison["failures"], comparison["skipped"]
    wrong = len({entry["run"] for entry in failures})
    rows = [
        (
            str(entry["run"]), format_dims(entry["dims"]), str(entry["seed"]),
            _VALUES[entry["extreme"]], entry["graph"], entry["output"], entry["problem"],
        )
        for entry in failures
    ]  # fmt: skip
    lines = format_table(_COLUMNS, rows) if rows else []
    if skipped:
        lines.append(f"{len(skipped)} not compared, the first: {skipped[0]['problem']}")
    again = f"repeat with --seed {comparison['seed']}"
    state = f"{wrong} of {comparison['compared']} runs differ" if wrong else "no run differs"
    return [*lines, f"{model}: {comparison['compared']} runs compared, {state} ({again})"]


def compare_two_builds(options: Namespace) -> int:
    """Build a model twice and compare the artifacts.

    ``options`` has ``names`` (the model and stages), ``keep`` and ``json``. Return 1 for an
    unexpected difference, 2 for a failed build.
    """
    session = BuildSession(load_project(options.root))
    model = session.one_model("check", options.names[:1])
    actions = select_actions(list(session.actions.of(model).values()), model, options.names[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    folder = Path(tempfile.mkdtemp(prefix="buildsys-repro-")).resolve()
    try:
        return _build_twice(session.project, model, actions, folder, options)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def select_actions(plan: Sequence[Action], model: str, stages: Sequence[str]) -> list[Action]:
    """List the actions with artifacts, of some stages and their dependencies, in build order.

    Raises: UsageError: an unknown stage, or one without artifacts.
    """
    with_artifacts = {action.stage: 0 for action in plan if stage_info(action.stage).has_artifacts}
    listed = f"stages of {model}: {', '.join(with_artifacts)}"
    for stage in stages:
        if stage in STAGE_INFO and not stage_info(stage).has_artifacts:
            raise UsageError(f"{stage} writes measurements, not artifacts to compare", listed)
        if stage not in with_artifacts:
            raise unknown_name("stage", stage, with_artifacts, listed)
    chosen = {action.target for action in plan if action.stage in (stages or with_artifacts)}
    for action in reversed(plan):  # each comes after its dependencies
        if action.target in chosen:
            chosen.update(action.after)
    return [action for action in plan if action.target in chosen]


def _build_twice(
    project: Project, model: str, actions: Sequence[Action], folder: Path, options: Namespace
) -> int:
    builds: list[RunResults] = []
    roots = [folder / place for place in _FOLDERS.values()]
    for seed, root in zip(_FOLDERS, roots, strict=True):
        builds.append(build_copy(project, actions, root, seed))
        if any(target.status == FAILED for target in builds[0].targets):
            break  # the second build would fail in the same way
    ends = [target for build in builds for target in build.targets]
    failed = {target.target: target.reason for target in ends if target.status == FAILED}
    not_built = {
        target.target: target.reason for target in ends if target.status in (UNAVAILABLE, NOT_RUN)
    }
    artifacts = []
    if not failed:
        artifacts = compare_builds(roots[0] / "build", roots[1] / "build", actions)
    broken = [artifact for artifact in artifacts if artifact.state == DIFFERENT]
    expected = sum(not artifact.exemption for artifact in artifacts)
    conclusion = f"reproducible: all {expected} artifacts are byte-equal"
    if failed:
        conclusion = f"not checked: {plural(len(failed), 'target')} could not be built"
    elif broken:
        count = f"{len(broken)} of {expected} artifacts differ"
        conclusion = f"not reproducible: {count}, first {broken[0].target} {broken[0].file}"
    folders = roots if options.keep else []
    lines = [f"  {target} could not be built: {reason}" for target, reason in failed.items()]
    lines += format_table(("",) * 4, [artifact.row() for artifact in artifacts])[1:]
    lines += [f"  {name} was not built: {why}" for name, why in not_built.items() if not failed]
    lines += [f"kept: {root}" for root in folders]
    document = {
        "schema": REPRODUCIBLE_SCHEMA,
        "model": model,
        "status": "failed" if failed else "different" if broken else "reproducible",
        "artifacts": [artifact.as_json() for artifact in artifacts],
        "folders": [str(root) for root in folders],
        "seconds": [round(build.seconds, 3) for build in builds],
        "failed": failed,
        "not_built": not_built,
    }
    print_answer(options, document, [*lines, conclusion])
    return _NOT_BUILT if failed else _NOT_REPRODUCIBLE if broken else 0


def build_copy(project: Project, actions: Sequence[Action], root: Path, seed: str) -> RunResults:
    """Copy the project to ``root`` and build there without any cache; stdout goes to stderr.

    Raises: StageError: the build ended in the middle. OSError: the project cannot be copied.
    """
    copy_project(project.root, root, {project.build, project.state, *root.parents})
    (root.parent / "tmp").mkdir()
    configs = project.configs
    if configs.is_relative_to(project.root):
        configs = configs.relative_to(project.root)
    environment = {
        **package_environment(),
        "BUILDSYS_BUILD": "build",
        "BUILDSYS_CONFIGS": str(configs),
        "BUILDSYS_MACHINE_LOCK": str(machine_lock_folder()),
        "BUILDSYS_HISTORY": str(root / STATE_FOLDER / "history.db"),
        "BUILDSYS_STORE": str(root / STATE_FOLDER / "store"),
        "BUILDSYS_REMOTE": "",
        "BUILDSYS_WORKER_IDLE": "0",
        "PYTHONHASHSEED": seed,
        "TMPDIR": str(root.parent / "tmp"),
    }
    results = root.parent / "results.json"
    command = [sys.executable, "-c", BUILD_PROGRAM, "build", "--continue"]
    command += ["--results", str(results), *(action.target for action in actions)]
    with subprocess.Popen(command, env=environment, cwd=root, stdout=sys.stderr) as process:
        try:
            process.wait()
        finally:
            process.terminate()  # after an interruption; it ends its workers
            process.wait()
    run: RunResults = adapter(RunResults).validate_json(results.read_bytes())
    if run.status != FINISHED:
        problem = f"the build in {root} ended with exit code {process.returncode}: {run.error}"
        raise StageError(problem, "run `buildsys build` for its error")
    return run


def copy_project(folder: Path, target: Path, without: Collection[Path]) -> None:
    """Copy a folder of a project to the new folder ``target``, except ``without``.

    Large files, hidden folders, virtual environments and links become links; special files are
    left out. Raises: OSError: something cannot be read or written.
    """
    target.mkdir(parents=True)
    for path in folder.iterdir():
        copy, is_folder = target / path.name, path.is_dir()
        if path in without or path.name == "__pycache__":
            continue
        is_apart = path.is_symlink() or path.name.startswith(".") or (path / "pyvenv.cfg").exists()
        if is_folder and not is_apart:
            copy_project(path, copy, without)
        elif is_folder or path.is_symlink() or path.stat().st_size > _COPIED_BYTES:
            copy.symlink_to(path)
        elif path.is_file():
            shutil.copy(path, copy)


@dataclass(frozen=True)
class Artifact:
    """One file of both builds."""

    target: str
    file: str
    exemption: str  # why it need not be equal; "" if it must be
    sizes: tuple[int | None, ...]  # bytes; None if a build has not made it
    first_byte: int | None = None  # the first that differs
    difference: str = ""  # what is stored there

    @property
    def state(self) -> str:
        """EQUAL, DIFFERENT or NOT_EXPECTED."""
        if self.first_byte is None and None not in self.sizes:
            return EQUAL
        return NOT_EXPECTED if self.exemption else DIFFERENT

    def row(self) -> tuple[str, str, str, str]:
        """Describe the file in a row of a table."""
        sizes = ["none" if size is None else f"{size} bytes" for size in self.sizes]
        text = " / ".join(dict.fromkeys(sizes))
        text += f", first differing byte {self.first_byte}" if self.first_byte is not None else ""
        text += f": {self.difference}" if self.difference else ""
        text += f" ({self.exemption})" if self.state == NOT_EXPECTED else ""
        state = self.state.upper() if self.state == DIFFERENT else self.state
        return f"  {state}", self.target, self.file, text

    def as_json(self) -> dict[str, Any]:
        """Convert the artifact to the field names of the JSON output."""
        return {
            "target": self.target, "file": self.file, "state": self.state,
            "expected": not self.exemption, "why": self.exemption, "bytes": list(self.sizes),
            "first_byte": self.first_byte, "difference": self.difference,
        }  # fmt: skip


def compare_builds(first: Path, second: Path, actions: Sequence[Action]) -> list[Artifact]:
    """Compare the artifacts in two build folders; records have times and are left out."""
    artifacts = []
    for action in actions:
        exemption = ""
        if action.stage == ENGINE:
            engine = action.options["engine"]
            exemption = describe_backend(engine["backend"]).not_reproducible(engine)
        for role, ref in action.outputs.items():
            pair = first / ref.path, second / ref.path
            if role == RESULT or not any(path.is_file() for path in pair):
                continue
            sizes = tuple(path.stat().st_size if path.is_file() else None for path in pair)
            position = None if None in sizes else first_difference(*pair)
            text = "" if position is None else _describe(*pair)
            file = ref.path.removeprefix(f"{action.model}/")
            artifacts.append(Artifact(action.target, file, exemption, sizes, position, text))
    return artifacts


def first_difference(first: Path, second: Path) -> int | None:
    """Find the position of the first differing byte, None if the files are equal."""
    position = 0
    with first.open("rb") as left, second.open("rb") as other:
        while True:
            here, there = left.read(_PIECE_BYTES), other.read(_PIECE_BYTES)
            if here != there:
                pairs = enumerate(zip(here, there, strict=False))
                common = min(len(here), len(there))
                return position + next((index for index, (a, b) in pairs if a != b), common)
            if not here:
                return None
            position += len(here)


def _describe(first: Path, second: Path) -> str:
    """Name the first difference of two graphs, "" if unknown."""
    if not first.name.endswith((".onnx", ".onnx.data")):
        return ""
    graphs = [path.with_name(path.name.removesuffix(".data")) for path in (first, second)]
    pair = {"first": graph_request(graphs[0]), "second": graph_request(graphs[1])}
    try:
        lines = difference_lines(ask_inspection("compare", pair))
        return " ".join(next(lines, "only in metadata").split())
    except StageError:
        return ""  # the position must do
