"""Sentences, tables and notes as HTML.

Tables are the largest part of a page, and Python writes them four times as fast as a template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from markupsafe import Markup

from buildsys.report.html.charts import Chart, escaped
from buildsys.report.html.tables import Table

_CODE = re.compile(r"`([^`\n]+?)(?:`|(?=\.\.\.$))")  # the last one may be cut off


def prose(text: str) -> Markup:
    """Return a sentence, with what is in backticks as code."""
    plain = str(escaped(text))  # an escaped string would escape what is put into it
    return Markup(_CODE.sub(r"<code>\1</code>", plain))  # noqa: S704 - it is escaped


def table(one: Table | Chart) -> Markup:
    """Return a table with its notes, "" without rows."""
    if not one.rows:
        return notes(one.notes)
    kinds = [' class="r"' if column.endswith(">") else "" for column in one.columns]
    head = "".join(
        f"<th{kind}>{escaped(column.removesuffix('>'))}</th>"
        for kind, column in zip(kinds, one.columns, strict=True)
    )
    cells = [f"<td{kind}>" for kind in kinds]
    rows = (
        "".join(f"{cell}{escaped(text)}</td>" for cell, text in zip(cells, row, strict=True))
        for row in one.rows
    )
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return Markup(  # noqa: S704 - every text is escaped
        f'<div class="scroll"><table class="texts"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>{notes(one.notes)}"
    )


def notes(texts: Iterable[str]) -> Markup:
    """Return texts as a list, "" without any."""
    items = "".join(f"<li>{prose(text)}</li>" for text in texts)
    return Markup(f'<ul class="notes">{items}</ul>' if items else "")  # noqa: S704 - see above
