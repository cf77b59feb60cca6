"""Plans of manifests, as dictionaries."""

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


def plan_engines(
    *engines: Mapping[str, Any], version: str = "", **sections: Any
) -> dict[str, Action]:
    """Plan the model ``m`` with engines ``e0``, ``e1`` … of ONNX Runtime or what they name."""
    manifest = {
        "model": "m",
        "source": {"torchvision": "resnet18"},
        "inputs": {"x": {"shape": ("batch", 3, 8, 8)}},
        "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
        "engines": tuple(
            {"backend": "onnxruntime", "name": f"e{i}", **engine}
            for i, engine in enumerate(engines)
        ),
    }
    return plan_of({**manifest, **sections}, version_of=lambda _: version)
