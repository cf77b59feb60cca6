"""Rewrites of programs that leave the order of tensors in memory to the compiler.

They change no value, as long as the program is functional: no call changes a tensor.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

_ATEN = torch.ops.aten
_MATRIX_RANK = 2


def free_strides(program: torch.export.ExportedProgram) -> bool:
    """Rewrite calls that need tensors in a certain order, or are slow in another one.

    Returns: False, without a change, for a program that reads memory by strides of its own.
    """
    graph = program.graph
    if any("as_strided" in str(node.target) for node in graph.nodes):
        return False
    for node in graph.nodes:
        if node.target is _ATEN.view.default:  # refused for an image whose channels lie last
            node.target = _ATEN.reshape.default
    for node in graph.nodes:
        if node.target in (_ATEN.linear.default, _ATEN.matmul.default):
            _multiply_once(node)
        elif node.target is _ATEN.reshape.default:
            _split_heads_in_place(node)
    # query, key and value of attention are copied as one tensor, and then taken apart
    for node in graph.find_nodes(op="call_function", target=_ATEN.clone.default):
        if all(user.target is _ATEN.select.int for user in node.users):
            node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return True


def _multiply_once(node: Any) -> None:
    """Copy rows that PyTorch cannot fold into one matrix: it would make a product of each part."""
    rows, weights = (_value(argument) for argument in node.args[:2])
    if rows.dim() > _MATRIX_RANK >= weights.dim():
        copied = _inserted(node, _ATEN.contiguous.default, node.args[0])
        node.replace_input_with(node.args[0], copied)


def _split_heads_in_place(node: Any) -> None:
    """Split heads of attention, as torch.nn.MultiheadAttention does, without a copy.

    It goes from (S, B, H·D) by (S, B·H, D) to (B, H, S, D), for which B and H must be adjacent.
    """
    transposed, sizes = node.args
    if not _calls(transposed, _ATEN.transpose.int) or tuple(transposed.args[1:]) != (0, 1):
        return
    merged = transposed.args[0]
    if not _calls(merged, _ATEN.reshape.default):
        return
    source = merged.args[0]
    before, between, after = (_value(part).shape for part in (source, merged, node))
    if (len(before), len(between), len(after)) == (3, 3, 4):
        batch, heads, length, size = after
        pairs = zip(
            (*before, *between),
            (length, batch, heads * size, length, batch * heads, size),
            strict=True,
        )
        if all(statically_known_true(a == b) for a, b in pairs):
            sizes = [sizes[axis] for axis in (2, 0, 1, 3)]
            split = _inserted(node, _ATEN.reshape.default, source, sizes)
            node.replace_all_uses_with(_inserted(node, _ATEN.permute.default, split, [1, 2, 0, 3]))


def _calls(node: Any, target: Any) -> bool:
    return isinstance(node, Node) and node.target is target


def _value(node: Any) -> Any:
    return node.meta["val"]


def _inserted(node: Node, target: Any, source: Any, *sizes: Sequence[Any]) -> Node:
    """Insert a call in front of a node."""
    with node.graph.inserting_before(node):
        call = node.graph.call_function(target, (source, *sizes))
    known = [[_value(n) if isinstance(n, Node) else n for n in values] for values in sizes]
    call.meta["val"] = target(_value(source), *known)
    return call
