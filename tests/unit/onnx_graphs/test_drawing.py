from __future__ import annotations

from xml.etree import ElementTree

import pytest
from plain_graphs import body, chain, node, residual_blocks

from buildsys.cli.html_pages import _PLAIN_SVG
from buildsys.errors import UsageError
from buildsys.onnx_graphs.inspection.drawing.labels import text_width, wrapped
from buildsys.onnx_graphs.inspection.drawing.svg import choose, draw
from buildsys.onnx_graphs.inspection.plain_graph import Body, PlainNode

SVG = "{http://www.w3.org/2000/svg}"


def forked() -> Body:
    stem = chain("Conv", "Relu", end="r")
    left = chain("Neg", "Exp", prefix="l", begin="r", end="p")
    return body([*stem, *left, node("Abs", "r", "q"), node("Add", "p q", "y")])


def labels(graph: Body, *ends: object) -> list[str]:
    return [one.operator for one in choose(graph, *ends)]  # type: ignore[arg-type]


def test_a_picture_can_be_inside_a_page() -> None:
    graph = body([*residual_blocks(2), node('<"&', "b2", "y", "a<b")], inputs="b0")
    assert _PLAIN_SVG.fullmatch(draw(graph, "title & <more>")[0])


def test_a_part_has_all_paths_between_two_names() -> None:
    graph = forked()
    assert labels(graph, "r", "p") == ["Neg", "Exp"]
    assert labels(graph, "n_r", "y") == ["Relu", "Neg", "Exp", "Abs", "Add"]
    assert labels(graph, "q") == ["Add"]
    assert labels(graph, "", "t1") == ["Conv"]
    assert labels(graph, "n_r", "", 2) == ["Relu", "Neg", "Abs"]
    assert labels(graph, "", "", 2) == ["Conv", "Relu"]
    assert labels(graph, "", "y", 2) == ["Exp", "Abs", "Add"]


def test_unknown_names_and_missing_paths_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="no node or tensor 'n_rr'; nearest: n_r"):
        choose(forked(), "n_rr")
    with pytest.raises(UsageError, match="no path leads from p to q"):
        choose(forked(), "p", "q")


def test_the_document_is_well_formed_and_complete() -> None:
    graph = body(
        [node("Conv", "x w", "a<b"), node("my::Op&", "a<b", "y")], values={"y": [1, "batch"]}
    )
    text, shown = draw(graph, "title & <more>")
    words = [element.text for element in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert {"title & <more>", "Conv", "my::Op&", "x", "y", "→ [1, batch]"} <= set(words)
    assert shown == {"nodes": 2, "boxes": 2}


def test_no_text_is_wider_than_its_box() -> None:
    long = "/a/very/long/name/of/a/module/inside/of/another/module/with_a_name/Conv"
    graph = body(
        [PlainNode(long, "Conv", ("x",), ("y" * 70,), {"kernel_shape": "[3, 3]"})], outputs="y" * 70
    )
    text, _ = draw(graph, "t")
    for group in ElementTree.fromstring(text).iter(f"{SVG}g"):
        box = group.find(f"{SVG}rect")
        if box is None:
            continue
        for line in group.findall(f"{SVG}text"):
            size = float(line.get("font-size", "10"))
            width = text_width(line.text or "", size, bold=line.get("font-weight") == "bold")
            assert width <= float(box.get("width", "0"))


def test_the_same_graph_gives_the_same_bytes_and_few_boxes() -> None:
    graph = body(residual_blocks(100), "b0", "b100")
    first, shown = draw(graph, "t")
    assert first == draw(body(residual_blocks(100), "b0", "b100"), "t")[0]
    assert shown == {"nodes": 500, "boxes": 1}
    assert "100 times in a row" in first


def test_bodies_are_drawn_inside_their_node() -> None:
    branch = body([node("Sigmoid", "x", "t")], "", "t")
    graph = body(
        [
            PlainNode(
                "if",
                "If",
                ("c",),
                ("y",),
                {},
                {"then_branch": branch, "else_branch": body([], "", "x")},
            )
        ],
        "c x",
    )
    words = [
        element.text for element in ElementTree.fromstring(draw(graph, "t")[0]).iter(f"{SVG}text")
    ]
    assert {"If", "then_branch", "Sigmoid"} <= set(words)


def test_long_words_are_wrapped_completely() -> None:
    name = "/features/features.1/features.1.0/attn/" + "x" * 50
    lines = wrapped(name, 20)
    assert "".join(lines) == name
    assert max(map(len, lines)) <= 20
    assert wrapped("Conv → Relu", 34) == ["Conv → Relu"]


def test_hostile_names_stay_text() -> None:
    name = "]]><script>alert(1)</script><img onerror='x'>\"\x1b[2J\x07\u202e\n\x00&lt;"
    bodies = {name: Body((name,), (name,), ())}
    graph = Body((name,), ("y",), (PlainNode(name, name, (name,), ("y",), {name: name}, bodies),))
    document = ElementTree.fromstring(draw(graph, name)[0])
    tags = {element.tag.rpartition("}")[2] for element in document.iter()}
    assert tags <= {"svg", "defs", "marker", "path", "rect", "text", "g", "title"}
    shown = "".join(document.itertext())
    assert "<script>" in shown
    assert not set("\x1b\x07\u202e\x00") & set(shown)
