"""What a job demands of a Ray cluster: logical resources, as nodes offer them.

Each node that takes jobs offers 1 of the resource ``buildsys``. A job takes a small part of it, one
that must run alone takes all. So it waits until no other job of any driver runs on its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from buildsys.execution.executors.interface import RemoteJob
from buildsys.execution.machine_needs import in_gib, words

NODE = "buildsys"
SHARE = 0.0001  # Ray's smallest part: 10,000 jobs on a node
_TYPE = "accelerator_type:"


class Demand(TypedDict):
    """The resources of a job."""

    name: str
    cpus: float
    gpus: int
    memory: int  # bytes
    gpu: str  # words of its name
    labels: list[str]
    resources: dict[str, float]


def demand_of(job: RemoteJob, settings: Mapping[str, Any]) -> Demand:
    """Return the resources of a job on an executor of project.yaml.

    All jobs demand what the executor offers, as its machines are equal.
    """
    needs, offers = job.needs, settings.get("offers") or {}
    labels = sorted({*needs.labels, *(offers.get("labels") or ())})
    own = {name: float(amount) for name, amount in (settings.get("resources") or {}).items()}
    alone = job.exclusive or needs.exclusive
    return Demand(
        name=job.name,
        cpus=float(settings["cpus"]),
        gpus=needs.gpu_count,
        memory=needs.memory,
        gpu=needs.gpu or offers.get("gpu") or "",
        labels=labels,
        resources={NODE: 1.0 if alone else SHARE, **dict.fromkeys(labels, SHARE), **own},
    )


def accelerator_type(gpu: str, offered: Iterable[str]) -> str:
    """Return Ray's resource for GPUs with these words in their names.

    Ray's types are short (``H100``) or joined (``RTX-PRO-6000``); ``offered`` are the resources of
    all nodes.
    """
    wanted = words(gpu)
    known = {name: words(name.removeprefix(_TYPE)) for name in offered if name.startswith(_TYPE)}
    exact = sorted(name for name, found in known.items() if wanted <= found)
    shorter = sorted(name for name, found in known.items() if found < wanted)
    return [*exact, *shorter, _TYPE + "-".join(gpu.split())][0]


def missing_resources(wanted: Mapping[str, float], nodes: Iterable[Mapping[str, float]]) -> str:
    """Return why a job is impossible, "" if a node can run it."""
    demanded = {name: amount for name, amount in wanted.items() if amount > 0}
    nodes = list(nodes)
    if not nodes:
        return "the cluster has no nodes"
    lacking = [
        [name for name, amount in demanded.items() if node.get(name, 0.0) < amount]
        for node in nodes
    ]
    fewest = min(lacking, key=len)
    if not fewest:
        return ""
    for name in demanded:
        if all(name in one for one in lacking):
            return f"no node has {_in_words(name, demanded[name])}"
    return f"no node has {' and '.join(_in_words(name, demanded[name]) for name in demanded)}"


def _in_words(name: str, amount: float) -> str:
    if name == "CPU":
        return f"{amount:g} CPU{'s' * (amount != 1)}"
    if name == "GPU":
        return f"{amount:g} GPU{'s' * (amount != 1)}"
    if name == "memory":
        return f"{in_gib(amount)} of memory"
    if name.startswith(_TYPE):
        return f"a GPU of the type {name.removeprefix(_TYPE)}"
    return f"the resource {name} (ray start --resources '{{\"{name}\": 1}}')"
