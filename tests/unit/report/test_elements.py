from markdown_it import MarkdownIt

from buildsys.report.markdown import code, escape, sentence, table


def rendered(text: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(text)


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    lines = table(("name", "size>"), [("a", "1"), ("longer", "1,000")])
    assert lines == [
        "| name   |  size |",
        "| ------ | ----: |",
        "| a      |     1 |",
        "| longer | 1,000 |",
    ]


def test_no_cell_can_break_out_of_its_table() -> None:
    html = rendered(
        "\n".join(
            table(("a", "b"), [(escape("x | y <b>*z*</b> `q`"), code("p|q")), ("last", "row")])
        )
    )
    assert html.count("<td") == 4
    assert "x | y &lt;b&gt;*z*&lt;/b&gt; <code>q</code>" in html
    assert "<code>p|q</code>" in html


def test_escaped_text_is_one_line_and_not_endless() -> None:
    assert escape("one\n  two") == "one two"
    assert len(escape("x" * 5000)) < 500
    assert escape("x" * 5000).endswith("…")


def test_names_with_underscores_stay_legible() -> None:
    assert escape("mobilenet_v3_small") == "mobilenet_v3_small"
    assert "__init__" in rendered(escape("__init__"))


def test_code_spans_may_contain_backticks() -> None:
    name = "a``<img onerror=x>``"
    assert "<img" not in rendered(code(name))
    assert rendered(code("a `b`")) == "<p><code>a `b`</code></p>\n"
    assert code("") == ""


def test_a_sentence_ends_with_one_full_stop() -> None:
    assert sentence("It failed.") == sentence("It failed") == "It failed."


def test_control_characters_are_replaced() -> None:
    assert escape("a\x1b[31mb\x07") == "a\N{REPLACEMENT CHARACTER}\\[31mb\N{REPLACEMENT CHARACTER}"
    assert code("a\x1bb") == "`a\N{REPLACEMENT CHARACTER}b`"
    assert code("a\u202eb") == "`a\N{REPLACEMENT CHARACTER}b`"


def test_entities_and_strikethrough_are_shown_as_written() -> None:
    assert rendered(escape("&lt;b&gt; a & b")) == "<p>&amp;lt;b&amp;gt; a &amp; b</p>\n"
    assert MarkdownIt("gfm-like", {"linkify": False}).render(escape("~~a~~")) == "<p>~~a~~</p>\n"
