"""Jobs at a real Kubernetes API server, with its controller of Jobs. There are no nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import connected, state_of, wait, wait_for
from kubernetes_cluster import Cluster, missing_programs, program, running_cluster

from buildsys.errors import StageError, TemporaryError
from buildsys.execution.executors import kubernetes
from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    QUEUED,
    RUNNING,
    JobState,
    RemoteJob,
)
from buildsys.execution.executors.kubernetes import KubernetesExecutor
from buildsys.plan.action import NO_NEEDS, Needs

pytestmark = pytest.mark.skipif(bool(missing_programs()), reason=f"missing: {missing_programs()}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with (
        running_cluster(tmp_path_factory.mktemp("kubernetes")) as started,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PATH", str(Path(program("kubectl")).parent), prepend=":")
        patch.setenv("KUBECONFIG", str(started.root / "admin.kubeconfig"))
        patch.setattr(kubernetes, "_POLL_S", 0.02)
        version = json.loads(started.call("get", "--raw", "/version"))["gitVersion"]
        if int(version.split(".")[1]) < 26:  # without podFailurePolicy
            patch.setattr(kubernetes, "_VALIDATE", "--validate=false")
        yield started


@pytest.fixture
def executor(cluster: Cluster, tmp_path: Path) -> Iterator[KubernetesExecutor]:
    started = make(tmp_path)
    yield started
    started.close()


def make(project: Path, **settings: Any) -> KubernetesExecutor:
    given = {"kind": "kubernetes", "image": "builder:1", **settings}
    return connected(KubernetesExecutor, project, **given)


def job(name: str = "engine-net-ort", needs: Needs = NO_NEEDS) -> RemoteJob:
    return RemoteJob(name, ("run-action", "5d3f"), needs)


def started_pod(cluster: Cluster, handle: str) -> str:
    """Return the Pod that the cluster has made for a Job."""
    wait_for(lambda: bool(cluster.pods(handle)))
    name: str = cluster.pods(handle)[-1]["metadata"]["name"]
    return name


def ended(code: int, **fields: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, **fields}}
    status = {"name": "buildsys", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    return {"phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{**status, "state": state}]}  # fmt: skip


def test_jobs_submitted_together_end_on_their_own(
    cluster: Cluster, executor: KubernetesExecutor
) -> None:
    outcomes = {"passed": 0, "wrong": 1, "oom": 137}
    with ThreadPoolExecutor(3) as threads:
        handles = list(threads.map(lambda name: executor.submit(job(name)), outcomes))
    assert [handle.rpartition("-")[0] for handle in handles] == list(outcomes)
    listed = cluster.call("get", "jobs", f"--selector={kubernetes.RUN}={executor._run}", "-oname")
    assert sorted(listed.split()) == sorted(f"job.batch/{handle}" for handle in handles)
    for handle, code in zip(handles, outcomes.values(), strict=True):
        pod = started_pod(cluster, handle)
        cluster.bind(pod, "n1")
        cluster.set_status(pod, phase="Running")
        assert wait(executor, handle, RUNNING) == JobState(RUNNING, machine="n1")
        reason = {"reason": "OOMKilled"} if code == 137 else {}
        cluster.set_status(pod, **ended(code, **reason))
        state = wait(executor, handle)
        assert (state.phase, state.exit_code, state.machine) == (ENDED, code, "n1")
        assert ("memory" in state.reason) is (code == 137)
        assert len(cluster.pods(handle)) == 1  # the cluster retries nothing


def test_what_a_pod_waits_for_is_shown(cluster: Cluster, executor: KubernetesExecutor) -> None:
    handle = executor.submit(job(needs=Needs(gpu="H100", gpu_count=2, memory=1 << 30)))
    pod = started_pod(cluster, handle)
    words = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "message": words}
    cluster.set_status(pod, conditions=[condition])
    wait_for(lambda: state_of(executor, handle) == JobState(QUEUED, reason=words))
    limits = cluster.pods(handle)[0]["spec"]["containers"][0]["resources"]
    assert limits["limits"] == {"nvidia.com/gpu": "2"}
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    status = {"name": "buildsys", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    cluster.set_status(pod, containerStatuses=[{**status, "state": waiting}])
    assert wait(executor, handle) == JobState(LOST, reason="ImagePullBackOff: no such image")


def test_an_evicted_pod_is_lost(cluster: Cluster, executor: KubernetesExecutor) -> None:
    handle = executor.submit(job())
    pod = started_pod(cluster, handle)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    words = "The node was low on resource: memory."
    cluster.set_status(pod, phase="Failed", reason="Evicted", message=words, conditions=[condition])

    def is_handled() -> bool:
        return state_of(executor, handle).phase == LOST or len(cluster.pods(handle)) > 1

    wait_for(is_handled)  # by us, or since 1.26 by the cluster
    state = state_of(executor, handle)
    assert state.phase == QUEUED or state == JobState(LOST, reason=words)


def test_deleted_jobs_are_lost_and_cancelled_ones_go(
    cluster: Cluster, executor: KubernetesExecutor
) -> None:
    theirs, ours, other = (executor.submit(job()) for _ in range(3))
    cluster.call("delete", "job", theirs)
    assert wait(executor, theirs) == JobState(LOST, reason="its Job was deleted")
    executor.cancel(ours)
    executor.cancel(ours)
    assert wait(executor, ours).phase == LOST
    assert executor.log(other) == ""
    executor.close()
    assert other not in cluster.call("get", "jobs", "-oname")
    assert executor.poll(["never-seen"])["never-seen"].phase == LOST


def test_what_the_cluster_refuses_fails_with_its_words(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StageError, match='kubectl create: namespaces "none" not found') as found:
        make(tmp_path, namespace="none").submit(job())
    assert not isinstance(found.value, TemporaryError)
    with pytest.raises(StageError, match=r"tolerations\[0\].operator: Unsupported value"):
        make(tmp_path, tolerations=[{"key": "a", "operator": "Sometimes"}]).submit(job())
    with pytest.raises(StageError, match='context "none" does not exist'):
        make(tmp_path, context="none")
    monkeypatch.setenv("KUBECONFIG", str(cluster.root / "guest.kubeconfig"))
    with pytest.raises(StageError, match="this user may not create Jobs in builds; ask for a role"):
        make(tmp_path, namespace="builds")


def test_a_quota_refuses_some_of_a_wave(cluster: Cluster, tmp_path: Path) -> None:
    cluster.call("create", "namespace", "small")
    cluster.call("create", "quota", "q", "--hard=count/jobs.batch=2", "--namespace=small")

    def is_known() -> bool:
        shown = cluster.call("get", "quota", "q", "--namespace=small", "-ojson")
        return "hard" in json.loads(shown).get("status", {})

    wait_for(is_known)
    executor = make(tmp_path, namespace="small")

    def submit(_: int) -> str:
        try:
            return executor.submit(job())
        except TemporaryError as error:
            assert "exceeded quota: q" in error.problem
            return ""

    with ThreadPoolExecutor(4) as threads:
        handles = sorted(threads.map(submit, range(4)))
    assert handles[:2] == ["", ""]
    assert set(executor.poll(handles[2:])) == set(handles[2:])
    executor.close()
    assert "No resources" not in cluster.call("get", "quota", "--namespace=small")
    assert cluster.call("get", "jobs", "--namespace=small", "-oname") == ""


def test_jobs_outlive_the_api_server(cluster: Cluster, executor: KubernetesExecutor) -> None:
    handle = executor.submit(job())
    cluster.stop("kube-apiserver")
    try:
        with pytest.raises(TemporaryError, match=r"kubectl get: .*refused"):
            executor.poll([handle])
        with pytest.raises(TemporaryError):
            executor.submit(job())
    finally:
        cluster.start("kube-apiserver")
    wait_for(cluster.is_up)
    assert state_of(executor, handle).phase == QUEUED
