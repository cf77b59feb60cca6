"""doit run-action: one requested target, built without its project."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from buildsys.cli.commands.request_action import TIMEOUT_S, store_url
from buildsys.cli.environment_variables import check_variables
from buildsys.cli.project_root import typed_path
from buildsys.errors import (
    BuildsysError,
    CheckFailed,
    StageError,
    TemporaryError,
    UsageError,
    WorkerDied,
    with_hint,
)
from buildsys.execution.action_request import (
    BUILD,
    STATE,
    ActionRequest,
    check_machine,
    load_request,
    materialize,
)
from buildsys.execution.executor import Executor
from buildsys.execution.outcome import Outcome
from buildsys.manifest.units import number_or_text, parse_duration
from buildsys.plan.action import RESULT, Action
from buildsys.report.formatting import duration
from buildsys.store.ledger import PASSED, UNAVAILABLE, ActionRecord
from buildsys.store.locks import private_folder
from buildsys.store.object_store import Store
from buildsys.store.publish import remove_abandoned, temporary_folder
from buildsys.store.record_file import DIGEST
from buildsys.store.shared_cache import READ_WRITE, SharedCache
from buildsys.store.signatures import REFUSE, SigningKey, TrustPolicy
from buildsys.store.state_db import warn_on_stderr
from buildsys.system.files import read_end
from buildsys.system.interpreters.toolchain import OVERRIDE_PREFIX
from buildsys.workers.client.pool import WorkerPool

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
        option("store", "URL or folder of the shared cache; default: BUILDSYS_REMOTE"),
        option("key", "private key that signs the record; default: BUILDSYS_SIGNING_KEY"),
        option(
            "trusted_key",
            "run only requests, and take only records, signed by this key (repeatable)",
            type=list,
            default=[],
        ),
        option("timeout", "limit for everything that is read from or added to the store (10min)"),
        option("keep", "work in this new folder and keep it"),
        JSON,
    )

    def perform(self, names: Sequence[str], options: Options) -> int:
        """Return the exit code of the outcome."""
        document: dict[str, Any] = {"schema": SCHEMA, "request": "".join(names[:1])}
        log: list[str] = []
        try:
            code = _run(names, options, document, log)
        except (BuildsysError, OSError) as error:
            if not isinstance(error, BuildsysError):  # most likely a full disk
                problem = ": ".join(filter(None, (error.filename, error.strerror)))
                error = TemporaryError(problem, "check the disk, or use another machine")
            if isinstance(error, WorkerDied) and error.was_killed:
                error = TemporaryError(error.problem, error.hint)
            failed = isinstance(error, CheckFailed)
            ended = {"status": "failed" if failed else "error", "exit_code": error.exit_code}
            reason, hint = getattr(error, "problem", str(error)), getattr(error, "hint", "")
            document |= {**ended, "reason": reason, "hint": hint, "log": log}
            if not options["json"]:
                sys.stderr.writelines(f"{line}\n" for line in log)
                raise error from None
            code = error.exit_code
        if options["json"]:
            print_json(document)
        return code


def _run(names: Sequence[str], options: Options, document: dict[str, Any], log: list[str]) -> int:
    """Run a request; add its outcome to ``document``, a failed log's end to ``log``.

    Raises: BuildsysError, OSError: it failed, with the exit code of the error.
    """
    check_variables(Path.cwd(), _without_toolchains(os.environ))
    digest = _digest(names)
    key, trust = _keys(options)
    private = private_folder("work", "set TMPDIR to a folder of yours") / "run-action"
    private.mkdir(exist_ok=True)
    shared = _shared_cache(options, private / "known_hosts")
    request = load_request(shared, digest, trust)
    target = request.action.target
    document |= {"target": target, "key": request.key}
    with _work_folder(private, target, options["keep"]) as project:
        store = Store(project / STATE / "store")
        materialize(request, shared, store, project)
        try:
            outcome, record = _build(request, project, private, store, shared, key, trust)
        except StageError:
            log += _end_of_log(project, request.action)
            raise
    status = "restored" if outcome.restored else outcome.status
    ended = {"status": status, "reason": outcome.reason, "hint": outcome.hint}
    document |= {**ended, "exit_code": 0, "seconds": outcome.seconds, "key": record.key}
    if outcome.status == UNAVAILABLE:
        document["exit_code"] = NOT_HERE
        text = f"{target} is unavailable here: {with_hint(outcome.reason, outcome.hint)}"
    elif outcome.restored:
        text = f"{target} was in the store already"
    else:
        text = f"{target} was built in {duration(outcome.seconds)}"
    if not options["json"]:
        print_lines(text.splitlines())
    code: int = document["exit_code"]
    return code


def _build(
    request: ActionRequest,
    project: Path,
    private: Path,
    store: Store,
    shared: SharedCache,
    key: SigningKey | None,
    trust: TrustPolicy,
) -> tuple[Outcome, ActionRecord]:
    """Build the target, and check its record in the store.

    Raises: BuildsysError: it failed.
    """
    action = request.action
    target = action.target
    timing_caches = os.environ.get("BUILDSYS_TIMING_CACHES")
    # all requests share their servers: another folder would start new ones
    with WorkerPool(private) as pool:
        executor = Executor(
            project,
            project / BUILD,
            project / STATE,
            {target: replace(action, required=False)},
            pool=pool,
            store=store,
            remote=shared,
            signing_key=key,
            trust=trust,
            timing_caches=Path(timing_caches or private / "timing_caches").absolute(),
            before_stage=shared.check_writable,
        )
        try:
            here = executor.examine(target)
            if here.key is None:
                raise StageError(here.unreadable, "run it again")
            check_machine(request, here.key)
            outcome = executor.run(target)
            record = executor.ledger.lookup(target)
        finally:
            pool.close()
            executor.close()  # waits for the outputs to be shared
    if record is None or (
        outcome.status == PASSED and shared.read_action(target, record.key) is None
    ):
        problem = f"{target} was built, but its record is not in the store"
        raise TemporaryError(problem, "run it again; see the warnings above")
    return outcome, record


def _shared_cache(options: Options, known_hosts: Path) -> SharedCache:
    """Return the store of the command line. Raises: UsageError: there is none."""
    url = options["store"] or os.environ.get("BUILDSYS_REMOTE", "")
    if not url:
        raise UsageError("run-action needs a store", "add --store URL, or set BUILDSYS_REMOTE")
    timeout_s = TIMEOUT_S
    if options["timeout"]:
        try:
            timeout_s = parse_duration(number_or_text(options["timeout"]))
        except ValueError as error:
            raise UsageError(f"--timeout: {error}", "write 600, 600s or 10min") from None
    return SharedCache(
        store_url(url),
        warn_on_stderr,
        mode=READ_WRITE,
        timeout_s=timeout_s,
        known_hosts=known_hosts,
        required=True,
    )


def _keys(options: Options) -> tuple[SigningKey | None, TrustPolicy]:
    """Return the signing key and the trusted keys.

    Raises: UsageError: one is unusable.
    """
    file = options["key"] or os.environ.get("BUILDSYS_SIGNING_KEY", "")
    key = SigningKey(typed_path(file).expanduser()) if file else None
    trusted = list(options["trusted_key"])
    try:
        own = [key.public_key] if key else []  # before anything is built
    except StageError as error:
        raise UsageError(error.problem, error.hint) from None
    from buildsys.manifest.schema.base import PUBLIC_KEY_PATTERN

    for text in trusted:
        if not re.fullmatch(PUBLIC_KEY_PATTERN, text):
            hint = "`doit cache keygen FILE` prints public keys, ed25519: and 44 characters"
            raise UsageError(f"--trusted-key {text} is not a public key", hint)
    return key, TrustPolicy([*trusted, *own] if trusted else [], REFUSE)


def _digest(names: Sequence[str]) -> str:
    if len(names) != 1 or not DIGEST.fullmatch(names[0]):
        problem = "run-action takes the digest of one request, 64 hexadecimal digits"
        raise UsageError(problem, "`doit request-action TARGET --store URL` prints it")
    return names[0]


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


def _end_of_log(project: Path, action: Action) -> list[str]:
    """Return the last lines of the stage's log."""
    log = (project / BUILD / action.outputs[RESULT].path).with_suffix(".log")
    return read_end(log, _LOG_BYTES).splitlines()[-_LOG_LINES:]


def _without_toolchains(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the interpreters of toolchains."""
    return {n: value for n, value in environment.items() if not n.startswith(OVERRIDE_PREFIX)}
