import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildsys.execution.stale_reasons import (
    NEVER_BUILT,
    UPSTREAM,
    StaleReason,
    decode_reasons,
    encode_reasons,
    format_reasons,
    part_reasons,
    summarize_reasons,
)

A, B = "a" * 64, "b" * 64
TEXTS = st.text(max_size=8) | st.sampled_from([A, B, "absent", "{}", '{"x":1}', "[1]", "{"])
PARTS = st.dictionaries(
    st.sampled_from(["config:a", "tool:t", "inputs", "x", "new:y", "source:f.py", ":"]), TEXTS
)


def changed(label: str, old: str | None, new: str | None) -> list[str]:
    parts = ({} if value is None else {label: value} for value in (old, new))
    return [str(reason) for reason in part_reasons(*parts)]


@pytest.mark.parametrize(
    ("label", "old", "new", "text"),
    [
        ("config:export.opset", "17", "18", "export.opset: 17 → 18"),
        ("config:extra", None, "true", "extra: unset → true"),
        ("config:hash", f'"{A}"', f'"{B}"', f'hash: "{"a" * 59}… → "{"b" * 59}…'),
        ("source:plugins/x.py", A, B, "plugins/x.py changed"),
        ("source:plugins/x.py", None, B, "plugins/x.py added"),
        ("source:plugins/x.py", A, None, "plugins/x.py no longer used"),
        ("source:plugins/x.py", A, "absent", "plugins/x.py is missing"),
        ("input:m/model.onnx", A, B, "input m/model.onnx changed"),
        ("input:m/model.onnx.data", "absent", B, "input m/model.onnx.data added"),
        ("input:m/model.onnx.data", A, "absent", "input m/model.onnx.data is missing"),
        ("tool:onnx", "1.21.0", "1.23.2", "onnx 1.21.0 → 1.23.2"),
        ("tool:onnx", "1.21.0", "absent", "onnx 1.21.0 → not installed"),
        ("tool:onnxscript", None, "0.5", "onnxscript not used → 0.5"),
        ("device:gpu.driver", "550.1", "580.2", "device gpu.driver: 550.1 → 580.2"),
        ("code:buildsys.stages.export.stage", A, B, "code buildsys.stages.export.stage changed"),
        ("python", "CPython 3.10.1", "CPython 3.11.2", "python: CPython 3.10.1 → CPython 3.11.2"),
        ("outputs", "{}", '{"markdown":"m/r.md"}', "the list of its outputs changed"),
        # unknown kinds
        ("weights:resnet50", A, B, "weights resnet50 changed"),
        ("environment:TF32", "1", "0", "environment TF32: 1 → 0"),
    ],
)
def test_every_kind_of_part_reads_well(
    label: str, old: str | None, new: str | None, text: str
) -> None:
    assert changed(label, old, new) == [text]


def test_the_text_of_long_values_shows_their_first_difference() -> None:
    old, new = (
        "[" + ", ".join(map(str, values)) + "]"
        for values in (range(500), [*range(400), 7, *range(401, 500)])
    )
    (reason,) = part_reasons({"config:values": old}, {"config:values": new})
    assert len(str(reason)) < 200
    assert "399, 400, 401" in str(reason)
    assert "399, 7, 401" in str(reason)
    assert (reason.old, reason.new) == (old, new)


def test_text_is_one_line_without_control_characters() -> None:
    assert (
        str(StaleReason("failed", "no  such \x1b[31mfile\n1. what to do"))
        == "last run failed: no such \\x1b[31mfile"
    )
    assert str(StaleReason("source", "a\nb.py", A, B)) == "a\\nb.py changed"
    assert str(StaleReason("source", "\udcff.py", A, B)) == "\\udcff.py changed"


@given(PARTS, PARTS)
def test_differences_between_any_two_keys_are_one_line_each(
    old: dict[str, str], new: dict[str, str]
) -> None:
    found = part_reasons(old, new)
    assert bool(found) == (old != new)
    assert all(str(reason).isprintable() for reason in found)


def test_targets_upstream_share_a_line() -> None:
    many = [StaleReason(UPSTREAM, name, None, "will rerun") for name in "abcde"] + [
        StaleReason(UPSTREAM, "f", None, "may rerun")
    ]
    assert format_reasons(many) == [
        "upstream: a, b, c and 2 more will rerun",
        "upstream: f may rerun",
    ]


def test_a_summary_has_the_first_reason_and_a_count() -> None:
    reasons = [
        StaleReason("config", "a", "1", "2"),
        StaleReason("tool", "onnx", "1", "2"),
        StaleReason(NEVER_BUILT),
    ]
    assert summarize_reasons(reasons) == "a: 1 → 2 and 2 more"
    assert summarize_reasons(reasons, 2) == "a: 1 → 2; onnx 1 → 2 and 1 more"
    assert summarize_reasons([]) == ""


def test_new_fields_that_nobody_has_set_are_no_reasons() -> None:
    """A new version of buildsys adds many."""
    new = {f"config:engine.f{n}": "null" for n in range(34)} | {"code:buildsys.x": B}
    assert list(map(str, part_reasons({"code:buildsys.x": A}, new))) == ["code buildsys.x changed"]
    assert changed("config:x.y", "null", None) == []
    assert changed("config:x.y", "null", "1") == ["x.y: null → 1"]


# --- history ---


def test_reasons_survive_the_history() -> None:
    reasons = (
        StaleReason("config", "export.opset", "17", "18"),
        StaleReason("source", "ä.py", A, B),
        StaleReason(NEVER_BUILT),
    )
    assert decode_reasons(encode_reasons(reasons)) == reasons
    assert decode_reasons('[["source","a.py","1","2",12]]') == (
        StaleReason("source", "a.py", "1", "2"),
    )


def test_the_history_is_not_filled_with_values() -> None:
    text = encode_reasons(
        [StaleReason("config", f"f{number}", "1" * 10_000, None) for number in range(1000)]
    )
    assert len(text) < 10_000
    assert len(decode_reasons(text)) == 30


@pytest.mark.parametrize(
    "text", ["", "null", "[", "{}", "[1]", "[[]]", '[["a"]]', '[["a",1,2,3]]', None, 7, "[" * 9]
)
def test_a_history_that_cannot_be_read_has_no_reasons(text: object) -> None:
    assert decode_reasons(text) == ()
