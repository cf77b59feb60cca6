"""The executors of project.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from buildsys.manifest.executor_defaults import ALL, OF_KIND
from buildsys.manifest.schema.base import (
    ADDRESS_PATTERN,
    OPTION_PATTERN,
    VARIABLE_PATTERN,
    MachineSpec,
    Name,
    OneOf,
    Seconds,
    Spec,
)

_PROCESS, _RAY = OF_KIND["process"], OF_KIND["ray"]
_SLURM, _KUBERNETES = OF_KIND["slurm"], OF_KIND["kubernetes"]


class ExecutorBase(Spec):
    """Equal machines for targets."""

    offers: MachineSpec | None = Field(None, description="What each of the machines has.")
    jobs: int = Field(ALL["jobs"], ge=1, le=10_000, description="Number of jobs at a time.")
    env: dict[Annotated[str, Field(pattern=VARIABLE_PATTERN)], str] = Field(
        {}, description="Additional environment variables of the jobs."
    )
    store: str | None = Field(
        None, min_length=1, description="The shared cache as these machines name it."
    )
    linger: Seconds = Field(
        ALL["linger"],
        ge=0,
        le=3600,
        description="Time that a job waits for its model's next CPU stage; 0: one job per target.",
    )
    remember: Seconds = Field(
        ALL["remember"],
        gt=0,
        description="Time until the machines are asked for their libraries again.",
    )


class LocalExecutorSpec(Spec):
    """The machine of doit, elsewhere than first in the order."""

    kind: Literal["local"] = Field(description="This machine.")


class ProcessExecutorSpec(ExecutorBase):
    """A command for buildsys: ssh, a container or a process here."""

    kind: Literal["process"] = Field(description="A command on this machine, such as ssh.")
    command: tuple[str, ...] = Field(
        _PROCESS["command"],
        description="Command that runs buildsys, such as [ssh, gpu1, buildsys].",
    )


class SlurmExecutorSpec(ExecutorBase):
    """Nodes of a Slurm cluster, through its commands on this machine."""

    kind: Literal["slurm"] = Field(description="A Slurm cluster.")
    command: tuple[str, ...] = Field(
        _SLURM["command"], min_length=1, description="Command that runs buildsys on a node."
    )
    partition: str | None = Field(None, min_length=1, description="Partition of the nodes.")
    account: str | None = Field(None, min_length=1, description="Account to charge.")
    qos: str | None = Field(None, min_length=1, description="Quality of service.")
    gres: str | None = Field(
        None, min_length=1, description="The GPUs in Slurm; default: gpu and the name in `needs`."
    )
    options: tuple[Annotated[str, Field(pattern=OPTION_PATTERN)], ...] = Field(
        (), description="Further options of sbatch."
    )
    setup: tuple[str, ...] = Field(
        (), description="Lines of bash before the command, such as [module load cuda]."
    )
    logs: str | None = Field(
        None, min_length=1, description="Folder of logs that the nodes see under the same path."
    )


class KubernetesExecutorSpec(ExecutorBase):
    """Jobs in a namespace of a Kubernetes cluster, through kubectl."""

    kind: Literal["kubernetes"] = Field(description="A Kubernetes cluster.")
    image: str = Field(min_length=1, description="Image with buildsys and the libraries.")
    command: tuple[str, ...] = Field(
        _KUBERNETES["command"], min_length=1, description="Command that runs buildsys in the image."
    )
    context: str | None = Field(None, min_length=1, description="Context of the kubeconfig.")
    namespace: str | None = Field(None, min_length=1, description="Namespace of the Jobs.")
    labels: dict[str, str] = Field(
        {}, description="Labels of Jobs and Pods, such as kueue.x-k8s.io/queue-name: gpu."
    )
    node_selector: dict[str, str] = Field(
        {}, description="Labels of the nodes, such as nvidia.com/gpu.product: NVIDIA-L4."
    )
    tolerations: tuple[dict[str, str | int], ...] = Field(
        (), description="Tolerations of taints, as in the manifest of a Pod."
    )
    resources: dict[str, str | int] = Field(
        {}, description="Requests of each Pod, such as {cpu: 4, memory: 16Gi}."
    )
    service_account: str | None = Field(None, min_length=1, description="Service account.")
    image_pull_secrets: tuple[str, ...] = Field((), description="Secrets to pull the image.")
    secrets: tuple[str, ...] = Field(
        (), description="Secrets whose entries become environment variables."
    )
    deadline: Seconds = Field(
        _KUBERNETES["deadline"], ge=1, description="Time for a Job, with all waiting."
    )
    keep: Seconds = Field(_KUBERNETES["keep"], ge=0, description="Time for ended Jobs to stay.")


class RayExecutorSpec(ExecutorBase):
    """A cluster of Ray. What the executor offers selects the nodes."""

    kind: Literal["ray"] = Field(description="A cluster of Ray.")
    address: str = Field(
        _RAY["address"],
        pattern=ADDRESS_PATTERN,
        description="HOST:PORT of the cluster; auto: the one that this machine belongs to.",
    )
    cpus: float = Field(_RAY["cpus"], gt=0, le=10_000, description="CPUs that a target takes.")
    resources: dict[Name, Annotated[float, Field(gt=0)]] = Field(
        {}, description="Custom resources that a target takes."
    )
    wait_for_nodes: Seconds = Field(
        _RAY["wait_for_nodes"],
        description="Time that a target waits while no node of the cluster can run it.",
    )


Executor = Annotated[
    LocalExecutorSpec
    | ProcessExecutorSpec
    | RayExecutorSpec
    | SlurmExecutorSpec
    | KubernetesExecutorSpec,
    OneOf(("local", "process", "ray", "slurm", "kubernetes"), field="kind"),
]
