"""What the keys of evaluations have: samples, metrics, hooks, preprocessing and libraries."""

from pathlib import Path
from typing import Any

import pytest
from planning import plan_engines
from texts import Texts

from buildsys.errors import StageError
from buildsys.plan.action import Action
from buildsys.plan.dependencies import SourceTree

INPUTS = {"x": {"shape": ("batch", 3, 8, 8), "preprocess": {"divide": 255}}}


def planned(data: dict[str, Any], metric: Any = "top1", **fields: Any) -> list[Action]:
    """Plan the evaluation of one engine: of the original model, and of the engine."""
    actions = plan_engines({}, inputs=INPUTS, evaluate={"data": data, "metric": metric, **fields})
    return [actions["predict:m"], actions["evaluate:m:e0"]]


FILES = ["val.csv", "val.npz", "val.parquet", "own.py", "val/a1/x.png", "val/a1/b/y.jpg",
         "val/1.arrow", "val/state.json", "val/.hidden.arrow", "val/notes.txt"]  # fmt: skip
IMAGES = {"val/a1/x.png", "val/a1/b/y.jpg"}


@pytest.mark.parametrize(
    ("data", "files", "libraries"),
    [
        ({"images": "val", "labels": "val.csv"}, {*IMAGES, "val.csv"}, {"pillow"}),
        (
            {"images": "val/a*/*.png", "labels": "val.csv"},
            {"val/a1/x.png", "val.csv"},
            {"pillow"},
        ),
        ({"folder": "val"}, IMAGES, {"pillow"}),
        ({"npz": "val.npz"}, {"val.npz"}, set()),
        ({"python": "own.py:rows"}, {"own.py"}, {"python"}),
        ({"parquet": "val.parquet"}, {"val.parquet"}, {"pyarrow", "pillow"}),
        ({"arrow": "val/*.arrow"}, {"val/1.arrow"}, {"pyarrow", "pillow"}),
        ({"dataset": "val"}, {"val/1.arrow", "val/state.json"}, {"pyarrow", "pillow"}),
    ],
)
@pytest.mark.parametrize("root", ["project", "project [1]"])
def test_samples_are_in_both_keys(
    tmp_path: Path, root: str, data: dict[str, Any], files: set[str], libraries: set[str]
) -> None:
    for file in FILES:
        (tmp_path / root / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / root / file).write_text("")
    for action in planned(data):
        tree = SourceTree(str(tmp_path / root), lambda _: "digest", Texts())
        assert {*files} <= {*tree.dependencies(action.sources).files}
        assert {"numpy", *libraries} <= {*action.tools}
        assert {"pyarrow", "pillow"} & {*action.tools} == libraries - {"python"}
        used = action.options["evaluate"]["preprocess"]
        assert [*used] == (["x"] if "pillow" in libraries else [])


@pytest.mark.parametrize("name", ["val", "val [1]"])
def test_folders_and_files_may_be_named_like_patterns(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    for file in ("a.png", "b.arrow"):
        (tmp_path / name / file).write_text("")
    for data, file in (
        ({"images": name, "labels": "val.csv"}, "a.png"),
        ({"arrow": f"{name}/b.arrow"}, "b.arrow"),
        ({"dataset": name}, "b.arrow"),
    ):
        tree = SourceTree(str(tmp_path), lambda _: "digest", Texts())
        assert f"{name}/{file}" in tree.dependencies(planned(data)[0].sources).files


def test_names_of_files_are_in_utf8(tmp_path: Path) -> None:
    (tmp_path / "val").mkdir()
    (tmp_path / "val/\udcff.png").write_text("")
    with pytest.raises(StageError, match=r"the name of the file .* is not in UTF-8; rename it"):
        SourceTree(str(tmp_path), lambda _: "digest", Texts()).dependencies(["val/"])


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
