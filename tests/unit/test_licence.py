"""The licence: its text, and what pyproject.toml says about it."""

import hashlib
from pathlib import Path

from doit.doit_cmd import DoitConfig

ROOT = Path(__file__).parents[2]
OWNER = "2026 The buildsys authors"
# of https://www.apache.org/licenses/LICENSE-2.0.txt
STANDARD_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_licence_is_the_standard_text_with_the_copyright_owner() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    standard = text.replace(OWNER, "[yyyy] [name of copyright owner]")
    assert standard != text
    assert hashlib.sha256(standard.encode()).hexdigest() == STANDARD_SHA256


def test_the_metadata_names_the_licence() -> None:
    project = DoitConfig().toml.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    assert project["authors"] == [{"name": "The buildsys authors"}]
