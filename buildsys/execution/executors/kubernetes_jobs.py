"""Jobs of Kubernetes: their manifests, and what their states mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from buildsys.execution.executors.interface import (
    ENDED,
    LOST,
    QUEUED,
    RUNNING,
    JobState,
    RemoteJob,
)

MANAGER = {"app.kubernetes.io/managed-by": "buildsys"}
GPU = "nvidia.com/gpu"
_DISRUPTED = ("Evicted", "Preempting", "NodeLost", "NodeShutdown", "Shutdown", "Terminated")
_UNABLE = (
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
)
Document = dict[str, Any]


def job_manifest(
    job: RemoteJob, settings: Mapping[str, Any], name: str, labels: Mapping[str, str]
) -> Document:
    """Return the manifest of a job.

    Nothing is retried here but pods that lost their node: exit codes and attempts are ours.
    """
    labels = {**(settings.get("labels") or {}), **MANAGER, **labels}
    resources = {**(settings.get("resources") or {})}
    if job.needs.memory:
        resources["memory"] = str(job.needs.memory)
    if job.needs.gpu_count:
        resources[GPU] = str(job.needs.gpu_count)
    extended = {key: amount for key, amount in resources.items() if "/" in key}
    container: Document = {
        "name": "buildsys",
        "image": settings["image"],
        "command": [*settings["command"]],
        "args": [*job.arguments],
        "env": [{"name": n, "value": v} for n, v in (settings.get("env") or {}).items()],
        "envFrom": [{"secretRef": {"name": one}} for one in settings.get("secrets", ())],
        "resources": _filled({"requests": resources, "limits": extended}),
    }
    pod: Document = {
        "restartPolicy": "Never",
        "nodeSelector": settings.get("node_selector"),
        "tolerations": settings.get("tolerations"),
        "serviceAccountName": settings.get("service_account"),
        "imagePullSecrets": [{"name": one} for one in settings.get("image_pull_secrets", ())],
        "containers": [_filled(container)],
    }
    if job.needs.time_s:
        pod["activeDeadlineSeconds"] = max(1, round(job.needs.time_s))  # from its start
    if job.exclusive or job.needs.exclusive:
        others = {
            "labelSelector": {"matchLabels": MANAGER},
            "topologyKey": "kubernetes.io/hostname",
        }
        apart = {"requiredDuringSchedulingIgnoredDuringExecution": [others]}
        pod["affinity"] = {"podAntiAffinity": apart}
    disrupted = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [{"action": "Ignore", **disrupted}]},
            "activeDeadlineSeconds": round(settings["deadline"]),
            "ttlSecondsAfterFinished": round(settings["keep"]),
            "template": {"metadata": {"labels": labels}, "spec": _filled(pod)},
        },
    }


def job_states(items: Iterable[Document]) -> dict[str, JobState]:
    """Return the states of Jobs by name, from a list of Jobs and their Pods."""
    jobs: dict[str, Document] = {}
    pods: dict[str, list[Document]] = {}
    for item in items:
        if item["kind"] == "Job":
            jobs[item["metadata"]["name"]] = item
        else:
            owner = item["metadata"]["labels"].get("job-name", "")
            pods.setdefault(owner, []).append(item)
    states = {}
    for name, job in jobs.items():
        own = sorted(pods.get(name, []), key=lambda one: one["metadata"]["creationTimestamp"])
        states[name] = _job_state(job, own[-1] if own else None)
    return states


def _job_state(job: Document, pod: Document | None) -> JobState:
    machine = (pod or {}).get("spec", {}).get("nodeName", "")
    conditions = _conditions(job)
    if "Complete" in conditions:
        return JobState(ENDED, 0, machine)
    failed = conditions.get("Failed")
    if failed is not None and failed.get("reason") == "DeadlineExceeded":
        return JobState(ENDED, None, machine, "it was not done within the executor's `deadline`")
    if pod is None:
        if failed is not None:
            return JobState(LOST, reason=f"its pod is gone: {failed.get('message', '')}")
        is_suspended = job["spec"].get("suspend", False)
        return JobState(QUEUED, reason="it is suspended" if is_suspended else "")
    status = pod["status"]
    phase = status.get("phase", "Pending")
    if phase == "Failed":
        state = _failed_state(pod, machine)
        # the Job ends, or replaces the pod of a lost node
        return state if failed is not None else JobState(QUEUED, reason=state.reason)
    if failed is not None:
        return JobState(LOST, machine=machine, reason=failed.get("message", ""))
    if phase == "Pending":
        return _pending_state(pod, machine)
    return JobState(RUNNING, machine=machine)


def _failed_state(pod: Document, machine: str) -> JobState:
    status = pod["status"]
    reason, message = status.get("reason", ""), status.get("message", "")
    if reason == "DeadlineExceeded":
        problem = "it exceeded its time limit; raise `needs: {time: …}`"
        return JobState(ENDED, None, machine, problem)
    disruption = _conditions(pod).get("DisruptionTarget")
    if disruption is not None or reason in _DISRUPTED:
        words = message or (disruption or {}).get("message", "") or reason
        return JobState(LOST, None, machine, words)
    for container in status.get("containerStatuses", []):
        ended = container.get("state", {}).get("terminated")
        if ended is None:
            continue
        code, why = ended["exitCode"], ended.get("reason", "")
        if why == "ContainerStatusUnknown":
            return JobState(LOST, None, machine, ended.get("message", why))
        words = "it exceeded its memory" if why == "OOMKilled" else ended.get("message", "")
        return JobState(ENDED, code, machine, words)
    return JobState(LOST, None, machine, message or reason or "its container was not started")


def _pending_state(pod: Document, machine: str) -> JobState:
    for container in pod["status"].get("containerStatuses", []):
        waiting = container.get("state", {}).get("waiting", {})
        why, message = waiting.get("reason", ""), waiting.get("message", "")
        words = f"{why}: {message}" if message else why
        if why in _UNABLE:
            return JobState(LOST, None, machine, words)
        if why:
            return JobState(QUEUED, None, machine, words)
    scheduled = _conditions(pod, "False").get("PodScheduled", {})
    return JobState(QUEUED, None, machine, scheduled.get("message", ""))


def _conditions(item: Document, status: str = "True") -> dict[str, Document]:
    """Return type -> condition of those with this status."""
    found = item.get("status", {}).get("conditions") or []
    return {one["type"]: one for one in found if one["status"] == status}


def _filled(fields: Document) -> Document:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}
