"""doit describe-machine: libraries and devices here, for keys on another machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing

from buildsys.cli.command import JSON, Options, PlainCommand, print_json, print_lines
from buildsys.cli.remote_jobs import (
    FACTS,
    STORE_OPTIONS,
    answer_name,
    end_with_stdin,
    request_digest,
    requests_folder,
    shared_cache,
    signing_key,
    this_machine,
    write_answer,
)
from buildsys.errors import UsageError
from buildsys.execution.environment_parts import EnvironmentParts
from buildsys.execution.job_answer import SCHEMA, Answer
from buildsys.execution.remote_environments import answer_questions
from buildsys.store.record_file import RecordError
from buildsys.store.shared_cache import SharedCache
from buildsys.store.state_db import StateDb


class DescribeMachine(PlainCommand):
    """Answer a project's questions about libraries and devices."""

    name = "describe-machine"
    doc_purpose = "answer the questions of another machine about libraries and devices here"
    doc_usage = "DIGEST --store URL"
    doc_description = "Executors run it; the digest names a list of questions in the store."
    options = (*STORE_OPTIONS, JSON)

    def perform(self, names: Sequence[str], options: Options) -> int:
        """Print the answers, or write them into the store."""
        end_with_stdin(options)
        digest = request_digest(self.name, names, "an executor of another machine")
        key, name = signing_key(options), answer_name(options)
        folder = requests_folder()
        shared = shared_cache(self.name, options, folder / "known_hosts")
        with closing(StateDb(folder / FACTS)) as facts:
            environment = EnvironmentParts(str(folder), facts)
            try:
                found = answer_questions(_questions(shared, digest), environment)
            except (RecordError, ValueError, TypeError, RecursionError) as error:
                problem = f"{digest} is not a list of questions: {error}"
                raise UsageError(problem, "executors make these lists") from None
        if name:
            answer = Answer(SCHEMA, name, digest, "passed", 0, environments=found)
            write_answer(shared, answer, key, with_gpus=True)
        elif options["json"]:
            print_json(
                {"machine": this_machine(with_gpus=True), "environments": list(found.values())}
            )
        else:
            parts = {label: value for one in found.values() for label, value in one.items()}
            print_lines(f"{label} {value}" for label, value in sorted(parts.items()))
        return 0


def _questions(shared: SharedCache, digest: str) -> list[str]:
    """Return the questions in the store. Raises: RecordError, ValueError: they are none."""
    content = shared.read_object(digest)
    if content is None:
        raise ValueError("there is no such object")
    questions = json.loads(content)
    if not isinstance(questions, list) or not all(isinstance(one, str) for one in questions):
        raise ValueError("it has other values than texts")
    return questions
