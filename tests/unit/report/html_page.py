"""Pages for tests, and a parser of what they contain."""

from html.parser import HTMLParser

from buildsys.report.html.pages import ModelPage, PipelineRow
from buildsys.report.report_types import Report

_VOID = {"meta", "link", "input", "img", "br"}
_UNSHOWN = {"style"}


def page_of(report: Report) -> ModelPage:
    """Return the page of a report."""
    rows = tuple(PipelineRow(line) for line in report.summary)
    return ModelPage(report, "2026-11-22T13:30:00Z", rows)


class Page(HTMLParser):
    """The elements, texts and tables of a page. An element that is not closed fails."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.row_widths: list[list[int]] = []  # cells of the rows of each table
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []

    @property
    def text(self) -> str:
        """All shown text."""
        return " ".join(" ".join(self.texts).split())

    @property
    def links(self) -> list[str]:
        """The targets of all links."""
        return [found["href"] or "" for tag, found in self.elements if tag == "a"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "table":
            self.row_widths.append([])
        if tag == "tr":
            self.rows.append([])
            self.row_widths[-1].append(0)
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.row_widths[-1][-1] += int(dict(attrs).get("colspan") or 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in _UNSHOWN:
            return
        self.texts.append(data)
        if {"td", "th"} & set(self._open) and "table" in self._open:
            self.rows[-1][-1] += data
