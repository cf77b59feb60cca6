"""Differences of manifests and files, and their mixtures."""

import copy
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from buildsys.bisect.differences import (
    environment_differences,
    field_differences,
    file_differences,
    mix_files,
    with_fields,
)

VALUES = st.recursive(
    st.none() | st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
ENGINES = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("xy"), "precision": VALUES}),
    unique_by=lambda engine: engine["name"],
)
MANIFESTS = st.fixed_dictionaries({"engines": ENGINES, "commands": st.just([]), "export": VALUES})


@given(MANIFESTS, MANIFESTS, st.data())
def test_all_differences_lead_from_a_manifest_to_the_other_and_none_changes_it(
    old: dict[str, Any], new: dict[str, Any], data: st.DataObject
) -> None:
    before = copy.deepcopy(old)
    differences = field_differences(old, new)
    mixed = with_fields(old, differences)
    assert by_name(mixed.pop("engines")) == by_name(new["engines"])
    assert mixed == {name: value for name, value in new.items() if name != "engines"}
    assert with_fields(old, []) == old == before
    some = [difference for difference in differences if data.draw(st.booleans())]
    rest = field_differences(with_fields(old, some), new)
    assert {field.path for field in rest} == {d.path for d in differences if d not in some}


def by_name(engines: list[dict[str, Any]]) -> dict[str, Any]:
    return {engine["name"]: engine for engine in engines}


def test_a_difference_reads_as_explain_has_it() -> None:
    old = {"engines": [{"name": "x", "precision": "fp32"}], "export": {"opset": 17}}
    new = {"engines": [{"name": "x", "precision": "fp16", "level": 2}], "export": {"opset": 18}}
    assert [str(field.reason) for field in field_differences(old, new)] == [
        'engine.precision: "fp32" → "fp16"', "engine.level: unset → 2", "export.opset: 17 → 18",
    ]  # fmt: skip


def test_files_are_those_of_the_keys_with_other_bytes_and_a_mixture_exchanges_them(
    tmp_path: Path,
) -> None:
    roots = tmp_path / "old", tmp_path / "new"
    for root, names in zip(
        roots, ({"net.py": "1", "d/x": "1"}, {"net.py": "2", "new.py": "2"}), strict=True
    ):
        for name, text in {**names, "same.py": "", "other.py": root.name}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    old = {"export:m": {"source:net.py": "1", "read:d/": "1 net.py:3", "source:same.py": "1"}}
    new = {"export:m": {"source:net.py": "2", "source:new.py": "2", "source:same.py": "2"}}
    files = file_differences(old, new, roots)
    assert [each.file for each in files] == ["d/x", "net.py", "new.py"]
    assert [str(each.reason) for each in files[1:]] == ["net.py: 1 → 2", "new.py: unset → 2"]
    names, backup = [each.file for each in files], tmp_path / "backup"
    mix_files(names, (), roots[0], roots[0], backup)
    for chosen in ({"net.py"}, {"d/x", "new.py"}, set[str]()):
        mix_files(names, chosen, backup, roots[1], roots[0])
        sides = {name: roots[name in chosen] for name in ("net.py", "d/x", "new.py")}
        assert (roots[0] / "net.py").read_text() == ("2" if "net.py" in chosen else "1")
        assert (roots[0] / "d/x").exists() == (sides["d/x"] == roots[0])
        assert (roots[0] / "new.py").exists() == ("new.py" in chosen)


def test_an_environment_differs_in_what_both_builds_of_a_target_used() -> None:
    old = {"engine:m:x": {"tool:onnx": "1", "device:cpu": "a"}, "export:m": {"tool:torch": "2"}}
    new = {"engine:m:x": {"tool:onnx": "2", "tool:new": "1", "device:cpu": "a"}}
    assert [str(reason) for reason in environment_differences(old, new)] == ["onnx 1 → 2"]
