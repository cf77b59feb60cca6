from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from buildsys.execution.action_key import ActionKey, declared_parts, listed_files, own_code
from buildsys.execution.key_parts import flatten_options
from buildsys.execution.stale_reasons import part_reasons
from buildsys.plan.action import Action, FileRef
from buildsys.system.files import MAX_RESULT_BYTES

ACTION = Action(
    target="export:m",
    stage="export",
    model="m",
    variant="",
    options={"export": {"opset": 17}},
    inputs={"model": FileRef("m/a.onnx")},
    outputs={"result": FileRef("m/export.json")},
)
NAMES = st.text(alphabet="ab.[]\\0:", max_size=3)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from(["", "0", "null", "[]", "{}", "a", "1.0"])
)
VALUES = st.recursive(
    LEAVES | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
OPTIONS = st.dictionaries(NAMES, VALUES, max_size=3)


def typed(value: Any) -> Any:
    """Return a value different for 1, 1.0 and True."""
    if isinstance(value, dict):
        return {name: typed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value).__name__, repr(value)


def mutations(options: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw options similar to the given ones, mostly with one difference."""
    moved = [
        {f"{outer}.{inner}": value}
        for outer, item in options.items()
        if isinstance(item, dict)
        for inner, value in item.items()
    ]
    wrapped = [{name: [value]} for name, value in options.items()]
    return st.sampled_from([{"": options}, {**options, "": {}}, *moved, *wrapped]) | OPTIONS


@given(st.data())
def test_different_options_never_flatten_to_the_same_leaves(data: st.DataObject) -> None:
    one = data.draw(OPTIONS)
    other = data.draw(mutations(one))
    assume(typed(one) != typed(other))
    assert flatten_options(one) != flatten_options(other)


@given(OPTIONS)
def test_equal_options_flatten_to_the_same_leaves_in_any_order(options: dict[str, Any]) -> None:
    reordered = dict(reversed(list(options.items())))
    assert flatten_options(options) == flatten_options(reordered)
    assert digest("t", flatten_options(options)) == digest("t", flatten_options(reordered))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"export": {"opset": 17}}, {"export.opset": "17"}),
        ({"shape": ["batch", 3, 224]}, {"shape": '["batch", 3, 224]'}),
        ({"profiles": [{"x": 1}, {"x": 2}]}, {"profiles[0].x": "1", "profiles[1].x": "2"}),
        ({"kwargs": {}, "files": []}, {"kwargs": "{}", "files": "[]"}),
        ({"a.b": 1, "a": {"b": 2}}, {"a\\.b": "1", "a.b": "2"}),
        ({"a[0]": 1, "a": [{}]}, {"a\\[0\\]": "1", "a[0]": "{}"}),
        ({"x": "17", "y": True, "z": None}, {"x": '"17"', "y": "true", "z": "null"}),
    ],
)
def test_names_and_values_are_readable(options: dict[str, Any], expected: dict[str, str]) -> None:
    assert flatten_options(options) == expected


def test_a_value_that_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError):
        flatten_options({"a": object()})
    with pytest.raises(TypeError):
        flatten_options({"a": {1: 2}})


def digest(target: str, parts: dict[str, str]) -> str:
    return ActionKey(target, lambda: parts, files={}, missing=()).digest


def test_the_key_depends_on_target_labels_and_values() -> None:
    keys = {
        digest("t", {"a": "1"}),
        digest("u", {"a": "1"}),
        digest("t", {"b": "1"}),
        digest("t", {"a": "2"}),
        digest("t", {}),
    }
    assert len(keys) == 5


def test_the_key_is_stable() -> None:
    assert digest("export:m", {"config:export.opset": "17", "tool:torch": "2.9.0"}) == (
        "eb329006bcb8d8616d46a1df2b632294f50c98c6aed459cedbc084bdc08f30bd"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"export": {"opset": 18}}},
        {"inputs": {"model": FileRef("m/b.onnx")}},
        {"inputs": {"other": FileRef("m/a.onnx")}},
        {"outputs": {"result": FileRef("m/elsewhere.json")}},
    ],
)
def test_declared_facts_of_an_action_are_in_its_parts(change: dict[str, Any]) -> None:
    assert declared_parts(replace(ACTION, **change)) != declared_parts(ACTION)


def test_the_parts_of_options_and_files_are_readable() -> None:
    assert declared_parts(ACTION) == {
        "config:export.opset": "17",
        "inputs": '{"model": "m/a.onnx"}',
        "outputs": '{"result": "m/export.json"}',
    }


def test_all_own_modules_are_found(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("a.py", "b.txt", "inner/c.py"):
        (tmp_path / name).write_text("")
    assert sorted(own_code(str(tmp_path))) == [f"{tmp_path}/a.py", f"{tmp_path}/inner/c.py"]


def test_changes_are_ordered_by_kind() -> None:
    old = {
        "code:buildsys.x": "a",
        "config:export.opset": "17",
        "tool:torch": "2.9",
        "input:m/a": "absent",
        "same": "1",
    }
    new = {
        "code:buildsys.x": "b",
        "config:export.opset": "18",
        "tool:torch": "2.10",
        "input:m/a": "d",
        "same": "1",
        "config:extra": "true",
    }
    assert [f"{reason.kind}:{reason.subject}" for reason in part_reasons(old, new)] == [
        "config:export.opset",
        "config:extra",
        "input:m/a",
        "tool:torch",
        "code:buildsys.x",
    ]


def test_a_listing_names_files_of_its_folder_only(tmp_path: Path) -> None:
    listing = tmp_path / "m/files.json"
    ref = FileRef("m/files.json", folder="m/out")
    assert listed_files(ref, tmp_path) == []
    listing.parent.mkdir()
    listing.write_text('["a.bin", "b/c.bin", "", "../d", "b/../../d", "/etc/passwd"]')
    assert listed_files(ref, tmp_path) == ["m/out/a.bin", "m/out/b/c.bin"]
    for damaged in ('["a.bin"', "5", "[5]", '["a.bin", null]'):
        listing.write_text(damaged)
        assert listed_files(ref, tmp_path) == []
    with listing.open("w") as stream:
        stream.truncate(MAX_RESULT_BYTES + 1)
    assert listed_files(ref, tmp_path) == []
