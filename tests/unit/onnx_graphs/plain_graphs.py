"""Graphs as plain data, for tests without onnx."""

from collections.abc import Mapping, Sequence

from buildsys.onnx_graphs.inspection.graph import Body, PlainNode, StoredTensor, Value


def node(operator: str, inputs: str, outputs: str, name: str = "", **attributes: str) -> PlainNode:
    return PlainNode(
        name or f"n_{outputs.split()[0]}",
        operator,
        tuple(inputs.split()),
        tuple(outputs.split()),
        attributes,
    )


def body(
    nodes: Sequence[PlainNode],
    inputs: str = "x",
    outputs: str = "y",
    stored: Mapping[str, str] | None = None,
    values: Mapping[str, Sequence[int | str | None]] | None = None,
) -> Body:
    """Return a graph. ``stored`` maps initializers of 4 float32 values to digests."""
    return Body(
        tuple(inputs.split()),
        tuple(outputs.split()),
        tuple(nodes),
        {
            name: StoredTensor("float32", (4,), name, 16, digest)
            for name, digest in (stored or {}).items()
        },
        {name: Value("float32", tuple(shape)) for name, shape in (values or {}).items()},
    )


def chain(*operators: str, prefix: str = "t", begin: str = "x", end: str = "y") -> list[PlainNode]:
    """Return consecutive nodes from one tensor to another."""
    names = [begin, *(f"{prefix}{at}" for at in range(1, len(operators))), end]
    return [node(operator, names[at], names[at + 1]) for at, operator in enumerate(operators)]


def residual_blocks(count: int) -> list[PlainNode]:
    """Return residual blocks of two convolutions."""
    nodes: list[PlainNode] = []
    for at in range(count):
        begin, end = f"b{at}", f"b{at + 1}"
        nodes += chain("Conv", "Relu", "Conv", prefix=f"c{at}_", begin=begin, end=f"m{at}")
        nodes += [node("Add", f"m{at} {begin}", f"s{at}"), node("Relu", f"s{at}", end)]
    return nodes
