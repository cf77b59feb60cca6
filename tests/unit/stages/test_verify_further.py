"""Decisions of the verify stage in further cases: those that validate has drawn."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_jobs import BATCHES, random_x, resolved, stage_job, write_golden

from buildsys.errors import CheckFailed, StageError
from buildsys.onnx_graphs.tensors import Tensor, load_tensors, tensor_of
from buildsys.stages.verify import stage as verify
from buildsys.workers.job import StageResult

CASES = {**BATCHES, "odd": 3}
FURTHER = 5  # batch of the further cases
Outputs = dict[str, Tensor]
TO_8 = {"x": {"min": (1, 3, 8, 8), "opt": (2, 3, 8, 8), "max": (8, 3, 8, 8)}}
TO_3 = {"x": {"min": (1, 3, 8, 8), "opt": (2, 3, 8, 8), "max": (3, 3, 8, 8)}}


def right(inputs: Mapping[str, Tensor]) -> Outputs:
    """Return y: 1 to 4, scaled by the first values of x; z: the same, halved."""
    scale = np.sign(inputs["x"].array[:, 0, 0, :1])
    y = scale * np.arange(1, 5, dtype=np.float32)
    return {"y": tensor_of(y), "z": tensor_of(y / 2)}


class Session:
    """Computes the right outputs, changed by ``change`` in calls with the batch FURTHER."""

    def __init__(
        self, change: Callable[[int, Outputs], Outputs], profiles: tuple[Any, ...] = ()
    ) -> None:
        self.profiles = profiles
        self.inputs: list[Mapping[str, Tensor]] = []  # of the calls with the batch FURTHER
        self.used: list[int | None] = []  # their profiles
        self._change = change

    def close(self) -> None:
        pass

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Outputs:
        if inputs["x"].shape[0] != FURTHER:
            return right(inputs)
        self.inputs.append(inputs)
        self.used.append(profile)
        return self._change(len(self.inputs) - 1, right(self.inputs[0]))


def moved(**amounts: float) -> Callable[[int, Outputs], Outputs]:
    """Return a change that adds amounts to one element of outputs in every call."""

    def change(call: int, outputs: Outputs) -> Outputs:
        for name, amount in amounts.items():
            array = outputs[name].array.copy()
            array[0, 0] += amount
            outputs[name] = tensor_of(array)
        return outputs

    return change


def by_call(**amounts: dict[int, float]) -> Callable[[int, Outputs], Outputs]:
    """Return a change with the amounts of each call: 0 is the case, 1 the first draw."""

    def change(call: int, outputs: Outputs) -> Outputs:
        here = {name: calls.get(call, calls[0]) for name, calls in amounts.items()}
        return moved(**here)(call, outputs)

    return change


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StageResult]:
    def check(
        session: Session, further: tuple[str, ...] = ("drawn-1",), backend: str = "onnxruntime"
    ) -> StageResult:
        loaded = SimpleNamespace(load=lambda *_: session)
        monkeypatch.setattr(verify, "load_backend", lambda *_, **__: loaded)
        inputs = {case: random_x(batch, seed=batch) for case, batch in CASES.items()}
        inputs |= {case: random_x(FURTHER, seed=9) for case in further}
        write_golden(tmp_path, {case: right(x) for case, x in inputs.items()}, inputs)
        job = stage_job(resolved({"backend": backend}), "verify", tmp_path)
        files = {**job.inputs, "engine": tmp_path / "engine"}
        return verify.run(replace(job, inputs=files, progress=steps.append))

    steps: list[str] = []
    check.steps = steps  # type: ignore[attr-defined]
    return check


def test_a_right_engine_passes_with_the_figures_of_further_cases(verified: Any) -> None:
    session = Session(moved())
    result = verified(session, ("drawn-1", "seed-1"))
    assert result.status == "passed"
    assert list(result.figures["cases"]) == [*CASES, "drawn-1", "seed-1"]
    assert result.figures["dims"]["seed-1"] == {"batch": FURTHER}
    assert verified.steps[len(CASES) :] == [
        "reading further cases", "case drawn-1 (batch 5)", "case seed-1 (batch 5)",
    ]  # fmt: skip
    assert len(session.inputs) == 2  # nothing to explain
    assert not result.figures["warnings"]


def test_a_wrong_further_case_fails_after_those_without_a_file(
    verified: Any, tmp_path: Path
) -> None:
    result = verified(Session(moved(y=2.0)), ("drawn-3",))
    assert result.status == "failed"
    assert "is wrong in 1 of 5 cases: output 'y', case drawn-3 (batch 5): at [" in result.reason
    (failure,) = result.figures["failures"]
    assert (failure["case"], failure["dims"]) == ("drawn-3", {"batch": FURTHER})
    assert set(load_tensors(tmp_path / "m/verify/failed/e-drawn-3.npz")) == {
        "in.x", "expected.y", "actual.y",
    }  # fmt: skip


def test_integers_beyond_32_bits_have_a_hint_if_the_library_has_none(verified: Any) -> None:
    for backend, hint in (("openvino", "OpenVINO computes int64 in 32 bits"), ("onnxruntime", "")):
        result = verified(Session(moved(y=2.0)), ("wide-integers",), backend)
        assert result.status == "failed"
        assert result.hint.partition(":")[0] == hint
    assert "32 bits" not in verified(Session(moved(y=2.0)), ("large",), "openvino").hint


def test_further_cases_run_in_the_profiles_that_they_fit(verified: Any) -> None:
    session = Session(moved(), (TO_3, TO_8))
    result = verified(session, backend="tensorrt")
    assert session.used == [1]
    assert list(result.figures["profiles"][1]["cases"]) == [*CASES, "drawn-1"]
    assert verified(Session(moved(y=2.0), (TO_3, TO_8)), backend="tensorrt").status == "failed"


def test_draws_run_in_the_profile_of_the_case(verified: Any) -> None:
    session = Session(by_call(y={0: 2.0, 1: 0.0}), (TO_3, TO_8))
    assert verified(session, backend="tensorrt").status == "passed"
    assert session.used == [1, 1, 1, 1, 1, 1, 1]


def test_further_cases_wait_for_the_four_cases(
    verified: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(moved(), ({"x": {**TO_8["x"], "max": (7, 3, 8, 8)}},))
    result = verified(session, backend="tensorrt")  # case max fits no profile
    assert result.status == "failed"
    assert session.inputs == []


def test_an_error_names_the_further_case(verified: Any) -> None:
    def refuse(call: int, outputs: Outputs) -> Outputs:
        raise CheckFailed("not for 5", "take 4")

    with pytest.raises(CheckFailed) as raised:
        verified(Session(refuse))
    assert isinstance(raised.value, StageError)
    assert (raised.value.problem, raised.value.hint) == (
        "case drawn-1 (batch 5): not for 5", "take 4",
    )  # fmt: skip


def test_an_engine_that_refuses_the_changed_numbers_is_wrong(verified: Any) -> None:
    def change(call: int, outputs: Outputs) -> Outputs:
        if call:
            raise StageError("an index is out of range")
        return moved(y=2.0)(call, outputs)

    result = verified(Session(change))
    assert result.status == "failed"
    assert "output 'y', case drawn-1 (batch 5): at [0, 0]" in result.reason


@pytest.mark.parametrize("draw", [1, 6])
def test_last_bits_that_move_an_output_as_far_excuse_a_case(verified: Any, draw: int) -> None:
    session = Session(by_call(y={0: 2.0, draw: 0.0}))
    result = verified(session)
    assert result.status == "passed"
    assert list(result.figures["cases"]) == [*CASES]
    assert result.figures["failures"] == []
    text = "case drawn-1 (batch 5) is not compared: its outputs depend on the last bits"
    assert result.figures["doubts"] == [
        {"kind": "uncompared", "text": f"{text} of the numbers", "place": "drawn-1"}
    ]


def test_the_six_draws_differ_and_repeat(verified: Any) -> None:
    first, again = Session(moved(y=2.0)), Session(moved(y=2.0))
    assert verified(first).status == verified(again).status == "failed"
    drawn = [inputs["x"].array.tobytes() for inputs in first.inputs]
    assert len(set(drawn)) == len(drawn) == 7
    assert [inputs["x"].array.tobytes() for inputs in again.inputs] == drawn
    for inputs in first.inputs:
        np.testing.assert_allclose(inputs["x"].array, first.inputs[0]["x"].array, rtol=1e-6)


@pytest.mark.parametrize(
    ("amounts", "status"),
    [
        ({0: 2.0, 1: 1.5}, "passed"),  # a quarter of the error
        ({0: 2.0, 1: 1.6}, "failed"),
        ({0: 0.005, 1: 0.0}, "passed"),
        ({0: 0.005, 1: 0.004}, "failed"),  # within the limits, so not unstable
    ],
)
def test_the_excuse_is_as_large_as_the_error(
    verified: Any, amounts: dict[int, float], status: str
) -> None:
    assert verified(Session(by_call(y=amounts))).status == status


@pytest.mark.parametrize(
    ("z", "status"),
    [
        ({0: 1.0}, "failed"),  # y alone is explained
        ({0: 1.0, 1: 0.0}, "passed"),  # by the same draw
        ({0: 1.0, 4: 0.0}, "passed"),  # by another one
        ({0: 0.0, 1: 1.0}, "passed"),  # an output that is right needs no explanation
    ],
)
def test_every_wrong_output_needs_an_explanation(
    verified: Any, z: dict[int, float], status: str
) -> None:
    assert verified(Session(by_call(y={0: 2.0, 1: 0.0}, z=z))).status == status
