"""Engines of networks defined by hand with TensorRT's API."""

from typing import Any

from planning import plan_of

from buildsys.plan.action import Action, FileRef

SOURCE = {
    "tensorrt": "plugins/net.py:define", "kwargs": {"width": 4},
    "reference": {"python": "plugins/net_torch.py:Net"},
}  # fmt: skip
WEIGHTS = FileRef("m/reference/weights.npz")


def plan(source: dict[str, Any] | None = None, **sections: Any) -> dict[str, Action]:
    manifest = {
        "model": "m",
        "source": source or SOURCE,
        "inputs": {"x": {"shape": ("batch", 4)}},
        "outputs": {"y": {"shape": ("batch", 2)}},
        "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
        "engines": ({"backend": "tensorrt", "name": "e", "precision": "fp16"},),
        "bench": {"baselines": ("torch", "onnxruntime")},
        **sections,
    }
    return plan_of(manifest)  # every dependency is planned, or it is refused


def test_there_are_no_targets_of_a_graph() -> None:
    stages = {action.stage for action in plan().values()}
    assert stages == {"reference", "engine", "verify", "bench", "report"}


def test_the_key_of_the_engine_has_the_function_and_its_weights() -> None:
    found = plan()
    engine = found["engine:m:e"]
    assert engine.sources == ("plugins/net.py",)
    assert engine.inputs == {"weights": WEIGHTS}
    assert engine.after == ("reference:m",)
    assert "python" in engine.tools
    assert engine.options["definition"] == {
        "function": "plugins/net.py:define",
        "kwargs": {"width": 4},
        "outputs": {"y": {"shape": ["batch", 2], "dtype": None}},
    }
    assert found["reference:m"].outputs["weights"] == WEIGHTS
    assert found["reference:m"].sources == ("plugins/net_torch.py",)


def test_weights_of_a_file_are_in_the_key_instead() -> None:
    weights = {"file": "data/net.npz"}
    found = plan({**SOURCE, "weights": weights, "reference": {"numpy": "plugins/ref.py:compute"}})
    engine, reference = found["engine:m:e"], found["reference:m"]
    assert engine.weights == {"data/net.npz": None}
    assert engine.inputs == {}
    assert engine.after == ()
    assert engine.options["definition"]["weights"] == "data/net.npz"
    assert "weights" not in reference.outputs
    assert "torch" not in reference.tools
    assert reference.environment == ()


def test_the_reference_is_the_baseline() -> None:
    bench = plan()["bench:m:e"]
    assert bench.options["bench"]["baselines"] == ["torch"]
    assert bench.options["network"]["source"]["python"] == "plugins/net_torch.py:Net"
    bench = plan({**SOURCE, "reference": {"numpy": "plugins/ref.py:compute"}})["bench:m:e"]
    assert bench.options["bench"]["baselines"] == []
