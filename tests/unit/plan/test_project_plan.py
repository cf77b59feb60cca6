import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buildsys.errors import ManifestError
from buildsys.project.load import load_project
from buildsys.project.model import model_fields
from buildsys.project.plan import ProjectPlan, model_of


def models(*names: str, **sections: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "source": {"python": "net.py:make"},
        "inputs": {"x": {"shape": [1]}},
        "engines": [{"backend": "onnxruntime", "name": "ort"}],
        **sections,
    }
    data = {name: model_fields({**spec, "model": name}) for name in names}
    return {
        name: SimpleNamespace(data=value, text=json.dumps(value, separators=(",", ":")))
        for name, value in data.items()
    }


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


def test_the_stages_of_all_models_need_few_plans() -> None:
    plan = ProjectPlan(models("a", "b"))
    assert plan.stages() == list(dict.fromkeys(plan[target].stage for target in plan.of("a")))
    plan = ProjectPlan(models("a", "b"))
    plan.stages()
    assert list(plan._planned) == ["a"]


def test_an_input_that_nothing_writes_is_an_error_of_the_manifest(tmp_path: Path) -> None:
    file = tmp_path / "configs/models/m.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "model: m\nsource: {torchvision: resnet18}\ninputs: {x: {shape: [1, 3, 32, 32]}}\n"
        "engines: [{name: ort, backend: onnxruntime}]\n"
    )
    model = load_project(tmp_path).models["m"]
    without_network = replace(model, text=json.dumps({**model.data, "source": None}))
    with pytest.raises(ManifestError) as refused:
        ProjectPlan({"m": without_network}).of("m")
    assert str(refused.value) == (
        "configs/models/m.yaml:4:11: engines.0: engine:m:ort needs m/simplify/model.onnx, which no "
        "target of its model writes; did you mean m/verify/ort.json?"
    )


def test_models_of_all_kinds_have_the_stages_of_their_targets() -> None:
    plan = ProjectPlan(load_project(Path(__file__).parents[3], remember=False).models)
    assert plan.stages() == list(dict.fromkeys(action.stage for action in plan.values()))
