"""doit run-action: one requested target, built without its project."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from buildsys.cli.command import (
    JSON,
    TERMINATED,
    Options,
    PlainCommand,
    option,
    print_json,
    print_lines,
)
from buildsys.cli.environment_variables import check_variables
from buildsys.cli.project_root import typed_path
from buildsys.cli.remote_jobs import (
    FACTS,
    STORE_OPTIONS,
    RequestPlace,
    answer_name,
    end_with_stdin,
    next_order,
    number_of_seconds,
    request_digest,
    write_answer,
)
from buildsys.errors import (
    BuildsysError,
    CheckFailed,
    StageError,
    TemporaryError,
    Unavailable,
    UsageError,
    WorkerDied,
    with_hint,
)
from buildsys.execution.action_request import (
    BUILD,
    STATE,
    ActionRequest,
    RequestedBaselines,
    check_machine,
    load_request,
    materialize,
)
from buildsys.execution.executor import Executor
from buildsys.execution.job_answer import ERROR, Answer
from buildsys.execution.job_answer import SCHEMA as ANSWER_SCHEMA
from buildsys.execution.model_jobs import LINGERS_AFTER
from buildsys.execution.outcome import Outcome
from buildsys.execution.provenance import ProvenanceSigner
from buildsys.plan.action import RESULT, Action
from buildsys.report.formatting import duration
from buildsys.store.file_digests import hash_file
from buildsys.store.ledger import FAILED, PASSED, UNAVAILABLE, ActionRecord, OutputFile
from buildsys.store.object_store import Store
from buildsys.store.publish import remove_abandoned, temporary_folder
from buildsys.store.state_db import StateDb, warn_on_stderr
from buildsys.system.files import read_end
from buildsys.system.interpreters.toolchain import OVERRIDE_PREFIX
from buildsys.workers.client.pool import JobReply, WorkerPool

SCHEMA = "buildsys/run-action/1"
NOT_HERE = 69  # EX_UNAVAILABLE of sysexits.h
_LOG_LINES, _LOG_BYTES = 30, 64 << 10


class RunAction(PlainCommand):
    """Build a requested target and publish its outputs."""

    name = "run-action"
    doc_purpose = "build a target of request-action on this machine, without its project"
    doc_usage = "DIGEST --store URL"
    doc_description = (
        "Exit codes: 0 built, or in the store already; 1 the check failed; 2 the stage failed;\n"
        "3 wrong use, or a request that this machine cannot serve; 69 the target is unavailable\n"
        "here; 75 a problem that another attempt may not meet (store, killed worker, full disk).\n"
        "Requests contain code: run only those of people who may use this machine."
    )
    options = (
        *STORE_OPTIONS,
        option(
            "trusted_key",
            "run only requests, and take only records, signed by this key (repeatable)",
            type=list,
            default=[],
        ),
        option(
            "rebuild", "run the stage even if the store has its outputs", type=bool, default=False
        ),
        option("keep", "work in this new folder and keep it"),
        option("linger", "wait so long for another request, as executors ask"),
        JSON,
    )

    def perform(self, names: Sequence[str], options: Options) -> int:
        """Return the exit code of the last outcome."""
        end_with_stdin(options)
        linger_s = number_of_seconds(options, "linger", 0.0) if options["answer"] else 0.0
        place = cache(lambda: RequestPlace.of(options))
        while True:
            try:
                code = _answer(names, options, place)
            except BuildsysError as error:
                if not linger_s or error.exit_code not in LINGERS_AFTER:
                    raise
                sys.stderr.write(f"ERROR: {error}\n")
                code = error.exit_code
            if not linger_s or code not in LINGERS_AFTER:
                return code
            order = next_order(place().shared, options["answer"], linger_s)
            if order is None:
                return code
            names, linger_s = [order.request], order.linger
            options = {**options, "answer": order.answer, "rebuild": order.rebuild}


def _answer(names: Sequence[str], options: Options, place: Callable[[], RequestPlace]) -> int:
    """Run a request and print its outcome; return its exit code.

    Raises: BuildsysError: it failed, and its outcome is not wanted as JSON.
    """
    document: dict[str, Any] = {"schema": SCHEMA, "request": "".join(names[:1])}
    log: list[str] = []
    try:
        code = _run(names, options, place, document, log)
    except (BuildsysError, OSError) as error:
        failure = _failure(error)
        document |= {**_ended(failure), "log": log}
        if not options["json"]:
            sys.stderr.writelines(f"{line}\n" for line in log)
            raise failure from None
        code = failure.exit_code
    if options["json"]:
        print_json(document)
    return code


@dataclass
class _Run:
    """One run of a request."""

    place: RequestPlace
    request: ActionRequest
    rebuild: bool  # even if the store has its outputs
    project: Path
    store: Store
    made: dict[str, Any] = field(default_factory=dict)  # fields of the answer


class _ObservedPool(WorkerPool):
    """A pool with the reply of its only job."""

    reply: JobReply | None = None
    failure: StageError | None = None

    def run(self, *args: Any, **options: Any) -> JobReply:
        try:
            self.reply = super().run(*args, **options)
        except StageError as error:
            self.failure = error
            raise
        return self.reply


def _run(
    names: Sequence[str],
    options: Options,
    connect: Callable[[], RequestPlace],
    document: dict[str, Any],
    log: list[str],
) -> int:
    """Run a request; add its outcome to ``document``, a failed log's end to ``log``.

    Raises: BuildsysError, OSError: it failed, with the exit code of the error.
    """
    check_variables(Path.cwd(), _without_toolchains(os.environ))
    digest = request_digest("run-action", names, "`doit request-action TARGET --store URL`")
    name, place = answer_name(options), connect()
    made: dict[str, Any] = {}  # fields of the answer

    def answer(fields: Mapping[str, Any]) -> None:
        if name:
            known = Answer(ANSWER_SCHEMA, name, digest, ERROR, UsageError.exit_code)
            write_answer(place.shared, replace(known, **fields), place.key)

    try:
        request = load_request(place.shared, digest, place.trust)
        document |= {"target": request.action.target, "key": request.key}
        with _work_folder(place.folder, request.action.target, options["keep"]) as project:
            store = Store(project / STATE / "store")
            materialize(request, place.shared, store, project)
            run = _Run(place, request, options["rebuild"], project, store)
            try:
                outcome, record = _build(run)
            except StageError:
                log += _end_of_log(project, request.action)
                raise
            finally:
                made |= run.made
                if name:
                    made |= _stored_files(run)
    except (BuildsysError, OSError) as error:
        ended = _ended(_failure(error))
        # the stage gives the reason of a failed check, the error its files here
        answer(ended | made if isinstance(error, CheckFailed) else made | ended)
        raise
    code = NOT_HERE if outcome.status == UNAVAILABLE else 0
    answer(made | {"status": outcome.status, "exit_code": code})
    document |= {
        "seconds": outcome.seconds,
        "key": record.key if record else "",
        "status": "restored" if outcome.restored else outcome.status,
        "reason": outcome.reason,
        "hint": outcome.hint,
        "exit_code": code,
    }
    if not options["json"]:
        print_lines(_in_words(request.action.target, outcome).splitlines())
    return code


def _in_words(target: str, outcome: Outcome) -> str:
    if outcome.status == UNAVAILABLE:
        return f"{target} is unavailable here: {with_hint(outcome.reason, outcome.hint)}"
    if outcome.restored:
        return f"{target} was in the store already"
    return f"{target} was built in {duration(outcome.seconds)}"


def _build(run: _Run) -> tuple[Outcome, ActionRecord | None]:
    """Build the target, and check its record in the store.

    Raises: BuildsysError: it failed.
    """
    project, action = run.project, run.request.action
    target = action.target
    timing_caches = os.environ.get("BUILDSYS_TIMING_CACHES")
    signer = None
    if run.place.key is not None:
        signer = ProvenanceSigner(run.place.key, warn_on_stderr, lambda: run.request.source)

    def before_stage() -> None:
        run.place.shared.check_writable()
        if signer is not None:
            signer.prepare()

    # all requests share their servers: another folder would start new ones
    facts = StateDb(run.place.folder / FACTS)
    with closing(facts), closing(_ObservedPool(run.place.folder)) as pool:
        executor = Executor(
            project,
            project / BUILD,
            project / STATE,
            {target: replace(action, required=False)},
            pool=pool,
            store=run.store,
            remote=run.place.shared,
            signer=signer,
            trust=run.place.trust,
            timing_caches=Path(timing_caches or run.place.folder / "timing_caches").absolute(),
            before_stage=before_stage,
            locks=run.place.folder / "locks",
            facts=facts,
            baselines=RequestedBaselines(run.request, project / BUILD),
        )
        try:
            here = executor.examine(target)
            if here.key is None:
                raise StageError(here.unreadable, "run it again")
            check_machine(run.request, here.key)
            outcome = executor.run(target, force=run.rebuild)
            record = executor.ledger.lookup(target)
        finally:
            pool.close()
            run.made |= _recorded(executor, target) | _said(pool)
            executor.close()  # waits for the outputs to be shared
    # what was restored has just been read there: the store of this run was empty
    is_shared = outcome.status == PASSED and not action.measures and not outcome.restored
    if is_shared and (record is None or run.place.shared.read_action(target, record.key) is None):
        problem = f"{target} was built, but its record is not in the store"
        raise TemporaryError(problem, "run it again; see the warnings above")
    return outcome, record


def _recorded(executor: Executor, target: str) -> dict[str, Any]:
    """Return the ledger's facts about the target, as answer fields."""
    record = executor.ledger.lookup(target)
    found: dict[str, Any] = {"files": dict.fromkeys(executor.ledger.owned(target))}
    if record is not None:
        found |= {
            "key": record.key,
            "reads": executor.ledger.reads(target),
            "reason": record.reason,
            "hint": record.hint,
            "seconds": record.seconds,
            "figures": record.figures,
        }
    return found


