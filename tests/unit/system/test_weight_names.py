"""Indices of sharded weights."""

from pathlib import Path

import pytest

from buildsys.system.weight_names import read_index, shards_of


def test_an_index_names_its_shards_with_their_tensors(tmp_path: Path) -> None:
    index = tmp_path / "m.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}')
    assert read_index(index) == {"1.safetensors": {"a"}, "2.safetensors": {"b"}}
    assert shards_of(index) == [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    assert shards_of(tmp_path / "1.safetensors") == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        ("[1]", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": "../w.safetensors"}}', "not a .safetensors file next to it"),
        ('{"weight_map": {"a": "w.bin"}}', "not a .safetensors file next to it"),
        ('{"weight_map": {"a": 5}}', "not a .safetensors file next to it"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(ValueError, match=problem):
        read_index(index)
    assert shards_of(index) == []
