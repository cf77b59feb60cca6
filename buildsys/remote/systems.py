"""Systems that are reached by programs of this machine: ssh, Slurm, Kubernetes."""

import json
import math
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildsys.errors import StageError
from buildsys.manifest.schema.project import KubernetesExecutorSpec
from buildsys.remote.jobs import ENDED, QUEUED, RUNNING, JobState, RemoteJob, System
from buildsys.system.programs import call_program

# The command ends with this connection, whose end closes its standard input there. In sh, commands
# in the background have none, so a copy of it is kept as 3.
_WRAPPER = """\
exec 3<&0; {command} 3<&- </dev/null & c=$!
(cat <&3; kill $c) >/dev/null 2>&1 & k=$!
wait $c; code=$?; kill $k 2>/dev/null; exit $code"""
_SSH_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15")
# of the job or machine that the driver runs in
_OWN_VARIABLES = re.compile(
    r"SLURM_(?!CONF$|CLUSTERS$|JWT$).*|BUILDSYS_LABELS|CUDA_VISIBLE_DEVICES|TMPDIR"
)
_STARTED = ("RUNNING", "COMPLETING", "SUSPENDED")
_SLURM_HINT = "run buildsys where Slurm's commands work; check the executor's settings and `needs`"
_MANAGER = {"app.kubernetes.io/managed-by": "buildsys"}
_RUN, _AFTER = "buildsys/run", "buildsys/after"
_GPU, _HOST = "nvidia.com/gpu", "kubernetes.io/hostname"
_REFUSED = [1, 2, 3]  # exit codes of a build that another attempt would not change
_KUBECTL_HINT = "check kubectl, the executor's settings, and your rights in its namespace"
Document = dict[str, Any]


@dataclass
class Ssh(System):
    """The ssh program, with the user's configuration, keys and known hosts."""

    grace_s = 3.0  # a command ends after its summary is stored
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def submit(self, jobs: Sequence[RemoteJob]) -> None:
        """Start the jobs. Raises: StageError: there is no ssh."""
        self.logs.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            variables = [f"{name}={value}" for name, value in self.environment.items()]
            words = shlex.join(["env", *variables, *self.spec.command, *job.command])
            script = shlex.quote(_WRAPPER.format(command=words))
            command = ["ssh", *_SSH_OPTIONS, "--", self.spec.host, f"exec sh -c {script}"]
            try:
                with self._log(job.name).open("wb") as log:
                    self.running[job.name] = subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=log, stderr=log,
                        start_new_session=True,  # ctrl-c reaches it through `cancel`
                    )  # fmt: skip
            except OSError as error:
                problem = f"cannot start ssh: {error.strerror}"
                raise StageError(problem, "install the OpenSSH client") from error

    def states(self, ended: set[str]) -> dict[str, JobState]:
        """Look up the jobs; none of another process, as they ended with it."""
        del ended
        states = {}
        for name, process in self.running.items():
            code, log = process.poll(), self._log(name)
            states[name] = JobState(RUNNING)
            if code is not None:
                line = (log.read_text(errors="replace").splitlines() or [""])[-1]
                states[name] = JobState(ENDED, f"exit code {code}: {line}; log: {log}")
        return states

    def cancel(self) -> None:
        """Close the connections, which ends the commands there."""
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)  # closes its standard input
            process.kill()

    def _log(self, job: str) -> Path:
        return self.logs / f"{self.run}-{job}.log"


class Slurm(System):
    """sbatch, squeue and scancel."""

    def submit(self, jobs: Sequence[RemoteJob]) -> None:
        """Submit jobs, each after the one that it names. Raises: StageError: one is refused."""
        exports = [f"export {name}={shlex.quote(v)}" for name, v in self.environment.items()]
        for job in jobs:
            words = shlex.join([*self.spec.command, *job.command])
            script = "\n".join(["#!/bin/bash", *exports, *self.spec.setup, f"exec {words}", ""])
            output = _slurm("sbatch", *self._options(job), text=script)
            self.handles[job.name] = output.strip().partition(";")[0]

    def states(self, ended: set[str]) -> dict[str, JobState]:
        """Look up the queue; the store tells how others ended. Raises: StageError."""
        del ended
        listing = _slurm("squeue", "--noheader", "--me", "--format=%i|%T|%R")
        queue = {line.partition("|")[0]: line.split("|")[1:] for line in listing.splitlines()}
        states = {}
        for name, handle in self.handles.items():
            phase, reason = queue.get(handle, ("", ""))[:2]
            if not phase:
                hint = f"log: {self._log(name)}" if self.spec.logs else "set `logs` to see why"
                states[name] = JobState(ENDED, f"Slurm job {handle}; {hint}")
            else:
                is_running = phase in _STARTED
                states[name] = JobState(RUNNING if is_running else QUEUED, reason.strip("()"))
        return states

    def cancel(self) -> None:
        """Cancel all jobs. Raises: StageError: Slurm does not answer."""
        _slurm("scancel", *self.handles.values())

    def _log(self, job: str) -> str:
        return f"{self.spec.logs}/{self.run}-{job}.log" if self.spec.logs else os.devnull

    def _options(self, job: RemoteJob) -> list[str]:
        """Return the options of sbatch for one job."""
        spec, needs = self.spec, job.needs
        options = ["--parsable", f"--job-name={job.name}", f"--output={self._log(job.name)}"]
        options += ["--chdir=/", "--requeue", "--open-mode=append", "--kill-on-invalid-dep=yes"]
        if job.after:  # also after a failure: the store tells what is missing
            options.append(f"--dependency=afterany:{self.handles[job.after]}")
        for name in ("partition", "account", "qos"):
            options += [f"--{name}={getattr(spec, name)}"] if getattr(spec, name) else []
        if needs.gpu_count:
            kind = "-".join(needs.gpu.lower().split())
            default = ":".join(filter(None, ("gpu", kind, str(needs.gpu_count))))
            options.append(f"--gres={spec.gres or default}")
        options += [f"--mem={math.ceil(needs.memory / 2**20)}M"] if needs.memory else []
        options += [f"--time={math.ceil(needs.time_s / 60)}"] if needs.time_s else []
        options += ["--exclusive"] if needs.exclusive else []
        return [*options, *spec.options]


def _slurm(program: str, *arguments: str, text: str = "") -> str:
    environment = {n: value for n, value in os.environ.items() if not _OWN_VARIABLES.fullmatch(n)}
    return call_program([program, *arguments], _SLURM_HINT, text, environment)


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
        return call_program(
            ["kubectl", *own, "--request-timeout=30s", *arguments], _KUBECTL_HINT, text
        )


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
