"""Lists of nodes kept in fp32 by a search."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from buildsys.workers.job import Job

REASON = "the search keeps it for the limits"


@dataclass(frozen=True)
class KeptNodes:
    """Nodes in fp32; ``all`` if no other choice is within the limits."""

    names: tuple[str, ...] = ()
    all: bool = False
    # with their results, and those that every conversion keeps
    results: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def kept_nodes(job: Job) -> KeptNodes:
    """Read the nodes of a job's search, none without one."""
    if "nodes" not in job.inputs:
        return KeptNodes()
    content = json.loads(job.inputs["nodes"].read_text(encoding="utf-8"))
    names = tuple(node["name"] for node in content["nodes"])
    nodes = (*content["nodes"], *content["by_rule"])
    results = {node["name"]: tuple(node["outputs"]) for node in nodes}
    return KeptNodes(names, content["all"], results)
