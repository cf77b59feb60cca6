"""Graphs of recorded builds, compared stage by stage.

The first stage with a difference is the cause of those in later stages, so only its graphs are
compared in detail.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from buildsys.cli.build_names import Side
from buildsys.cli.graph_files import ask_inspection, graph_request, stored_graph
from buildsys.errors import StageError, UsageError
from buildsys.history.builds import Build
from buildsys.plan.action import Action
from buildsys.project.plan import plan_model
from buildsys.stages.table import ENGINE
from buildsys.store.object_store import Store

EQUAL, DIFFERENT, UNKNOWN = "equal", "different", "unknown"
ONLY_FIRST, ONLY_SECOND = "only in the first", "only in the second"
_ROLE = "engine"


@dataclass(frozen=True)
class StageGraphs:
    """The graphs of a stage in two builds."""

    stage: str  # "export", "convert:fp16", "engine:ort"
    state: str  # EQUAL, DIFFERENT, UNKNOWN, ONLY_FIRST or ONLY_SECOND
    note: str = ""  # why they are unknown


@dataclass(frozen=True)
class GraphComparison:
    """The graphs of all stages in two builds."""

    stages: tuple[StageGraphs, ...] = ()
    compared: str = ""  # the first stage with different graphs
    difference: Mapping[str, Any] | None = None  # as `buildsys compare --json` prints it for graphs

    @property
    def changed(self) -> list[StageGraphs]:
        """The stages with graphs not known to be equal."""
        return [graphs for graphs in self.stages if graphs.state != EQUAL]

    def as_json(self) -> dict[str, Any]:
        """Convert the comparison for ``--json``."""
        return {
            "graph": self.difference,
            "graph_stage": self.compared,
            "graphs": [asdict(graphs) for graphs in self.stages],
        }


def compare_recorded_graphs(
    store: Store, sides: tuple[Side, Side], manifests: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> GraphComparison:
    """Compare the graphs of two builds, in the order of stages."""
    first, second = map(_graphs, sides, manifests)
    stages: list[StageGraphs] = []
    compared, difference = "", None
    for stage in _in_order(list(first), list(second)):
        if stage not in first or stage not in second:
            stages.append(StageGraphs(stage, ONLY_SECOND if stage in second else ONLY_FIRST))
            continue
        builds = [graph[0] for graph in (first[stage], second[stage])]
        role = first[stage][1]
        names = (role, f"{role}.data")
        digests = [[build.outputs.get(name) for name in names] for build in builds]
        if digests[0] == digests[1]:
            stages.append(StageGraphs(stage, EQUAL))
            continue
        if compared:  # an effect of that difference, or one more
            stages.append(StageGraphs(stage, DIFFERENT))
            continue
        try:
            requests = [graph_request(*stored_graph(store, build, role)) for build in builds]
            comparison = ask_inspection("compare", {"first": requests[0], "second": requests[1]})
        except StageError as error:
            stages.append(StageGraphs(stage, UNKNOWN, error.problem))
            continue
        if not comparison["is_equal"]:
            compared, difference = stage, comparison
        stages.append(StageGraphs(stage, EQUAL if comparison["is_equal"] else DIFFERENT))
    return GraphComparison(tuple(stages), compared, difference)


def _graphs(side: Side, manifest: Mapping[str, Any]) -> dict[str, tuple[Build, str]]:
    """List the build and the output with the graph by stage, in the order of the stages."""
    planned = _planned(side, manifest)
    targets = list(planned) or sorted(side.builds, key=lambda target: side.builds[target].position)
    graphs = {}
    for target in targets:
        build = side.builds.get(target)
        if build is None:
            continue
        role, stage = "model", ":".join(filter(None, (build.stage, build.variant)))
        if build.stage == ENGINE and target in planned:
            path = planned[target].outputs[_ROLE].path
            role = _ROLE if path.endswith(".onnx") else ""
            stage = ENGINE if side.engine else stage
        if role in build.outputs:
            graphs[stage] = build, role
    return graphs


def _planned(side: Side, manifest: Mapping[str, Any]) -> dict[str, Action]:
    """Plan the targets of a recorded manifest in build order.

    For one engine, only those it is built from. {}: another version recorded the manifest.
    """
    planned: dict[str, Action] = {}
    # of another version of buildsys
    with suppress(LookupError, TypeError, ValueError, AttributeError, UsageError):
        planned = {action.target: action for action in plan_model(dict(manifest))}
    engine = f"{ENGINE}:{side.model}:{side.engine}"
    if not side.engine or engine not in planned:
        return planned
    needed, waiting = set[str](), [engine]
    while waiting:
        target = waiting.pop()
        needed.add(target)
        waiting += (name for name in planned[target].after if name not in needed)
    return {target: action for target, action in planned.items() if target in needed}


def _in_order(first: list[str], second: list[str]) -> list[str]:
    """Merge the stages of both builds, each in its order."""
    merged = list(first)
    for number, stage in enumerate(second):
        if stage not in merged:
            before = [merged.index(other) for other in second[:number]]
            merged.insert(max(before, default=-1) + 1, stage)
    return merged
