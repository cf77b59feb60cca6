"""The result file of the search stage."""

from __future__ import annotations

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict


class SearchedGraph(TypedDict, total=False):
    """A graph compared with the golden outputs."""

    passed: bool
    relative: float | None  # the worst of all outputs and cases; None if not finite
    reason: str


# "with" is no name in Python
_Graphs = TypedDict("_Graphs", {"without": SearchedGraph, "with": SearchedGraph}, total=False)


class SearchResult(_Graphs, ResultHeader, total=False):
    """The nodes that stay in fp32, and what they change."""

    precision: str
    nodes: list[list[str]]  # name and operator
    candidates: int  # nodes that the precision would change
    is_smallest: bool
    is_fp32: bool  # no choice of nodes is within the limits
    trials: int
    exclude: list[str]
    macs_low: float | None  # share of the multiply-accumulates in the precision
    limits: dict[str, float | None]
