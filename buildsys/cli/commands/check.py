"""buildsys check: more comparisons with the original model, or two builds byte by byte."""

import filecmp
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.cli.command import add_json, add_names, positive_integer, print_answer
from buildsys.cli.console.rows import format_table
from buildsys.cli.interrupts import TERMINATED
from buildsys.cli.session import BuildSession
from buildsys.cli.worker_pool import run_stage
from buildsys.errors import StageError, UsageError
from buildsys.manifest.shape_cases import changes_golden, format_dims
from buildsys.plan.action import RESULT, Action
from buildsys.plan.graph_points import graph_points, size_ranges
from buildsys.project.load import Project
from buildsys.stages.table import ENGINE, REFERENCE, VALIDATE, stage_info, target_of
from buildsys.store.locks import machine_lock_folder
from buildsys.system.backend_registry import describe_backend
from buildsys.system.processes import package_environment

SCHEMA = "buildsys/stress/1"
_STAGE = "buildsys.stages.validate.stress"
_COLUMNS = ("sizes", "seed>", "values", "graph", "output", "difference")
_VALUES = {0: "as data", 1: "extreme", -1: "extreme, mirrored"}
REPRODUCIBLE_SCHEMA = "buildsys/repro/3"
EQUAL, DIFFERENT = "equal", "different"
NOT_EXPECTED, NOT_BUILT = "not expected to be equal", "not built"
# paths of different length and depth: a path in a file shifts all that follows
_FOLDERS = {"1": "a/project", "4242": "the-second-of-two/deeper/checkout"}  # by hash seed
_COPIED_BYTES = 1 << 20  # larger files (weights, data) are linked: their place does not matter
BUILD_PROGRAM = "from buildsys.cli.main import main; main()"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys check``."""
    add_names(parser, "MODEL | --reproducible TARGET [...]")
    parser.add_argument(
        "-n", "--count", type=positive_integer, default=50, help="number of sizes and inputs"
    )
    parser.add_argument("--seed", type=positive_integer, help="first seed; default: a new one")
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="build targets twice in clean folders and compare the artifacts byte by byte",
    )
    parser.add_argument(
        "--keep", action="store_true", help="--reproducible: keep both folders, print their paths"
    )
    add_json(parser)


def run(options: Namespace) -> int:
    """Return 1 for a difference, or if nothing was compared."""
    session = BuildSession.read_only(options.root)
    if options.reproducible:
        return compare_two_builds(session, options)
    model = session.one_model("check", options.names)
    seed = options.seed or random.SystemRandom().randrange(1, 1 << 31)
    comparison = compare_more_inputs(session, model, options.count, seed)
    document = {"schema": SCHEMA, "model": model, "seed": seed, **comparison}
    print_answer(options, document, _lines(model, document))
    return 1 if comparison["failures"] or not comparison["compared"] else 0


def compare_more_inputs(session: BuildSession, model: str, count: int, seed: int) -> dict[str, Any]:
    """Compare a model's graphs with the original in a worker, outside the build folder.

    Raises: UsageError: its graphs are not up to date, or not comparable.
    """
    project, spec = session.project, session.project.models[model].data
    actions = session.actions.of(model)
    if target_of(VALIDATE, model) not in actions:
        raise UsageError(f"{model} has no ONNX graph to compare", "name a model with an export")
    validate, reference = (actions[target_of(stage, model)] for stage in (VALIDATE, REFERENCE))
    session.require_fresh(validate.after, validate.target)
    points = graph_points(spec)
    if changes_golden((*points.unsimplified.steps, *points.final.steps)):
        problem = f"surgery changes the inputs or outputs of {model}, so its graphs cannot be"
        hint = "run it for a model without such steps"
        raise UsageError(f"{problem} compared with the original model", hint)
    files = {**reference.inputs, **validate.inputs}
    inputs = {role: project.build / ref.path for role, ref in files.items()}
    drawn = {"count": count, "seed": seed, "spans": size_ranges(points.exported)}
    options = {**validate.options, **reference.options, **drawn}
    target = f"stress:{model}"
    result = run_stage(project, _STAGE, target, options, inputs, server=reference.server)
    return {name: result[name] for name in ("count", "compared", "skipped", "failures")}


def _lines(model: str, comparison: Mapping[str, Any]) -> list[str]:
    failures, skipped, compared = (comparison[n] for n in ("failures", "skipped", "compared"))
    rows = [
        (
            format_dims(entry["dims"]),
            str(entry["seed"]),
            _VALUES[entry["extreme"]],
            *(entry[column] for column in ("graph", "output", "problem")),
        )
        for entry in failures
    ]
    lines = format_table(_COLUMNS, rows) if rows else []
    if skipped:
        lines.append(f"{len(skipped)} not compared, the first: {skipped[0]['problem']}")
    wrong = len({entry["run"] for entry in failures})
    state = f"{wrong} of {compared} runs differ" if wrong else "no run differs"
    again = f"repeat with --seed {comparison['seed']}"
    return [*lines, f"{model}: {compared} runs compared, {state} ({again})"]


def compare_two_builds(session: BuildSession, options: Namespace) -> int:
    """Build targets twice in copies of the project and compare the artifacts.

    Returns 1 for an unexpected difference. Raises: StageError: a target cannot be built.
    """
    names = session.in_order(session.needed(session.select(options.names)))
    planned = [session.actions[name] for name in names]
    actions = [action for action in planned if stage_info(action.stage).has_artifacts]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    folder = Path(tempfile.mkdtemp(prefix="buildsys-repro-")).resolve()
    roots = [folder / place for place in _FOLDERS.values()]
    try:
        for seed, root in zip(_FOLDERS, roots, strict=True):
            build_copy(session.project, actions, root, seed)
        artifacts = compare_builds(roots[0] / "build", roots[1] / "build", actions)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    different = [artifact for artifact in artifacts if artifact.state == DIFFERENT]
    expected = sum(artifact.is_expected for artifact in artifacts)
    conclusion = f"reproducible: all {expected} artifacts are byte-equal"
    if different:
        count = f"{len(different)} of {expected} artifacts differ"
        conclusion = f"not reproducible: {count}, first {different[0].target} {different[0].file}"
    folders = [str(root) for root in roots if options.keep]
    rows = [(f"  {a.state}", a.target, a.file, a.detail) for a in artifacts]
    lines = format_table(("",) * 4, rows)[1:]
    document = {
        "schema": REPRODUCIBLE_SCHEMA,
        "status": "different" if different else "reproducible",
        "artifacts": [artifact._asdict() for artifact in artifacts],
        "folders": folders,
    }
    print_answer(options, document, [*lines, *(f"kept: {root}" for root in folders), conclusion])
    return 1 if different else 0


def build_copy(project: Project, actions: Sequence[Action], root: Path, seed: str) -> None:
    """Copy the project to ``root`` and build there without any cache; stdout goes to stderr.

    Raises: StageError: a target failed. OSError: the project cannot be copied.
    """
    copy_project(project.root, root, {project.build, project.state, *root.parents})
    (root.parent / "tmp").mkdir()
    environment = {
        **package_environment(),
        # an empty value stands for the default, which is in the copy
        **dict.fromkeys(("BUILDSYS_HISTORY", "BUILDSYS_STORE", "BUILDSYS_REMOTE"), ""),
        "BUILDSYS_BUILD": "build",
        "BUILDSYS_MACHINE_LOCK": str(machine_lock_folder()),
        "BUILDSYS_WORKER_IDLE": "0",
        "PYTHONHASHSEED": seed,
        "TMPDIR": str(root.parent / "tmp"),
    }
    command = [sys.executable, "-c", BUILD_PROGRAM, "build", *(a.target for a in actions)]
    with subprocess.Popen(command, env=environment, cwd=root, stdout=sys.stderr) as process:
        try:
            code = process.wait()
        finally:
            process.terminate()  # after an interruption; it ends its workers
            process.wait()
    if code:
        problem = f"the build in {root} failed, so nothing was compared"
        raise StageError(problem, f"`buildsys build {actions[-1].model}` shows the cause")


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


class Artifact(NamedTuple):
    """One file of both builds."""

    target: str
    file: str
    state: str  # EQUAL, DIFFERENT, NOT_EXPECTED or NOT_BUILT
    detail: str = ""  # why equality is not expected

    @property
    def is_expected(self) -> bool:
        """True if a difference would be a fault."""
        return self.state in (EQUAL, DIFFERENT)


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
            are_built = [path.is_file() for path in pair]
            state, detail = EQUAL, ""
            if role == RESULT or (ref.optional and not any(are_built)):
                continue
            if not any(are_built):
                state = NOT_BUILT
            elif not all(are_built):
                state, detail = DIFFERENT, "only one build has it"
            elif not filecmp.cmp(*pair, shallow=False):
                state, detail = (NOT_EXPECTED, exemption) if exemption else (DIFFERENT, "")
            file = ref.path.removeprefix(f"{action.model}/")
            artifacts.append(Artifact(action.target, file, state, detail))
    return artifacts
