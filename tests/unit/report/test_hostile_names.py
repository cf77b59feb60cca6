from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from tiny_results import Results

from buildsys.report.assemble import assemble
from buildsys.report.markdown.document import render

HOSTILE = (
    "``` `` <img src=x onerror=alert(1)> ]]> &lt;b&gt; | ![i](http://x) [l](http://x)"
    "\x1b[2J\x07\u202e\n\n```\n# heading\n<script>alert(1)</script>\n~~~\n"
)
# checked against fixed sets of names before a report is made
FIXED = {"model", "stage", "target", "status", "built", "verified", "timed", "when", "log"}


def with_hostile_names(value: Any) -> Any:
    """Add hostile text to every free text of a report."""
    if isinstance(value, str):
        return value and value + HOSTILE
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {
            field.name: with_hostile_names(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.name not in FIXED
        }
        return dataclasses.replace(value, **changes)
    if isinstance(value, Mapping):
        return {
            with_hostile_names(key) if isinstance(key, str) else key: with_hostile_names(entry)
            for key, entry in value.items()
        }
    return tuple(map(with_hostile_names, value)) if isinstance(value, (list, tuple)) else value


def tokens_of(text: str) -> list[Token]:
    blocks = MarkdownIt("gfm-like", {"html": True, "linkify": False}).parse(text)
    return [one for block in blocks for one in (block, *(block.children or ()))]


def test_no_name_adds_markup_or_control_characters_to_a_report(results: Results) -> None:
    results.failed("validate:tiny", "off", hint="choose\nfirst\nsecond")
    report = assemble("tiny", results.manifest, results.inputs, {})
    text = render(with_hostile_names(report))
    plain, attacked = tokens_of(render(report)), tokens_of(text)
    assert not {"html_block", "html_inline", "link_open", "image"} & {t.type for t in attacked}
    for kind in ("heading_open", "fence", "tr_open", "td_open", "bullet_list_open"):
        count = sum(token.type == kind for token in attacked)
        assert count == sum(token.type == kind for token in plain), kind
    assert not set("\x1b\x07\u202e") & set(text)
