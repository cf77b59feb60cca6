from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from buildsys.manifest.schema.model import ModelSpec
from buildsys.plan.project_plan import ProjectPlan, model_of


def models(*names: str) -> dict[str, Any]:
    spec = {
        "source": {"python": "net.py:make"},
        "inputs": {"x": {"shape": [1]}},
        "engines": [{"backend": "onnxruntime", "name": "ort"}],
    }
    data = {
        name: ModelSpec.model_validate({**spec, "model": name}).model_dump(
            mode="json", by_alias=True
        )
        for name in names
    }
    return {name: SimpleNamespace(data=value) for name, value in data.items()}


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("export:m", "m"),
        ("engine:m:ort-cpu", "m"),
        ("build:", ""),
        ("build", ""),
        ("a:m:x:y", "m"),
        ("", ""),
    ],
)
def test_a_target_names_its_model(target: str, model: str) -> None:
    assert model_of(target) == model


def test_the_plan_is_one_mapping_of_all_models_in_their_order() -> None:
    plan = ProjectPlan(models("b", "a"))
    targets = list(plan)
    assert len(plan) == len(targets)
    assert targets[0] == "export:b"
    assert targets[-1] == "report:a"
    assert {target: plan[target].target for target in plan} == {
        target: target for target in targets
    }
    assert list(plan.of("a")) == [target for target in targets if model_of(target) == "a"]


def test_a_model_is_planned_on_first_use() -> None:
    given = models("a", "b")
    given["b"] = None  # reading it would fail
    plan = ProjectPlan(given)
    assert "export:a" in plan
    assert plan["simplify:a"].model == "a"
    assert "export:c" not in plan
    assert "export" not in plan
    assert plan.of("c") == {}
