import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildsys.errors import ManifestError
from buildsys.manifest.value_tree import error_at
from buildsys.manifest.yaml_reader import read_nodes, read_yaml

FILE = Path("m.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("+3", 3),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("on", "on"),
        ("yes", "yes"),
        ("True", True),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("null", None),
        ("", None),
        ("-.inf", float("-inf")),
        ("'3'", "3"),
        ('"null"', "null"),
        ("=", "="),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    found = read_yaml(FILE, f"a: {text}\n".encode())["a"]
    assert (found, type(found)) == (value, type(value))


def test_aliases_and_integer_keys():
    assert read_yaml(FILE, b"a: &x [1, 2]\nb: {0: *x}\n") == {"a": [1, 2], "b": {"0": [1, 2]}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: " + "9" * 5000, "1:4: a: the integer does not fit into 64 bits"),
        ("[" * 1000, "values are nested more than 50 deep"),
        ("- a\n" * 60_000, "the file expands to more than 50000 values"),
    ],
)
def test_large_values_are_refused(text, expected):
    with pytest.raises(ManifestError) as caught:
        read_yaml(FILE, text.encode())
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("path", "of_key", "position", "key"),
    [
        (("a", "b"), True, (2, 3), ("a", "b")),
        (("a", "b", 1, "c"), False, (2, 14), ("a", "b", 1, "c")),
        (("a", "b", 7, "x"), False, (2, 6), ("a", "b", 7, "x")),
        (("d", "b", 0), False, (2, 7), ("a", "b", 0)),  # where it is written
        (("d",), True, (3, 1), ("d",)),
    ],
)
def test_positions_of_keys_values_and_aliases(path, of_key, position, key):
    tree = read_nodes(FILE, b"a: &a\n  b: [1, {c: 2}]\nd: *a\n")
    error = error_at(tree, path, "", of_key=of_key)
    assert (error.line, error.column, error.key) == (*position, key)


def _numbers() -> st.SearchStrategy[object]:
    return st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)


def _texts() -> st.SearchStrategy[str]:
    # JSON escapes are YAML's for all but characters outside the basic plane
    return st.text(
        st.characters(min_codepoint=32, max_codepoint=0xD7FF, exclude_categories=("Cs",)),
        max_size=10,
    )


@given(
    st.recursive(
        st.none() | st.booleans() | _numbers() | _texts(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts(), inner, max_size=4),
        max_leaves=20,
    )
)
def test_json_reads_as_the_same_data(value):
    assert read_yaml(FILE, json.dumps(value).encode()) == value
