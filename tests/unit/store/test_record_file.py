"""Files of action records: complete ones are read back, others are refused with the reason."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from buildsys.store.ledger import ActionRecord, OutputFile, Outputs
from buildsys.store.record_file import (
    STATUSES,
    RecordError,
    check_names,
    decode_record,
    encode_record,
    output_file,
    read_record,
    shown,
    signed_bytes,
)

KEY, DIGEST = "a" * 64, "0123456789abcdef" * 4
RECORD = ActionRecord(
    "export:m",
    KEY,
    {"config:x": "1"},
    {"m/b": OutputFile(DIGEST, 5), "m/a": None},
    "passed",
    "2026-01-02T03:04:05Z",
    1.5,
    reason="ü",
    figures={"n": [1, {"m": None}]},
)


def packed(stored: Any) -> bytes:
    body = stored if isinstance(stored, bytes) else json.dumps(stored).encode()
    return blake3(body).hexdigest().encode() + b"\n" + body + b"\n"


def stored_record(**changes: Any) -> dict[str, Any]:
    return {**json.loads(encode_record(RECORD).splitlines()[1]), **changes}


def decoded(**changes: Any) -> ActionRecord:
    return decode_record(packed(stored_record(**changes)), "", KEY)


def problem_of(content: bytes, target: str = "export:m", key: str = KEY) -> str:
    with pytest.raises(RecordError) as found:
        decode_record(content, target, key)
    return str(found.value)


def test_a_record_is_read_back() -> None:
    signed = replace(RECORD, origin="shared", signature={"key": "k", "value": "v"})
    unsigned = replace(RECORD, origin="shared")
    for record in (RECORD, signed, unsigned, replace(signed, origin="")):
        assert decode_record(encode_record(record), "export:m", KEY) == record
        assert decode_record(encode_record(record), "", KEY) == record


def test_the_file_is_a_checksum_and_sorted_json() -> None:
    checksum, body, end = encode_record(RECORD).split(b"\n")
    assert checksum.decode() == blake3(body).hexdigest()
    assert end == b""
    stored = json.loads(body)
    assert list(stored) == sorted(stored)
    assert (stored["schema"], stored["outputs"]["m/b"]) == (3, [DIGEST, 5])


def test_a_record_of_an_earlier_version_is_read() -> None:
    stored = stored_record(schema=1)
    del stored["origin"], stored["signature"]
    assert decode_record(packed(stored), "", KEY) == RECORD


def test_a_local_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(encode_record(RECORD))
    assert read_record(path, "export:m", KEY) == RECORD
    for target, key in (("export:other", KEY), ("export:m", "b" * 64)):
        with pytest.raises(RecordError, match="another key"):
            read_record(path, target, key)
    with path.open("ab") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(RecordError, match=r"^is not an action record: it has 64 MiB, more"):
        read_record(path, "export:m", KEY)


def test_the_signed_bytes_are_those_of_earlier_versions() -> None:
    assert signed_bytes(replace(RECORD, reason="", figures={})).decode() == (
        f'{{"figures":{{}},"hint":"","key":"{KEY}","log":"","outputs":{{"m/a":null,"m/b":'
        f'["{DIGEST}",5]}},"parts":{{"config:x":"1"}},"reason":"","schema":1,"seconds":1.5,'
        '"started":"2026-01-02T03:04:05Z","status":"passed","target":"export:m"}'
    )
    assert output_file([DIGEST, 5]) == OutputFile(DIGEST, 5)


def test_a_signature_covers_everything_but_itself_and_the_origin() -> None:
    content = signed_bytes(RECORD)
    assert content == signed_bytes(decode_record(encode_record(RECORD), "", KEY))
    assert signed_bytes(replace(RECORD, origin="shared", signature={"a": "b"})) == content
    whole = replace(RECORD, seconds=2, figures={1: 2})  # type: ignore[dict-item]
    again = decode_record(encode_record(whole), "", KEY)
    assert signed_bytes(again) == signed_bytes(whole)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (encode_record(RECORD)[:-2], "is truncated or edited: its checksum does not match"),
        (encode_record(RECORD).replace(b"1.5", b"1.6"), "is truncated or edited"),
        (b"", "is truncated or edited"),
        (packed(b"{"), "is not an action record: it is not JSON"),
        (packed(b"[" * 200_000), "is not an action record: it is not JSON"),
        (packed([]), "is not an action record: it has no schema"),
        (packed({"target": "export:m"}), "is not an action record: it has no schema"),
        (packed(stored_record(schema=True)), "is not an action record: it has no schema"),
        (packed(stored_record(other=1)), "is not an action record: 'other'"),
    ],
)
def test_other_files_are_refused(content: bytes, problem: str) -> None:
    assert problem_of(content).startswith(problem)


@pytest.mark.parametrize("field", ["outputs", "parts", "seconds", "key", "status", "started"])
def test_a_missing_field_is_refused(field: str) -> None:
    stored = stored_record()
    del stored[field]
    assert problem_of(packed(stored)).startswith("is not an action record")


def test_a_newer_record_is_recognized() -> None:
    for schema, newer in ((4, True), (True, False)):
        with pytest.raises(RecordError) as found:
            decoded(schema=schema, future=1)
        assert found.value.newer is newer
    assert str(RecordError("x")) == "x"


def test_a_record_under_another_name_is_refused() -> None:
    content = encode_record(RECORD)
    problem = "is the record of 'export:m' under another key"
    assert problem_of(content, "export:other") == problem
    assert problem_of(content, key="b" * 64) == problem


def output(name: str, file: Any = (DIGEST, 5)) -> dict[str, Any]:
    return {"outputs": {name: file if file is None else [*file]}}


def nested(levels: int) -> dict[str, Any]:
    value: Any = {}
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    return {"figures": {"x": value}}


@pytest.mark.parametrize(
    "changes",
    [
        output("a" * 255),
        output("é" * 127),
        output("/".join(["a" * 255] * 4)),  # 1023 bytes
        output("/".join(["a" * 255] * 3) + "/" + "a" * 254 + "/b"),
        {"outputs": {"m/a": None, "m/ab": None, "m/b/c": None}},
        {"outputs": {str(number): None for number in range(10_000)}},
        output("m", (DIGEST, 0)),
        output("m", (DIGEST, (1 << 53) - 1)),
        {"outputs": {}, "parts": {}, "log": "", "status": "unavailable"},
        {"seconds": 0},
        {"seconds": 1e10 - 1},
        nested(30),
        {"signature": None, "origin": "shared"},
        {"figures": {}},
    ],
)
def test_unusual_records_are_accepted(changes: dict[str, Any]) -> None:
    record = decoded(**changes)
    assert json.loads(json.dumps({name: getattr(record, name) for name in changes})) == changes
    assert type(record.seconds) is float


NO_NAME = "cannot be the name of a file"
LONG = "/".join(["a" * 255] * 3)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"outputs": []}, "dict"),
        ({"outputs": {str(n): None for n in range(10_001)}}, "10,001 files, more than 10,000"),
        (output("a" * 256), f"'{'a' * 79}… {NO_NAME}"),
        (output("é" * 128), NO_NAME),
        (output(f"{LONG}/{'a' * 253}/bbb"), NO_NAME),
        *((output(name), NO_NAME) for name in ("", "a//b", "/a", "a/", "./a", "a/..", "a\0")),
        (output("\ud800"), ""),
        ({"outputs": {"m/a": None, "m/a/b": None}}, "'m/a/b' is inside another output"),
        ({"outputs": {"m/a": None, "m": None}}, "'m/a' is inside another output"),
        *(
            ({"outputs": {"m": file}}, "is not a digest and a size")
            for file in (
                5, "ab", [DIGEST], (5, 5), (DIGEST + "0", 5), ("A" * 64, 5), (DIGEST, True),
                (DIGEST, -1), (DIGEST, 1 << 53),
            )
        ),
        *(
            ({field: 5}, field)
            for field in ("target", "key", "status", "started", "reason", "hint", "log", "origin")
        ),
        ({"log": "\ud800"}, "not JSON in UTF-8"),
        ({"key": "a" * 63}, "key"),
        ({"status": "failed"}, "its status is 'failed'"),
        ({"started": "2026-01-02"}, "started"),
        ({"parts": []}, "parts"),
        ({"parts": {"a": "1", "b": 1}}, "parts"),
        *(({"seconds": seconds}, "seconds") for seconds in (True, -1, 1e10, float("nan"))),
        ({"figures": []}, "figures"),
        (nested(500), "figures"),
        ({"signature": "x"}, "signature"),
    ],
)  # fmt: skip
def test_invalid_fields_are_refused(changes: dict[str, Any], problem: str) -> None:
    found = problem_of(packed(stored_record(**changes)))
    assert found.startswith("is not an action record: ")
    assert problem in found


def test_a_shown_text_is_short_and_printable() -> None:
    assert shown("a\x1b\n") == r"'a\x1b\n'"
    assert shown("x" * 78) == f"'{'x' * 78}'"
    assert shown("x" * 79) == f"'{'x' * 79}…"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.lists(st.text(min_size=1, max_size=260), min_size=1, max_size=6).map("/".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=10,
)
FILES = st.none() | st.builds(
    OutputFile, st.from_regex("[0-9a-f]{64}", fullmatch=True), st.integers(0, (1 << 53) - 1)
)


@given(
    outputs=st.dictionaries(NAMES, FILES, max_size=5),
    parts=st.dictionaries(TEXTS, TEXTS, max_size=3),
    figures=st.dictionaries(TEXTS, JSON, max_size=3),
    texts=st.fixed_dictionaries(dict.fromkeys(("reason", "hint", "log"), TEXTS)),
    seconds=st.floats(0, 1e10, exclude_max=True),
    status=st.sampled_from(STATUSES),
)
def test_whatever_may_be_published_is_read_back(
    outputs: Outputs, texts: dict[str, str], **fields: Any
) -> None:
    """The check of published names and the check of records are one."""
    record = replace(RECORD, outputs=outputs, **texts, **fields)
    try:
        check_names(sorted(outputs))  # as records have them
    except ValueError as error:
        assert str(error) in problem_of(encode_record(record))
    else:
        assert decode_record(encode_record(record), "export:m", KEY) == record
