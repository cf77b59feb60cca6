"""Operator names and node iteration."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import FunctionProto, ModelProto, NodeProto

from buildsys.onnx_graphs.onnx_file import all_nodes, subgraphs


def operator_of(item: NodeProto | FunctionProto) -> str:
    """Return ``DOMAIN::NAME``; ONNX's own domain is ``onnx``."""
    name = item.op_type if isinstance(item, NodeProto) else item.name
    return f"{'onnx' if item.domain in ('', 'ai.onnx') else item.domain}::{name}"


def split_operator(op: str) -> tuple[str, str]:
    """Return domain and name."""
    domain, _, name = op.partition("::")
    return domain, name


def nodes_of(item: ModelProto | FunctionProto) -> Iterator[NodeProto]:
    """Yield all nodes, also of subgraphs and local functions."""
    if isinstance(item, ModelProto):
        yield from all_nodes(item.graph)
        for function in item.functions:
            yield from nodes_of(function)
        return
    for node in item.node:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)
