"""Answers: what other machines say about their jobs, through the shared cache.

An answer is one JSON document under a name that its requester has chosen. The files of a target are
objects of the cache, named by their digests.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from buildsys.errors import StageError
from buildsys.plan.action import RESULT, Action
from buildsys.store.ledger import FAILED, NOISY, PASSED, UNAVAILABLE, OutputFile
from buildsys.store.record_file import MAX_SHARED_BYTES, check_name, output_file, shown
from buildsys.store.signatures import SigningKey, TrustPolicy
from buildsys.system.signatures import SignatureError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA = "buildsys/answer/1"
ERROR = "error"  # the status of a target without a result
_PAYLOAD_TYPE = "application/vnd.buildsys.answer+json"
_STATUSES = (PASSED, FAILED, NOISY, UNAVAILABLE, ERROR)
_NAME = re.compile(r"[0-9a-f]{32}")
_MAX_TEXT = 20_000
_SAME = "install the same version of buildsys on all machines"


@dataclass(frozen=True)
class Answer:
    """The outcome of a job."""

    schema: str
    name: str  # chosen by the requester: no answer can stand in for another one
    request: str  # digest
    status: str  # passed | failed | noisy | unavailable | error
    exit_code: int
    reason: str = ""
    hint: str = ""
    key: str = ""  # of the action, with what it has read
    seconds: float = 0.0  # of the stage
    peak_rss_mib: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)
    reads: Mapping[str, str] = field(default_factory=dict)  # outside the key: part -> file:line
    files: Mapping[str, OutputFile] = field(default_factory=dict)  # path in the build folder
    log: OutputFile | None = None
    machine: Mapping[str, str] = field(default_factory=dict)  # name, id and GPUs
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of a question
    signature: Mapping[str, str] | None = None


def new_name() -> str:
    """Return a name for an answer."""
    return uuid.uuid4().hex


def is_name(text: str) -> bool:
    """Return True for the name of an answer."""
    return bool(_NAME.fullmatch(text))


def encode_answer(answer: Answer, key: SigningKey | None) -> bytes:
    """Return an answer as bytes, signed if there is a key.

    Raises: StageError: the key cannot be used.
    """
    answer = replace(answer, reason=answer.reason[:_MAX_TEXT], hint=answer.hint[:_MAX_TEXT])
    if key is not None:
        answer = replace(answer, signature=key.sign_payload(_PAYLOAD_TYPE, _payload(answer)))
    return _to_bytes(answer)


def decode_answer(content: bytes, name: str, request: str, trust: TrustPolicy) -> Answer:
    """Return the answer in some bytes.

    Raises: StageError: it is none, of another job, altered or untrusted.
    """
    try:
        if len(content) > MAX_SHARED_BYTES:
            raise ValueError("it is too large")
        answer: Answer = _adapter().validate_python(json.loads(content))
        if answer.schema != SCHEMA:
            raise ValueError("it is of another version of buildsys")
        if (answer.name, answer.request) != (name, request):
            raise ValueError("it answers another request")
        if answer.status not in _STATUSES:
            raise ValueError(f"its status is {shown(answer.status)}")
        for path, file in answer.files.items():
            check_name(path)
            output_file(list(file))
        if answer.log is not None:
            output_file(list(answer.log))
    except (ValueError, TypeError, RecursionError) as error:
        reason = f": {error}" if type(error) is ValueError else ""
        raise StageError(f"the answer {name} cannot be used{reason}", _SAME) from None
    try:
        if trust.is_active:
            trust.payload_signer(answer.signature, _PAYLOAD_TYPE, _payload(answer))
    except SignatureError as error:
        hint = error.remedy or "set BUILDSYS_SIGNING_KEY there to the file of a trusted key"
        problem = f"the answer of {answer.machine.get('name', 'a machine')} {error.problem}"
        raise StageError(problem, hint) from None
    return answer


def check_files(answer: Answer, action: Action) -> None:
    """Check an answer for files of other targets.

    Only a failed check may have more, next to its result. Raises: StageError.
    """
    declared = {ref.path for ref in action.outputs.values()}
    folder = PurePosixPath(action.outputs[RESULT].path).parent
    for name in answer.files.keys() - declared:
        if answer.status != FAILED or folder not in PurePosixPath(name).parents:
            problem = f"the answer for {action.target} has {shown(name)}, not one of its files"
            raise StageError(problem, _SAME)


def _payload(answer: Answer) -> bytes:
    return _to_bytes(replace(answer, signature=None))


def _to_bytes(answer: Answer) -> bytes:
    return json.dumps(asdict(answer), separators=(",", ":"), sort_keys=True).encode()


@cache
def _adapter() -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # not needed by builds here

    return TypeAdapter(Answer)
