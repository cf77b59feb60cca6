"""Sections of configs/project.yaml, shared by all models."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from buildsys.manifest.schema.base import Bytes, Name, OneOf, Seconds, Spec, Variable, text

_COMMAND = ("buildsys",)
_HOST = r"^([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*$"
Host = Annotated[str, text(_HOST, "a host such as gpu1 or ci@gpu1")]
Option = Annotated[str, text(r"^--?[A-Za-z][^\n]*$", "an option that starts with a hyphen")]
_ADDRESS = r"^(auto|[A-Za-z0-9][A-Za-z0-9.-]*:[0-9]{1,5})$"
Address = Annotated[str, text(_ADDRESS, "HOST:PORT or auto (not ray://, see docs/remote.md)")]
_KEY = "a public key of `buildsys cache keygen`, ed25519: and 44 characters"
PublicKey = Annotated[str, text(r"^ed25519:[A-Za-z0-9+/]{43}=$", _KEY)]


class ExecutorBase(Spec):
    """A system that runs builds on other machines."""

    env: dict[Variable, str] = Field({})
    """Additional environment variables of the jobs, such as BUILDSYS_LABELS."""
    store: str | None = Field(None, min_length=1)
    """The shared cache as these machines name it; default: as `cache.remote`."""


class SshExecutorSpec(ExecutorBase):
    """A machine that ssh reaches."""

    kind: Literal["ssh"] = Field(description="A machine that ssh reaches.")
    host: Host
    """HOST or USER@HOST, as ~/.ssh/config may name it."""
    command: tuple[str, ...] = Field(_COMMAND, min_length=1)
    """Command that runs buildsys there."""


class SlurmExecutorSpec(ExecutorBase):
    """Nodes of a Slurm cluster, through its commands on this machine."""

    kind: Literal["slurm"] = Field(description="A Slurm cluster.")
    command: tuple[str, ...] = Field(_COMMAND, min_length=1)
    """Command that runs buildsys on a node."""
    partition: str | None = Field(None, min_length=1, description="Partition of the nodes.")
    account: str | None = Field(None, min_length=1, description="Account to charge.")
    qos: str | None = Field(None, min_length=1, description="Quality of service.")
    gres: str | None = Field(None, min_length=1)
    """The GPUs in Slurm; default: gpu and the name in `needs`."""
    options: tuple[Option, ...] = ()
    """Further options of sbatch."""
    setup: tuple[str, ...] = ()
    """Lines of bash before the command, such as [module load cuda]."""
    logs: str | None = Field(None, min_length=1)
    """Folder of logs that the nodes see under the same path; without it nothing is kept."""


class KubernetesExecutorSpec(ExecutorBase):
    """Jobs in a namespace of a Kubernetes cluster, through kubectl."""

    kind: Literal["kubernetes"] = Field(description="A Kubernetes cluster.")
    image: str = Field(min_length=1, description="Image with buildsys and the libraries.")
    command: tuple[str, ...] = Field(_COMMAND, min_length=1)
    """Command that runs buildsys in the image."""
    context: str | None = Field(None, min_length=1, description="Context of the kubeconfig.")
    namespace: str | None = Field(None, min_length=1, description="Namespace of the Jobs.")
    labels: dict[str, str] = Field({})
    """Labels of Jobs and Pods, such as kueue.x-k8s.io/queue-name: gpu."""
    node_selector: dict[str, str] = Field({})
    """Labels of the nodes, such as nvidia.com/gpu.product: NVIDIA-L4."""
    tolerations: tuple[dict[str, str | int], ...] = ()
    """Tolerations of taints, as in the manifest of a Pod."""
    resources: dict[str, str | int] = Field({})
    """Requests of each Pod, such as {cpu: 4, memory: 16Gi}."""
    service_account: str | None = Field(None, min_length=1, description="Service account.")
    image_pull_secrets: tuple[str, ...] = Field((), description="Secrets to pull the image.")
    secrets: tuple[str, ...] = ()
    """Secrets whose entries become environment variables."""
    deadline: Seconds = Field(86_400.0, ge=1, description="Time for a Job, with all waiting.")
    keep: Seconds = Field(3600.0, ge=0, description="Time for ended Jobs to stay.")


class RayExecutorSpec(ExecutorBase):
    """A cluster of Ray."""

    kind: Literal["ray"] = Field(description="A cluster of Ray.")
    address: Address = "auto"
    """HOST:PORT of the dashboard; auto: RAY_API_SERVER_ADDRESS, or port 8265 of this machine."""
    cpus: float = Field(1.0, gt=0, le=10_000, description="CPUs that a job takes.")
    resources: dict[Name, Annotated[float, Field(gt=0)]] = Field({})
    """Custom resources that a job takes."""


Executor = Annotated[
    SshExecutorSpec | RayExecutorSpec | SlurmExecutorSpec | KubernetesExecutorSpec,
    OneOf(("ssh", "ray", "slurm", "kubernetes"), field="kind"),
]


class CacheSpec(Spec):
    """A cache of built outputs, shared between people and machines."""

    remote: str | None = Field(None, min_length=1)
    """Folder or URL: sftp://host/dir, s3://bucket/dir; null: only keys are set."""
    mode: Literal["read-only", "read-write"] = "read-only"
    """read-write adds results of this machine."""
    timeout: Seconds = Field(30.0, gt=0)
    """Time per target before the run continues without the cache."""
    signing_key: str | None = Field(None, min_length=1)
    """PEM file of the ed25519 key that signs engines and shared results."""
    trusted_keys: tuple[PublicKey, ...] = ()
    """Public keys whose results are used; empty means all results."""
    revoked_keys: tuple[PublicKey, ...] = ()
    """Public keys that are not trusted any more, wherever else they are named."""
    unsigned: Literal["refuse", "warn", "accept"] = "refuse"
    """Results without a trusted signature: refuse, warn (and use them) or accept."""

    @model_validator(mode="after")
    def _check_keys(self) -> "CacheSpec":
        if self.revoked_keys and not self.trusted_keys:
            raise ValueError("revoked_keys has no effect without trusted_keys")
        return self


class StoreSpec(Spec):
    """The store of earlier results."""

    limit: Bytes | None = Field(gt=0)
    """Size above which the least recently used results are removed; null: no limit."""


class ToolchainSpec(Spec):
    """Another Python interpreter with its libraries."""

    python: str = Field(min_length=1)
    """Absolute path, path with a / in the project, or name on PATH."""
    env: dict[Variable, str] = Field({})
    """Additional environment variables; {prefix} is the environment's folder."""


class ProjectSpec(Spec):
    """configs/project.yaml, the settings shared by all models."""

    defaults: dict[str, Any] = Field({}, description="Manifest sections that models override.")
    cache: CacheSpec | None = Field(None, description="Shared cache, used after the local store.")
    store: StoreSpec | None = None
    """The store of earlier results; default: up to 50GiB."""
    timing_caches: str | None = Field(None, min_length=1)
    """Folder of TensorRT's timing caches, shared by clones."""
    toolchains: dict[Name, ToolchainSpec] = Field({})
    """Additional interpreters by name, for engines."""
    executors: dict[Name, Executor] = Field({})
    """Other machines for `buildsys build --on NAME`, by name."""
