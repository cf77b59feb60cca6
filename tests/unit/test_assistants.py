"""The overview for assistants, the published schemas, and answers of limited size."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from documented_commands import check_command
from documents import SCHEMA, SCHEMAS
from jsonschema import Draft202012Validator

DOCS = Path(__file__).parents[2] / "docs"
OVERVIEW = (DOCS / "llms.txt").read_text(encoding="utf-8")


def test_commands_and_pages_of_the_overview_exist() -> None:
    commands = re.findall(r"`(buildsys [^`]+)`", OVERVIEW)
    assert sum(check_command(re.sub(r"\[(\w+)\]", r"\1", command)) for command in commands) > 8
    pages = re.findall(r"\]\(([^)]+)\)", OVERVIEW)
    assert [page for page in pages if not (DOCS / page).is_file()] == []
    assert len(pages) > 8


def test_the_overview_names_every_published_document() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    numbers = {*re.findall(r"buildsys/[a-z-]+/\d+", json.dumps(SCHEMA))}
    assert {name.split("/")[1] for name in numbers} == SCHEMAS
    assert {*re.findall(r"buildsys/[a-z-]+/\d+", OVERVIEW)} == numbers
    code = "".join(path.read_text() for path in (DOCS.parent / "buildsys").rglob("*.py"))
    assert numbers <= {*re.findall(r"buildsys/[a-z-]+/\d+", code)}


@pytest.mark.parametrize(
    ("document", "left_out"),
    [
        ({"targets": [{"text": "x" * 10}] * 100}, {"targets"}),
        ({"comparisons": [{"latencies": list(range(1000)), "engines": {}}]}, None),
        ({"unavailable": {f"t{n}": "x" * 20 for n in range(100)}}, {"unavailable"}),
        ({"reason": "x" * 5000, "few": [1]}, {"reason"}),
        ({"few": [1]}, set()),
    ],
)
def test_long_answers_lose_the_ends_of_their_longest_parts(
    document: dict[str, Any], left_out: set[str] | None
) -> None:
    pytest.importorskip("mcp")
    from buildsys.mcp.server import shortened

    before = json.loads(json.dumps(document))
    answer = shortened(document, 1000)
    assert len(json.dumps(answer)) <= 1000
    counts = answer.pop("left_out", {})
    assert {*counts} == ({"comparisons.0.latencies"} if left_out is None else left_out)
    for path, count in counts.items():
        cut, whole = answer, before
        for part in path.split("."):
            key = int(part) if part.isdecimal() else part
            cut, whole = cut[key], whole[key]
        assert len(cut) + count == len(whole)
        assert cut == (whole[: len(cut)] if not isinstance(whole, dict) else cut)