def _said(pool: _ObservedPool) -> dict[str, Any]:
    """Return what the stage has said, as fields of an answer."""
    if pool.reply is not None:
        names = ("reason", "hint", "seconds", "figures", "peak_rss_mib")
        return {name: getattr(pool.reply, name) for name in names}
    if isinstance(pool.failure, CheckFailed | Unavailable):
        return {"reason": pool.failure.problem, "hint": pool.failure.hint}
    return {}


def _stored_files(run: _Run) -> dict[str, Any]:
    """Store the target's files and log; return them as answer fields."""
    build, action = run.project / BUILD, run.request.action
    log = _log(run.project, action)
    found = {name: _stored(run.store, build / name) for name in run.made.get("files", ())}
    files = {name: file for name, file in found.items() if file is not None}
    stored_log = _stored(run.store, log)
    objects = [*files.values(), *([stored_log] if stored_log else [])]
    run.place.shared.push_objects(objects, run.store)
    return {"files": files, "log": stored_log}


def _stored(store: Store, path: Path) -> OutputFile | None:
    """Add a file to a store, if it exists."""
    if not path.is_file():
        return None
    digest, stamp = hash_file(str(path))
    file = OutputFile(digest, stamp.size)
    return file if store.put(path, file) else None


def _failure(error: BuildsysError | OSError) -> BuildsysError:
    """Return the error of a command for any error."""
    if not isinstance(error, BuildsysError):  # most likely a full disk
        problem = ": ".join(filter(None, (error.filename, error.strerror)))
        return TemporaryError(problem, "check the disk, or use another machine")
    if isinstance(error, WorkerDied) and error.was_killed:
        return TemporaryError(error.problem, error.hint)
    return error


