"""The list of nodes that a search keeps in fp32."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from buildsys.workers.job import Job

REASON = "the search keeps it for the limits"


@dataclass(frozen=True)
class KeptNodes:
    """Nodes in fp32 with their results; ``all`` if no other choice is within the limits."""

    results: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    all: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(self.results)


def kept_nodes(job: Job) -> KeptNodes:
    """Return the nodes of a job's search, none without one."""
    if "nodes" not in job.inputs:
        return KeptNodes()
    content = json.loads(job.inputs["nodes"].read_text(encoding="utf-8"))
    results = {node["name"]: tuple(node["outputs"]) for node in content["nodes"]}
    return KeptNodes(results, content["all"])
