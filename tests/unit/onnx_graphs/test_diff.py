from typing import Any

from plain_graphs import body, chain, node

from buildsys.onnx_graphs.inspection.diff import Matching, compare, compare_bodies
from buildsys.onnx_graphs.inspection.graph import Body, PlainModel, PlainNode


def matched(first: Body, second: Body) -> dict[str, str]:
    return {ours.label: theirs.label for ours, theirs in Matching(first, second).nodes.items()}


def network(graph: Body, **opsets: int) -> PlainModel:
    return PlainModel(graph, 8, "pytorch", opsets or {"ai.onnx": 17})


def batch_norm() -> tuple[Body, Body]:
    norm = "scale bias mean var"
    before = body(
        [
            node("Conv", "x w", "c", "conv"),
            node("BatchNormalization", f"c {norm}", "b", "bn"),
            node("Relu", "b", "y"),
        ],
        stored={"w": "old", **dict.fromkeys(norm.split(), "n")},
    )
    after = body(
        [node("Conv", "x w2 b2", "b", "conv_2"), node("Relu", "b", "y")],
        stored={"w2": "new", "b2": "bias"},
    )
    return before, after


def kinds(group: dict[str, Any]) -> list[str]:
    return [end["kind"] for end in (*group["from"], *group["to"])]


def test_a_folded_batch_norm_is_removed_between_two_nodes() -> None:
    differences = compare_bodies(*batch_norm())
    (group,) = differences["gone"]
    assert (group["chain"], kinds(group)) == ("BatchNormalization", ["Conv", "Relu"])
    assert [(end["node"], end["tensor"]) for end in group["from"]] == [("conv", "c")]
    assert [(end["node"], end["tensor"]) for end in group["to"]] == [("n_y", "b")]
    (changed,) = differences["changed"]
    assert (changed["was"], changed["label"]) == ("conv", "conv_2")
    assert [end["port"] for end in changed["weights"]] == [1, 2]
    assert differences["come"] == []


def test_replaced_nodes_are_removed_and_added() -> None:
    before = body([*chain("MatMul", "Add", begin="x", end="s"), node("Relu", "s", "y")])
    after = body([node("Gemm", "x", "s"), node("Relu", "s", "y")])
    differences = compare_bodies(before, after)
    assert [group["chain"] for group in differences["gone"]] == ["MatMul → Add"]
    assert [group["chain"] for group in differences["come"]] == ["Gemm"]
    assert differences["changed"] == []


def test_renamed_nodes_and_inputs_are_matched_by_structure() -> None:
    first = body([*chain("Conv", "Relu", "Conv", "Relu", end="s"), node("Add", "s x", "y")])
    second = body([
        node("Conv", "image", "1", "a"), node("Relu", "1", "2", "b"), node("Conv", "2", "3", "c"),
        node("Relu", "3", "4", "d"), node("Add", "4 image", "y", "e"),
    ], inputs="image")  # fmt: skip
    assert list(matched(first, second).values()) == ["e", "a", "b", "c", "d"]
    assert compare_bodies(first, second)["changed"] == []


def test_similar_nodes_are_matched_by_their_weights() -> None:
    first = body(
        [node("Conv", "x u", "a"), node("Conv", "x v", "b"), node("Add", "a b", "y")],
        stored={"u": "1", "v": "2"},
    )
    second = body(
        [node("Conv", "x v", "p"), node("Conv", "x u", "q"), node("Add", "q p", "y")],
        stored={"u": "1", "v": "2"},
    )
    assert matched(first, second) == {"n_y": "n_y", "n_a": "n_q", "n_b": "n_p"}
    assert compare_bodies(first, second)["changed"] == []


def test_a_node_after_an_added_one_is_matched_by_its_consumers() -> None:
    first = body([node("Neg", "x", "a"), node("Conv", "a", "b"), node("Relu", "b", "y")])
    second = body([node("Exp", "x", "k"), node("Conv", "k", "l", "other"), node("Relu", "l", "y")])
    assert matched(first, second)["n_b"] == "other"


def test_changed_attributes_and_inputs_are_listed() -> None:
    first = body([node("Softmax", "x", "s", axis="1"), node("Add", "s x", "y")])
    second = body([node("Softmax", "x", "s", axis="-1"), node("Add", "s s", "y")])
    differences = compare_bodies(first, second)
    changed = {change["label"]: change for change in differences["changed"]}
    assert changed["n_s"]["attributes"] == {"axis": ["1", "-1"]}
    assert changed["n_y"]["inputs"] == [{"port": 1, "from": "x", "to": "s"}]


def test_initializers_are_compared_by_name_and_content() -> None:
    first = body(chain("Relu"), stored={"kept": "a", "edited": "b", "old": "c", "lost": "d"})
    second = body(chain("Relu"), stored={"kept": "a", "edited": "z", "new": "c", "fresh": "e"})
    differences: dict[str, Any] = compare_bodies(first, second)["initializers"]
    assert [stored["name"] for stored in differences["gone"]] == ["lost"]
    assert [stored["name"] for stored in differences["come"]] == ["fresh"]
    assert [stored["name"] for stored in differences["changed"]] == ["edited"]


def test_bodies_are_compared_as_well() -> None:
    def graph(operator: str) -> Body:
        branch = body([node(operator, "x", "t")], inputs="", outputs="t")
        return body([PlainNode("if", "If", ("c",), ("y",), {}, {"then_branch": branch})], "c x")

    (changed,) = compare_bodies(graph("Neg"), graph("Relu"))["changed"]
    assert changed["bodies"]["then_branch"]["gone"][0]["chain"] == "Neg"
    assert compare(network(graph("Neg")), network(graph("Neg")))["is_equal"]


def test_equal_graphs_have_no_difference() -> None:
    before, after = batch_norm()
    assert compare(network(before), network(before))["is_equal"]
    differences = compare(network(before), network(after, **{"ai.onnx": 18}))
    assert not differences["is_equal"]
    assert differences["opsets"] == {"ai.onnx": [17, 18]}
    assert differences["nodes"] == [3, 2]
