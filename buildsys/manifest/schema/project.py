"""Sections of configs/project.yaml, shared by all models."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from buildsys.manifest.schema.base import VARIABLE_PATTERN, Bytes, Name, PublicKey, Seconds, Spec
from buildsys.manifest.schema.executors import Executor


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
    env: dict[Annotated[str, Field(pattern=VARIABLE_PATTERN)], str] = Field({})
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
