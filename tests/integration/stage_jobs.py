"""Jobs of the export and reference stages, from manifests through schema and plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildsys.plan.action import Action
from buildsys.project.model import model_fields
from buildsys.project.plan import plan_model
from buildsys.workers.job import Job

ROOT = Path(__file__).parents[2]


def manifest(**sections: Any) -> dict[str, Any]:
    """Resolve a manifest of the model m with the input x of shape [batch, 4]."""
    dims = {"batch": {"min": 1, "opt": 3, "max": 8}}
    defaults = {"model": "m", "inputs": {"x": {"shape": ["batch", 4]}}, "dims": dims}
    return model_fields({**defaults, **sections})


def job_files(action: Action, build: Path) -> dict[str, Any]:
    """Locate the existing inputs of an action and its outputs, whose folders are made."""
    outputs = {role: build / ref.path for role, ref in action.outputs.items()}
    for path in outputs.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    paths = {role: build / ref.path for role, ref in action.inputs.items()}
    inputs = {role: path for role, path in paths.items() if path.exists()}
    return {"inputs": inputs, "outputs": outputs}


def stage_job(stage: str, resolved: Mapping[str, Any], build: Path, project: Path = ROOT) -> Job:
    """Return the executor's job of a stage without upstream stages."""
    action = next(action for action in plan_model(resolved) if action.stage == stage)
    files = {**job_files(action, build), "inputs": {}}
    return Job(
        target=action.target, stage=stage, model=action.model, variant="", options=action.options,
        project=project, **files,
    )  # fmt: skip
