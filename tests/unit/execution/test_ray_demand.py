"""Needs of jobs as resources of Ray."""

from __future__ import annotations

import pytest

from buildsys.execution.executors.interface import RemoteJob
from buildsys.execution.executors.ray_demand import (
    accelerator_type,
    demand_of,
    missing_resources,
)
from buildsys.manifest.executor_defaults import defaults_of
from buildsys.plan.action import NO_NEEDS, Needs

SETTINGS = {"kind": "ray", **defaults_of("ray")}
NODE = {"CPU": 8.0, "memory": 16.0 * 2**30, "node:10.0.0.1": 1.0, "buildsys": 1.0}
GPU_NODE = {**NODE, "GPU": 2.0, "accelerator_type:H100": 1.0, "trt86": 1.0}


def resources(needs: Needs = NO_NEEDS, exclusive: bool = False) -> dict[str, float]:
    return demand_of(RemoteJob("j", (), needs, exclusive), SETTINGS)["resources"]


def wanted(needs: Needs = NO_NEEDS) -> dict[str, float]:
    demand = demand_of(RemoteJob("j", (), needs), SETTINGS)
    found = {"CPU": demand["cpus"], "GPU": demand["gpus"], "memory": demand["memory"]}
    if demand["gpu"]:
        found[accelerator_type(demand["gpu"], GPU_NODE)] = 0.0001
    return {**found, **demand["resources"]}


def test_a_job_without_needs_takes_a_cpu_and_a_small_part_of_its_node() -> None:
    demand = demand_of(RemoteJob("export-m", ("run-action",), NO_NEEDS), SETTINGS)
    assert demand["resources"] == {"buildsys": 0.0001}
    assert (demand["cpus"], demand["gpus"], demand["memory"], demand["gpu"]) == (1.0, 0, 0, "")


@pytest.mark.parametrize(("job", "needs"), [(True, NO_NEEDS), (False, Needs(exclusive=True))])
def test_a_job_that_runs_alone_takes_its_whole_node(job: bool, needs: Needs) -> None:
    assert resources(needs, job) == {"buildsys": 1.0}


def test_labels_do_not_limit_the_number_of_jobs() -> None:
    assert resources(Needs(labels=("trt86", "lab"))) == {
        "buildsys": 0.0001, "lab": 0.0001, "trt86": 0.0001,
    }  # fmt: skip


def test_every_job_runs_where_the_offers_of_the_executor_are() -> None:
    settings = {**SETTINGS, "offers": {"gpu": "H100", "labels": ["trt86"]}}
    demand = demand_of(RemoteJob("describe", (), NO_NEEDS), settings)
    assert (demand["gpu"], demand["gpus"], demand["labels"]) == ("H100", 0, ["trt86"])


def test_cpus_and_resources_are_those_of_the_executor() -> None:
    settings = {**SETTINGS, "cpus": 4, "resources": {"licence": 1}}
    demand = demand_of(RemoteJob("j", (), NO_NEEDS), settings)
    assert demand["cpus"] == 4.0
    assert demand["resources"] == {"buildsys": 0.0001, "licence": 1.0}


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ("H100", "H100"),
        ("h100", "H100"),
        ("H100 PCIe", "H100"),  # Ray's names leave words out
        ("RTX 6000", "RTX-PRO-6000"),
        ("GeForce RTX 5090", "GeForce-RTX-5090"),
        ("A100", "A100"),  # no node offers it yet
        ("Quadro T1000", "Quadro-T1000"),
    ],
)
def test_gpus_are_found_by_the_words_of_their_names(gpu: str, found: str) -> None:
    offered = ["CPU", "accelerator_type:H100", "accelerator_type:RTX-PRO-6000"]
    assert accelerator_type(gpu, offered) == f"accelerator_type:{found}"


@pytest.mark.parametrize(
    ("needs", "problem"),
    [
        (NO_NEEDS, ""),
        (Needs(gpu="H100", gpu_count=2, memory=8 << 30, labels=("trt86",)), ""),
        (Needs(gpu="L4", gpu_count=1), "no node has a GPU of the type L4"),
        (Needs(gpu="H100", gpu_count=3), "no node has 3 GPUs"),
        (Needs(memory=64 << 30), "no node has 64 GiB of memory"),
    ],
)
def test_it_is_said_what_no_node_has(needs: Needs, problem: str) -> None:
    assert missing_resources(wanted(needs), [NODE, GPU_NODE]) == problem


def test_an_unknown_label_comes_with_the_command_that_adds_it() -> None:
    problem = missing_resources(wanted(Needs(labels=("trt10",))), [NODE, GPU_NODE])
    assert problem == """no node has the resource trt10 (ray start --resources '{"trt10": 1}')"""


def test_a_combination_that_no_node_has_is_named_completely() -> None:
    other = {**NODE, "lab": 1.0}
    problem = missing_resources(
        wanted(Needs(gpu="H100", gpu_count=1, labels=("lab",))), [GPU_NODE, other]
    )
    assert problem.startswith("no node has 1 CPU and 1 GPU and ")
    assert missing_resources(wanted(), []) == "the cluster has no nodes"