def _ended(error: BuildsysError) -> dict[str, Any]:
    """Return the fields of a document for a failure."""
    status = FAILED if isinstance(error, CheckFailed) else ERROR
    reason, hint = getattr(error, "problem", str(error)), getattr(error, "hint", "")
    return {"status": status, "exit_code": error.exit_code, "reason": reason, "hint": hint}


@contextmanager
def _work_folder(private: Path, target: str, keep: str) -> Iterator[Path]:
    """Yield an empty folder; those of killed runs are removed.

    Raises: UsageError: the folder to keep exists.
    """
    if keep:
        folder = typed_path(keep).absolute()
        if folder.exists():
            raise UsageError(f"--keep: {keep} exists", "name a new folder")
        folder.mkdir(parents=True)
        yield folder
        return
    remove_abandoned(private)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        with temporary_folder(private, target) as folder:
            yield folder
    finally:
        signal.signal(signal.SIGTERM, before)


def _log(project: Path, action: Action) -> Path:
    return (project / BUILD / action.outputs[RESULT].path).with_suffix(".log")


def _end_of_log(project: Path, action: Action) -> list[str]:
    """Return the last lines of the stage's log."""
    return read_end(_log(project, action), _LOG_BYTES).splitlines()[-_LOG_LINES:]


def _without_toolchains(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the interpreters of toolchains."""
    return {n: value for n, value in environment.items() if not n.startswith(OVERRIDE_PREFIX)}
