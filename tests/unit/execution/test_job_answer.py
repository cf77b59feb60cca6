"""Answers of other machines, as bytes that anybody may have written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from buildsys.errors import StageError
from buildsys.execution.job_answer import (
    SCHEMA,
    Answer,
    check_files,
    decode_answer,
    encode_answer,
    is_name,
    new_name,
)
from buildsys.plan.action import Action, FileRef
from buildsys.store.ledger import OutputFile
from buildsys.store.signatures import NO_POLICY, SigningKey, TrustPolicy, generate_key

REQUEST = "ab" * 32
FILE = OutputFile("cd" * 32, 7)
ANSWER = Answer(
    SCHEMA, "0" * 32, REQUEST, "passed", 0, key="ef" * 32, seconds=1.5, figures={"size": 7},
    reads={"read:x": "net.py:3"}, files={"m/e/engine.json": FILE}, log=FILE,
    machine={"name": "gpu1", "gpus": "NVIDIA H100"},
)  # fmt: skip
ACTION = Action(
    target="engine:m:e", stage="engine", model="m", variant="e", options={}, inputs={},
    outputs={"result": FileRef("m/e/engine.json"), "engine": FileRef("m/e/model.engine")},
)  # fmt: skip


def decoded(content: bytes, trust: TrustPolicy = NO_POLICY) -> Answer:
    return decode_answer(content, ANSWER.name, REQUEST, trust)


def test_an_answer_is_read_as_it_was_written() -> None:
    assert decoded(encode_answer(ANSWER, None)) == ANSWER
    assert is_name(new_name())
    assert not is_name("../x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "buildsys/answer/9"}, "another version"),
        ({"name": "1" * 32}, "another request"),
        ({"request": "00" * 32}, "another request"),
        ({"status": "fine"}, "its status is"),
        ({"files": {"../outside": list(FILE)}}, "outside"),
        ({"files": {"a": ["x", 1]}}, ""),
        ({"log": ["x", -1]}, ""),
        ({"exit_code": "none"}, ""),
        ({"figures": []}, ""),
    ],
)
def test_another_document_is_refused(change: dict[str, Any], message: str) -> None:
    document = json.loads(encode_answer(ANSWER, None)) | change
    with pytest.raises(StageError, match=f"cannot be used.*{message}"):
        decoded(json.dumps(document).encode())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[" * 100_000, b"null"])
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(StageError, match="cannot be used"):
        decoded(content)


def test_a_trusted_signature_is_required(tmp_path: Path) -> None:
    public = generate_key(tmp_path / "key.pem")
    trust, other = TrustPolicy([public]), TrustPolicy([generate_key(tmp_path / "other.pem")])
    signed = encode_answer(ANSWER, SigningKey(tmp_path / "key.pem"))
    assert replace(decoded(signed, trust), signature=None) == ANSWER
    with pytest.raises(StageError, match="gpu1 is not signed by a trusted key"):
        decoded(signed, other)
    with pytest.raises(StageError, match="gpu1 is not signed"):
        decoded(encode_answer(ANSWER, None), trust)
    with pytest.raises(StageError, match="does not match"):
        decoded(signed.replace(b'"seconds":1.5', b'"seconds":1.4'), trust)


def test_long_texts_are_cut() -> None:
    long = replace(ANSWER, reason="x" * 100_000)
    assert len(decoded(encode_answer(long, None)).reason) == 20_000


@pytest.mark.parametrize(
    ("status", "name", "accepted"),
    [
        ("passed", "m/e/model.engine", True),
        ("passed", "m/e/other", False),
        ("failed", "m/e/failing.npz", True),
        ("failed", "m/other/failing.npz", False),
    ],
)
def test_only_files_of_the_target_are_accepted(status: str, name: str, accepted: bool) -> None:
    answer = replace(ANSWER, status=status, files={name: FILE})
    if accepted:
        check_files(answer, ACTION)
        return
    with pytest.raises(StageError, match="not one of its files"):
        check_files(answer, ACTION)
