"""Manifests of Jobs, and the states of Jobs and Pods as a cluster lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    QUEUED,
    RUNNING,
    JobState,
    RemoteJob,
)
from buildsys.execution.executors.kubernetes import RUN, job_name
from buildsys.execution.executors.kubernetes_jobs import job_manifest, job_states
from buildsys.manifest.executor_defaults import defaults_of
from buildsys.manifest.schema.executors import KubernetesExecutorSpec
from buildsys.plan.action import Needs

PAGE = Path(__file__).resolve().parents[3] / "docs/scale.md"
ARGUMENTS = ("run-action", "5d3f0c…", "--store", "s3://builds/cache", "--answer", "7f21…")
DEFAULTS = defaults_of("kubernetes")
FULL = {
    **DEFAULTS,
    "image": "i",
    "labels": {"kueue.x-k8s.io/queue-name": "gpu"},
    "node_selector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "resources": {"cpu": 4, "memory": "1Gi"},
    "service_account": "builder",
    "image_pull_secrets": ["registry"],
    "secrets": ["s3"],
    "env": {"A": "1"},
    "deadline": 7200.0,
    "keep": 0,
}
NEEDS = Needs(gpu="H100", gpu_count=2, memory=1 << 30, time_s=90.0, exclusive=True)


def examples() -> list[Any]:
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## Kubernetes\n")
    found = re.findall(r"```yaml\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    return [yaml.safe_load(text) for text in found]


def test_the_documented_manifest_is_the_generated_one() -> None:
    settings, manifest = examples()
    (own,) = settings["executors"].values()
    KubernetesExecutorSpec.model_validate(own)
    job = RemoteJob(
        "engine-resnet50-h100", ARGUMENTS, Needs(gpu="H100", gpu_count=1, time_s=3600.0)
    )
    name, run = manifest["metadata"]["name"], manifest["metadata"]["labels"][RUN]
    assert job_manifest(job, {**DEFAULTS, **own}, name, {RUN: run}) == manifest


@pytest.mark.parametrize("version", ["1.26", "1.30", "1.37"])
@pytest.mark.parametrize("settings", [FULL, {**DEFAULTS, "image": "i"}], ids=["full", "small"])
@pytest.mark.parametrize("needs", [NEEDS, Needs()], ids=["needs", "none"])
def test_manifests_match_the_published_schemas(
    version: str, settings: dict[str, Any], needs: Needs
) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    job = RemoteJob("engine-net-ort", ARGUMENTS, needs)
    manifest = job_manifest(job, settings, job_name(job), {RUN: "1"})
    schemas.validate(manifest, version, strict=True)
    manifest["spec"]["backoffLimits"] = 1  # the schemas know what is unknown
    with pytest.raises(schemas.ValidationError):
        schemas.validate(manifest, version, strict=True)


def test_settings_and_needs_are_in_the_manifest() -> None:
    job = RemoteJob("engine-net-ort", ("run-action",), NEEDS)
    made = job_manifest(job, FULL, "n", {RUN: "1"})["spec"]
    assert (made["activeDeadlineSeconds"], made["ttlSecondsAfterFinished"]) == (7200, 0)
    assert made["backoffLimit"] == 0
    labels = made["template"]["metadata"]["labels"]
    assert {"kueue.x-k8s.io/queue-name", RUN, "app.kubernetes.io/managed-by"} == labels.keys()
    pod = made["template"]["spec"]
    assert pod["activeDeadlineSeconds"] == 90
    assert (pod["nodeSelector"], pod["serviceAccountName"]) == ({"pool": "gpu"}, "builder")
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    (container,) = pod["containers"]
    assert container["resources"] == {
        "requests": {"cpu": 4, "memory": "1073741824", "nvidia.com/gpu": "2"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]


def test_names_are_valid_and_new() -> None:
    long = RemoteJob("Engine-" + "ä_x." * 60, (), Needs())
    names = {job_name(long) for _ in range(10)} | {job_name(RemoteJob("--", (), Needs()))}
    assert len(names) == 11
    for name in names:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)


def job(*conditions: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": spec,
        "status": {"conditions": [{"status": "True", **one} for one in conditions]},
    }


def pod(created: str = "2026-01-01T00:00:00Z", **status: Any) -> dict[str, Any]:
    metadata = {"labels": {"job-name": "j"}, "creationTimestamp": created}
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}, "status": status}


def container(state: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"state": {state: fields}}]


FAILED = {"type": "Failed", "reason": "BackoffLimitExceeded", "message": "Job has failed"}
DISRUPTED = {
    "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
    "message": "preempting",
}  # fmt: skip


@pytest.mark.parametrize(
    ("items", "state"),
    [
        ([job()], JobState(QUEUED)),
        ([job(suspend=True)], JobState(QUEUED, reason="it is suspended")),
        (
            [
                job(),
                pod(
                    phase="Pending",
                    conditions=[
                        {"type": "PodScheduled", "status": "False", "message": "0/4 nodes"}
                    ],
                ),
            ],
            JobState(QUEUED, None, "n1", "0/4 nodes"),
        ),
        (
            [
                job(),
                pod(
                    phase="Pending",
                    containerStatuses=container("waiting", reason="ContainerCreating"),
                ),
            ],
            JobState(QUEUED, None, "n1", "ContainerCreating"),
        ),
        (
            [
                job(),
                pod(
                    phase="Pending",
                    containerStatuses=container(
                        "waiting", reason="ImagePullBackOff", message="no such image"
                    ),
                ),
            ],
            JobState(LOST, None, "n1", "ImagePullBackOff: no such image"),
        ),
        ([job(), pod(phase="Running")], JobState(RUNNING, machine="n1")),
        ([job(), pod(phase="Succeeded")], JobState(RUNNING, machine="n1")),
        ([job({"type": "Complete"}), pod(phase="Succeeded")], JobState(ENDED, 0, "n1")),
        (
            [
                job(FAILED),
                pod(phase="Failed", containerStatuses=container("terminated", exitCode=3)),
            ],
            JobState(ENDED, 3, "n1"),
        ),
        (
            [
                job(FAILED),
                pod(
                    phase="Failed",
                    containerStatuses=container("terminated", exitCode=137, reason="OOMKilled"),
                ),
            ],
            JobState(ENDED, 137, "n1", "it exceeded its memory"),
        ),
        (
            [
                job(FAILED),
                pod(
                    phase="Failed",
                    containerStatuses=container(
                        "terminated", exitCode=137, reason="ContainerStatusUnknown", message="gone"
                    ),
                ),
            ],
            JobState(LOST, None, "n1", "gone"),
        ),
        (
            [job(FAILED), pod(phase="Failed", reason="Evicted", message="low on memory")],
            JobState(LOST, None, "n1", "low on memory"),
        ),
        (
            [job(), pod(phase="Failed", conditions=[DISRUPTED])],  # it gets another pod
            JobState(QUEUED, reason="preempting"),
        ),
        (
            [
                job(),
                pod("2026-01-01T00:00:09Z", phase="Running"),
                pod(phase="Failed", conditions=[DISRUPTED]),
            ],
            JobState(RUNNING, machine="n1"),
        ),
        (
            [job(FAILED), pod(phase="Failed", reason="DeadlineExceeded")],
            JobState(ENDED, None, "n1", "it exceeded its time limit; raise `needs: {time: …}`"),
        ),
        (
            [job({"type": "Failed", "reason": "DeadlineExceeded"})],
            JobState(ENDED, reason="it was not done within the executor's `deadline`"),
        ),
        ([job(FAILED)], JobState(LOST, reason="its pod is gone: Job has failed")),
    ],
)
def test_states_of_listed_jobs(items: list[dict[str, Any]], state: JobState) -> None:
    assert job_states(items) == {"j": state}
