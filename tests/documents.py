"""JSON documents of commands, compared with their published schema."""

import json
import re
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = json.loads((Path(__file__).parents[1] / "docs/documents.schema.json").read_text())
SCHEMAS = {entry["$ref"].split("/")[-1] for entry in SCHEMA["oneOf"]}


def check_document(document: dict[str, Any]) -> None:
    """Compare a document with the schema of its name; `oneOf` would not say what is wrong."""
    name = document["schema"].split("/")[1]
    assert name in SCHEMAS, f"{document['schema']} is not published"
    entry = {"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}
    Draft202012Validator(entry).validate(document)
    Draft202012Validator(SCHEMA).validate(document)


def check_printed(text: str) -> None:
    """Check that a command with ``--json`` prints nothing or one document, as published."""
    if text:
        document = json.loads(text)
        assert re.fullmatch(r"buildsys/[a-z-]+/\d+", document["schema"])
        check_document(document)
