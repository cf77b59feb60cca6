"""What the keys of evaluations have: samples, metrics, hooks, preprocessing and libraries."""

from __future__ import annotations

from typing import Any

import pytest
from planning import plan_engines

from buildsys.plan.action import Action

INPUTS = {"x": {"shape": ("batch", 3, 8, 8), "preprocess": {"divide": 255}}}


def planned(data: dict[str, Any], metric: Any = "top1", **fields: Any) -> list[Action]:
    """Plan the evaluation of one engine: of the original model, and of the engine."""
    actions = plan_engines({}, inputs=INPUTS, evaluate={"data": data, "metric": metric, **fields})
    return [actions["predict:m"], actions["evaluate:m:e0"]]


@pytest.mark.parametrize(
    ("data", "files", "libraries"),
    [
        ({"images": "val", "labels": "val.csv"}, ("val/", "val.csv"), {"pillow"}),
        ({"images": "val/a*/*.png", "labels": "val.csv"}, ("val/", "val.csv"), {"pillow"}),
        ({"folder": "val"}, ("val/",), {"pillow"}),
        ({"npz": "val.npz"}, ("val.npz",), set()),
        ({"python": "own.py:rows"}, ("own.py",), {"python"}),
        ({"parquet": "val.parquet"}, ("val.parquet",), {"pyarrow", "pillow"}),
        ({"arrow": "val/*.arrow"}, ("val/",), {"pyarrow", "pillow"}),
        ({"dataset": "val/"}, ("val/",), {"pyarrow", "pillow"}),
    ],
)
def test_samples_are_in_both_keys(
    data: dict[str, Any], files: tuple[str, ...], libraries: set[str]
) -> None:
    for action in planned(data):
        assert {*files} <= {*action.sources}
        assert {"numpy", *libraries} <= {*action.tools}
        assert {"pyarrow", "pillow"} & {*action.tools} == libraries - {"python"}
        used = action.options["evaluate"]["preprocess"]
        assert [*used] == (["x"] if "pillow" in libraries else [])


def test_functions_and_libraries_of_metrics_are_in_both_keys() -> None:
    data = {"npz": "val.npz"}
    for action in planned(data, {"python": "own.py:metric"}, postprocess="hooks/boxes.py:merge"):
        assert {"val.npz", "own.py", "hooks/boxes.py"} <= {*action.sources}
        assert "python" in action.tools
    for metric, library in {
        "map50_95": "faster-coco-eval",
        "wer": "jiwer",
        "r2": "scikit-learn",
    }.items():
        assert all(library in action.tools for action in planned(data, metric))


def test_the_weights_are_in_the_key_of_the_original_model_only() -> None:
    weights = {"torchvision": "resnet18", "weights": {"file": "w.pth"}}
    evaluation = {"data": {"npz": "val.npz"}, "metric": "top1"}
    actions = plan_engines({}, source=weights, evaluate=evaluation)
    assert actions["predict:m"].weights
    assert {"torch", "torchvision"} <= {*actions["predict:m"].tools}
    assert not actions["evaluate:m:e0"].weights
    assert "torch" not in actions["evaluate:m:e0"].tools


def test_the_allowed_loss_is_in_the_key_of_the_engine_only() -> None:
    (before, first), (after, second) = (
        planned({"npz": "val.npz"}, drop=drop) for drop in ("1%", "2%")
    )
    assert before == after
    assert (first.options["drop"], second.options["drop"]) == (0.01, 0.02)


def test_models_without_engines_or_data_have_no_evaluation() -> None:
    assert not {"predict:m", "evaluate:m:e0"} & plan_engines({}).keys()
