"""Plans of manifests, as dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.plan.action import Action
from buildsys.plan.engine_typing import VersionOf, unknown_version
from buildsys.project.model import model_fields
from buildsys.project.plan import plan_model


def plan_of(
    manifest: Mapping[str, Any],
    *,
    version_of: VersionOf = unknown_version,
    toolchains: Mapping[str, Any] | None = None,
) -> dict[str, Action]:
    """Plan a manifest; ``toolchains`` are those of project.yaml. Actions by target."""
    fields = model_fields(manifest) | ({"toolchains": toolchains} if toolchains else {})
    return {action.target: action for action in plan_model(fields, version_of)}
