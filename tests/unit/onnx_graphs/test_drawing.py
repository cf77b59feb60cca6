import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from plain_graphs import body, chain, node, residual_blocks

from buildsys.errors import StageError, Unavailable, UsageError
from buildsys.onnx_graphs.inspection.drawing import Block, Drawing, choose, draw, fold
from buildsys.onnx_graphs.inspection.graph import TIMES, Body, PlainNode
from buildsys.system.programs import render_svg

HOSTILE = "]]><script>alert(1)</script><img onerror='x'>\"\\N\\G\\\x1b[2J\x07\u202e\n\x00&lt;}];"
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")


def forked() -> Body:
    stem = chain("Conv", "Relu", end="r")
    left = chain("Neg", "Exp", prefix="l", begin="r", end="p")
    return body([*stem, *left, node("Abs", "r", "q"), node("Add", "p q", "y")])


def operators(graph: Body, *ends: object) -> list[str]:
    return [each.operator for each in choose(graph, *ends)]  # type: ignore[arg-type]


def titles(drawing: Drawing) -> list[str]:
    return re.findall(r"<b>(.*?)</b>", drawing.dot)


def edges(drawing: Drawing) -> set[tuple[str, str]]:
    """Return the edges between titles, or names of inputs and outputs."""
    label = r'^(\w+) \[label=<(?:<font point-size="11"><b>)?(.*?)[<>]'
    name = dict(re.findall(label, drawing.dot, re.MULTILINE))
    return {(name[a], name[b]) for a, b in re.findall(r"^(\w+) -> (\w+)$", drawing.dot, re.M)}


def svg_of(graph: Body, title: str = "t") -> ElementTree.Element:
    return ElementTree.fromstring(render_svg(draw(graph, title).dot))


def test_a_part_has_all_paths_between_two_names() -> None:
    graph = forked()
    assert operators(graph, "r", "p") == ["Neg", "Exp"]
    assert operators(graph, "n_r", "y") == ["Relu", "Neg", "Exp", "Abs", "Add"]
    assert operators(graph, "q") == ["Add"]
    assert operators(graph, "", "t1") == ["Conv"]
    assert operators(graph, "n_r", "", 2) == ["Relu", "Neg", "Abs"]
    assert operators(graph, "", "", 2) == ["Conv", "Relu"]
    assert operators(graph, "", "y", 2) == ["Exp", "Abs", "Add"]


def test_unknown_names_and_missing_paths_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="no node or tensor 'n_rr'; nearest: n_r"):
        choose(forked(), "n_rr")
    with pytest.raises(UsageError, match="no path leads from p to q"):
        choose(forked(), "p", "q")


def test_few_nodes_are_single_boxes_with_all_edges() -> None:
    drawing = draw(forked(), "t")
    assert titles(drawing) == ["Conv", "Relu", "Neg", "Exp", "Abs", "Add"]
    assert edges(drawing) == {
        ("x", "Conv"), ("Conv", "Relu"), ("Relu", "Neg"), ("Neg", "Exp"), ("Relu", "Abs"),
        ("Exp", "Add"), ("Abs", "Add"), ("Add", "y"),
    }  # fmt: skip


def test_a_part_shows_the_tensors_at_its_border() -> None:
    assert edges(draw(forked(), "t", "r", "p")) == {("r", "Neg"), ("Neg", "Exp"), ("Exp", "p")}


def test_repeated_blocks_are_drawn_once() -> None:
    head = chain("Conv", "Relu", "MaxPool", prefix="h", begin="x", end="b0")
    tail = chain("GlobalAveragePool", "Gemm", prefix="e", begin="b16", end="y")
    drawing = draw(body([*head, *residual_blocks(16), *tail]), "t")
    assert (drawing.nodes, drawing.boxes) == (85, 10)
    assert f'label="{TIMES} 16"' in drawing.dot
    assert ("Relu", "GlobalAveragePool") in edges(drawing)
    assert ("MaxPool", "Add") in edges(drawing)


def test_blocks_with_other_shapes_or_sources_are_other_blocks() -> None:
    nodes = [node("Neg", "x", "b0"), *residual_blocks(8)]
    values = {name: [1, 9] for each in nodes[21:] for name in each.outputs}
    drawing = draw(body(nodes, "x", "b8", values=values), "t")
    assert re.findall(f"{TIMES} (\\d+)", drawing.dot) == ["4", "4"]
    blocks, _ = fold(["a"] * 6, [(), (0,), (1,), (0,), (3,), (0,)])
    assert {block.runs for block in blocks} == {1}  # equal operators alone are no repetition
    blocks, drawn = fold(["a", *"bcbcbc"], [(), (0, 0), (1,), (2, 0), (3,), (4, 0), (5,)])
    assert blocks == [Block((0,), 1), Block((1, 2), 3)]  # all read node 0
    assert drawn == [0, 1, 2, 1, 2, 1, 2]


def test_constants_are_not_drawn() -> None:
    nodes = [node("Identity", "w", "v"), node("Conv", "x v", "y"), node("Identity", "w", "z")]
    drawing = draw(body(nodes, "x", "y z", stored={"w": "d"}), "t")
    assert titles(drawing) == ["Conv", "Identity"]  # the second one is an output


@needs_dot
def test_a_picture_has_names_and_shapes() -> None:
    nodes = [node("Conv", "x w", "a<b"), node("Relu", "a<b", "y")]
    texts = "\n".join(svg_of(body(nodes, values={"y": [1, "batch"]}), "a & <b>").itertext())
    for text in ("a & <b>", "Conv", "n_a<b", "→ [1, batch]"):
        assert text in texts


@needs_dot
def test_hostile_names_stay_text() -> None:
    inner = PlainNode(HOSTILE, HOSTILE, (HOSTILE,), ("y",), {"axis": HOSTILE})
    document = svg_of(Body((HOSTILE,), ("y",), (inner,)), HOSTILE)
    tags = {element.tag.rpartition("}")[2] for element in document.iter()}
    assert tags <= {"svg", "g", "a", "title", "text", "path", "polygon", "ellipse"}
    assert not any(name.startswith("on") for each in document.iter() for name in each.attrib)
    texts = "".join(document.itertext())
    assert "<script>alert(1)</script><img onerror='x'>\"\N{REVERSE SOLIDUS OPERATOR}N" in texts
    assert "&lt;}];" in texts
    assert not set("\x1b\x07\u202e\x00") & set(texts)


@needs_dot
def test_what_graphviz_refuses_is_one_sentence() -> None:
    with pytest.raises(StageError, match=r"dot: .*syntax error"):
        render_svg("digraph {")


def test_without_graphviz_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="apt-get install graphviz"):
        render_svg("digraph {}")
