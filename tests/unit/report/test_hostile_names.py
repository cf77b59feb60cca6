from hostile_text import with_hostile_names
from html_page import Page, page_of
from markdown_it import MarkdownIt
from markdown_it.token import Token
from tiny_results import Results

from buildsys.report.assemble import assemble
from buildsys.report.html.pages import render_model
from buildsys.report.markdown import render


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


def test_no_name_adds_an_element_or_attribute_to_a_page(results: Results) -> None:
    results.failed("validate:tiny", "off", hint="choose\nfirst\nsecond")
    page = page_of(assemble("tiny", results.manifest, results.inputs, {}))
    plain, attacked = Page(render_model(page)), Page(render_model(with_hostile_names(page)))
    known = {(tag, frozenset(attributes)) for tag, attributes in plain.elements}
    known.add(("title", frozenset()))  # the full text of a shortened one
    assert {(tag, frozenset(attributes)) for tag, attributes in attacked.elements} <= known
    assert plain.links == attacked.links == [link for link in plain.links if link[:1] in "#i"]
    assert not set("\x1b\x07\u202e") & set(attacked.source)
    assert "<script>alert(1)</script>" in attacked.text
