"""Plans of manifests, as dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.plan.action import Action
from buildsys.project.model import model_fields
from buildsys.project.plan import plan_model


def plan_of(manifest: Mapping[str, Any], **sections: Any) -> dict[str, Action]:
    """Plan a manifest with other or further sections; actions by target."""
    return {action.target: action for action in plan_model(model_fields({**manifest, **sections}))}
