"""Jobs of a Kubernetes cluster, through kubectl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from buildsys.manifest.schema.project import KubernetesExecutorSpec
from buildsys.remote.jobs import ENDED, QUEUED, RUNNING, JobState, RemoteJob, System
from buildsys.system.programs import call_program

_MANAGER = {"app.kubernetes.io/managed-by": "buildsys"}
_RUN, _AFTER = "buildsys/run", "buildsys/after"
_GPU, _HOST = "nvidia.com/gpu", "kubernetes.io/hostname"
_REFUSED = [1, 2, 3]  # exit codes of a build that another attempt would not change
_HINT = "check kubectl, the executor's settings, and your rights in its namespace"
Document = dict[str, Any]


class Kubernetes(System):
    """kubectl, with the user's contexts and credentials."""

    def submit(self, jobs: Sequence[RemoteJob]) -> None:
        """Create all Jobs; those after others are suspended. Raises: StageError."""
        items = [job_manifest(job, self.spec, self.run, self.environment) for job in jobs]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        self._kubectl("apply", "--filename=-", text=text)
        self.handles = {job.name: resource_name(self.run, job.name) for job in jobs}

    def states(self, ended: set[str]) -> dict[str, JobState]:
        """Look up the Jobs; resume those after ``ended`` ones. Raises: StageError."""
        listing = self._kubectl("get", "jobs", f"--selector={_RUN}={self.run}", "--output=json")
        items = {item["metadata"]["name"]: item for item in json.loads(listing)["items"]}
        for handle, item in items.items():
            before = item["metadata"].get("annotations", {}).get(_AFTER)
            if item["spec"].get("suspend") and before in ended:
                self._kubectl("patch", "job", handle, "-p", '{"spec": {"suspend": false}}')
        return {name: job_state(items.get(handle)) for name, handle in self.handles.items()}

    def cancel(self) -> None:
        """Delete all Jobs with their Pods. Raises: StageError."""
        self._kubectl("delete", "jobs", f"--selector={_RUN}={self.run}", "--wait=false")

    def _kubectl(self, *arguments: str, text: str = "") -> str:
        place = {"context": self.spec.context, "namespace": self.spec.namespace}
        own = [f"--{name}={value}" for name, value in place.items() if value]
        return call_program(["kubectl", *own, "--request-timeout=30s", *arguments], _HINT, text)


def job_manifest(
    job: RemoteJob, spec: KubernetesExecutorSpec, run: str, environment: Mapping[str, str]
) -> Document:
    """Return the manifest of a Job, suspended if it follows another one."""
    labels = {**spec.labels, **_MANAGER, _RUN: run}
    resources = dict(spec.resources)
    if job.needs.memory:
        resources["memory"] = str(job.needs.memory)
    if job.needs.gpu_count:
        resources[_GPU] = str(job.needs.gpu_count)
    limits = {name: amount for name, amount in resources.items() if "/" in name}
    container = {
        "name": "buildsys",
        "image": spec.image,
        "command": [*spec.command],
        "args": [*job.command],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "envFrom": [{"secretRef": {"name": name}} for name in spec.secrets],
        "resources": _filled({"requests": resources, "limits": limits}),
    }
    pod: Document = {
        "restartPolicy": "Never",  # podFailurePolicy allows no other
        "nodeSelector": spec.node_selector,
        "tolerations": [*spec.tolerations],
        "serviceAccountName": spec.service_account,
        "imagePullSecrets": [{"name": name} for name in spec.image_pull_secrets],
        "containers": [_filled(container)],
        "activeDeadlineSeconds": round(job.needs.time_s),
    }
    if job.needs.exclusive:
        others = {"labelSelector": {"matchLabels": _MANAGER}, "topologyKey": _HOST}
        apart = {"requiredDuringSchedulingIgnoredDuringExecution": [others]}
        pod["affinity"] = {"podAntiAffinity": apart}
    rules: list[Document] = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": _REFUSED}},
    ]
    metadata: Document = {"name": resource_name(run, job.name), "labels": labels}
    if job.after:
        metadata["annotations"] = {_AFTER: job.after}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "suspend": bool(job.after),
            "backoffLimit": 3,
            "podFailurePolicy": {"rules": rules},
            "activeDeadlineSeconds": round(spec.deadline),
            "ttlSecondsAfterFinished": round(spec.keep),
            "template": {"metadata": {"labels": labels}, "spec": _filled(pod)},
        },
    }


def job_state(item: Document | None) -> JobState:
    """Return the state of a Job."""
    if item is None:
        return JobState(ENDED, "its Job was deleted")
    status = item.get("status", {})
    for condition in status.get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return JobState(ENDED, condition.get("message", ""))
    if item["spec"].get("suspend"):
        return JobState(QUEUED, "suspended")
    return JobState(RUNNING if status.get("active") else QUEUED)


def resource_name(run: str, job: str) -> str:
    """Return the name of a Job in the cluster, of at most 63 characters."""
    return f"bs-{run}-{job}"[:63].rstrip("-")


def _filled(fields: Document) -> Document:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}
