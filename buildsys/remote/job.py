"""A job on another machine: an ordinary build of the project's files from the shared store."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from buildsys.errors import BuildsysError, StageError
from buildsys.execution.provenance import ProvenanceSigner
from buildsys.history.recorder import CHECKOUT_FILE
from buildsys.project.load import Project, empty_project
from buildsys.remote.jobs import JobSummary, TargetSummary
from buildsys.remote.pack import put_history, unpack_earlier_builds, unpack_project
from buildsys.report.result_files import adapter
from buildsys.report.run_results import FAILED, IGNORED, NOT_RUN, RunResults, TargetResult
from buildsys.store.ledger import ActionRecord, Ledger, OutputFile
from buildsys.store.locks import private_folder
from buildsys.store.record_file import encode_record
from buildsys.store.shared_cache import Depot
from buildsys.store.signatures import SigningKey
from buildsys.store.state_db import StateDb, warn_on_stderr
from buildsys.system.git import Checkout
from buildsys.system.processes import die_with_parent

STORE = "BUILDSYS_REMOTE"  # the variable with the address of the shared store
Sign = Callable[[ActionRecord], ActionRecord | None]
_FINISHED = (0, 1, 2, 3)  # exit codes of a build that was not interrupted


def main(arguments: Sequence[str]) -> int:
    """Run ``buildsys job``, which only the driver types.

    An interrupted job writes no summary, so that its system may start it again.
    """
    parser = ArgumentParser(prog="buildsys job")
    for option in ("--run", "--name", "--pack", "--checkout", "--earlier"):
        parser.add_argument(option, default="")
    parser.add_argument("--parent", type=int)
    parser.add_argument("build", nargs="+")
    options = parser.parse_args([*arguments])
    if options.parent:
        die_with_parent(options.parent, signal.SIGTERM)
    started = time.monotonic()
    try:
        depot = Depot(os.environ.get(STORE, ""))
        try:
            with tempfile.TemporaryDirectory(prefix="buildsys-job-") as folder:
                summary = _build(depot, options, Path(folder) / "project")
        except (BuildsysError, OSError) as error:
            sys.stderr.write(f"ERROR: {error}\n")
            summary = JobSummary(StageError.exit_code, error=str(error))
        seconds = time.monotonic() - started
        summary = replace(summary, machine=socket.gethostname(), seconds=seconds)
        if summary.exit_code in _FINISHED:
            content = adapter(JobSummary).dump_json(summary)
            depot.write(options.run, f"{options.name}.json", content)
    except BuildsysError as error:  # the store does not answer
        sys.stderr.write(f"ERROR: {error}\n")
        return StageError.exit_code
    return summary.exit_code


def _build(depot: Depot, options: Namespace, root: Path) -> JobSummary:
    """Build in a new folder. Raises: StageError."""
    unpack_project(depot, _file(options.pack), root)
    project = empty_project(root)
    project.state.mkdir()
    # benchmarks wait for the stages of other jobs on this machine, and these for them
    locks = private_folder("lock", "set TMPDIR to a folder of yours") / "jobs"
    locks.mkdir(exist_ok=True)
    (project.state / "locks").symlink_to(locks)
    checkout = Checkout(**json.loads(options.checkout or "{}"))._replace(run=options.run)
    text = json.dumps(checkout._asdict())
    (project.state / CHECKOUT_FILE).write_text(text, encoding="utf-8")
    if options.earlier:
        unpack_earlier_builds(depot, _file(options.earlier), project)
    results, words = project.build / "nightly/nightly.json", options.build
    if words[0] != "nightly":
        results = project.state / "results.json"
        words[1:1] = ["--results", str(results)]
    code = _run(words, root)
    if code not in _FINISHED:
        return JobSummary(code)
    try:
        run: RunResults = adapter(RunResults).validate_json(results.read_bytes())
    except (OSError, ValueError) as error:
        raise StageError("the build ended without results", "see the log of the job") from error
    key, sign = project.signing().key, None
    if key is not None:
        sign = ProvenanceSigner(SigningKey(key), warn_on_stderr, lambda: checkout).sign_record
    with closing(StateDb(project.state / "state.db")) as db:
        collect = partial(_target, depot, project, Ledger(db), sign)
        targets = tuple(map(collect, run.targets))
    return JobSummary(code, targets=targets, history=put_history(depot, project))


def _run(words: Sequence[str], folder: Path) -> int:
    """Run a command of buildsys; pass on signals, and wait for its end."""
    command = [sys.executable, "-m", "buildsys", *words]
    environment = {"BUILDSYS_WORKER_IDLE": "0", **os.environ}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: process.send_signal(number))
    code = process.wait()
    return code if code >= 0 else 128 - code


def _file(text: str) -> OutputFile:
    digest, _, size = text.partition(":")
    return OutputFile(digest, int(size))


def _target(
    depot: Depot, project: Project, ledger: Ledger, sign: Sign | None, end: TargetResult
) -> TargetSummary:
    """Store the files and the signed record of a target."""
    runs = ledger.history(end.target, 1)
    if not runs or end.status in (NOT_RUN, IGNORED):
        return TargetSummary(end)
    record = ledger.lookup(end.target, runs[0].key) if end.status != FAILED else None
    names = set(record.files) if record else ledger.owned(end.target)
    names |= {end.log.partition("/")[2]} if end.log else set()
    paths = {name: project.build / name for name in sorted(names)}
    files = {name: depot.put(path) for name, path in paths.items() if path.is_file()}
    if record and sign:
        record = sign(record)  # None with an unusable key
    stored = depot.put_bytes(encode_record(record)) if record else None
    return TargetSummary(end, runs[0], stored, ledger.reads(end.target), files)
