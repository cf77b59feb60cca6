"""doit run-action: one requested target, built without its project."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from buildsys.cli.command import (
    JSON,
    Options,
    PlainCommand,
    option,
    print_json,
    print_lines,
)
from buildsys.cli.environment_variables import check_variables
from buildsys.cli.remote_jobs import (
    STORE_OPTIONS,
    RequestPlace,
    answer_name,
    end_with_stdin,
    next_order,
    number_of_seconds,
    request_digest,
    write_answer,
)
from buildsys.cli.request_builder import RequestBuilder, request_builder
from buildsys.errors import (
    BuildsysError,
    CheckFailed,
    StageError,
    TemporaryError,
    UsageError,
    WorkerDied,
    with_hint,
)
from buildsys.execution.action_request import load_request
from buildsys.execution.job_answer import ERROR, Answer
from buildsys.execution.job_answer import SCHEMA as ANSWER_SCHEMA
from buildsys.execution.model_jobs import LINGERS_AFTER
from buildsys.execution.outcome import Outcome
from buildsys.report.formatting import duration
from buildsys.store.ledger import FAILED, UNAVAILABLE
from buildsys.system.files import read_end
from buildsys.system.interpreters.toolchain import OVERRIDE_PREFIX

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
        with ExitStack() as stack:
            job = _Job(stack, options)
            while True:
                try:
                    code = _answer(names, options, job)
                except BuildsysError as error:
                    if not linger_s or error.exit_code not in LINGERS_AFTER:
                        raise
                    sys.stderr.write(f"ERROR: {error}\n")
                    code = error.exit_code
                if not linger_s or code not in LINGERS_AFTER:
                    return code
                order = next_order(job.place.shared, options["answer"], linger_s)
                if order is None:
                    return code
                names, linger_s = [order.request], order.linger
                options = {**options, "answer": order.answer, "rebuild": order.rebuild}


@dataclass
class _Job:
    """What one process of this command uses for all its requests."""

    stack: ExitStack
    options: Options
    builder: RequestBuilder | None = None

    @cached_property
    def place(self) -> RequestPlace:
        return RequestPlace.of(self.options)

    def builder_of(self, target: str) -> RequestBuilder:
        """Return the builder, a new one for a target that comes again."""
        if self.builder is None or self.builder.has_built(target):
            self.builder = None
            self.stack.close()
            found = request_builder(self.place, self.options["keep"])
            self.builder = self.stack.enter_context(found)
        return self.builder


def _answer(names: Sequence[str], options: Options, job: _Job) -> int:
    """Run a request and print its outcome; return its exit code.

    Raises: BuildsysError: it failed, and its outcome is not wanted as JSON.
    """
    document: dict[str, Any] = {"schema": SCHEMA, "request": "".join(names[:1])}
    log: list[str] = []
    try:
        code = _run(names, options, job, document, log)
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


def _run(
    names: Sequence[str],
    options: Options,
    job: _Job,
    document: dict[str, Any],
    log: list[str],
) -> int:
    """Run a request; add its outcome to ``document``, a failed log's end to ``log``.

    Raises: BuildsysError, OSError: it failed, with the exit code of the error.
    """
    check_variables(Path.cwd(), _without_toolchains(os.environ))
    digest = request_digest("run-action", names, "`doit request-action TARGET --store URL`")
    name, place = answer_name(options), job.place
    made: dict[str, Any] = {}  # fields of the answer
    uses_gpu = False

    def answer(fields: Mapping[str, Any]) -> None:
        if name:
            known = Answer(ANSWER_SCHEMA, name, digest, ERROR, UsageError.exit_code)
            write_answer(place.shared, replace(known, **fields), place.key, with_gpus=uses_gpu)

    try:
        request = load_request(place.shared, digest, place.trust)
        uses_gpu = request.action.uses_gpu
        document |= {"target": request.action.target, "key": request.key}
        builder = job.builder_of(request.action.target)
        builder.take(request)
        try:
            outcome, record = builder.build(made, rebuild=options["rebuild"])
        except StageError:
            log += read_end(builder.log(request.action), _LOG_BYTES).splitlines()[-_LOG_LINES:]
            raise
        finally:
            if name:
                made |= builder.stored_files(request.action, made.get("files", ()))
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


def _without_toolchains(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the interpreters of toolchains."""
    return {n: value for n, value in environment.items() if not n.startswith(OVERRIDE_PREFIX)}
