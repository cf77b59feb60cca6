"""The result file of the search stage."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict


class SearchedGraph(TypedDict, total=False):
    """A graph compared with the golden outputs, or by the metric of `evaluate`."""

    passed: bool
    verdict: str  # of the metric: passed | failed | undecided
    in_fp32: int  # nodes
    value: float  # of the metric
    loss: float  # against the original, with its interval; a gain is negative
    low: float
    high: float
    relative: float | None  # the worst of all outputs and cases; None if not finite
    reason: str


REASON = "the search keeps it for the limits"  # in lists of nodes in fp32
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
    limits: dict[str, float | None]  # "drop": of the metric
    title: str  # of the metric
    is_share: bool
    graphs: list[SearchedGraph]  # all that were judged by the metric, in order


@dataclass(frozen=True)
class KeptNodes:
    """Nodes in fp32; ``all`` if no other choice is within the limits.

    ``results`` has the outputs of these and of nodes that every conversion keeps.
    """

    names: Sequence[str] = ()
    all: bool = False
    results: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_kept_nodes(file: Path | None) -> KeptNodes:
    """Read the list that a search wrote for later stages, empty without a search."""
    return KeptNodes(**json.loads(file.read_text(encoding="utf-8"))) if file else KeptNodes()
