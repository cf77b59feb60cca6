"""Decisions of the verify stage on the outputs of a scripted session."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_jobs import resolved, stage_job, write_golden

from buildsys.backends.interface import OperatorUse
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Tensor, load_tensors, tensor_of
from buildsys.stages.verify import stage as verify
from buildsys.workers.job import StageResult

CASES = {"min": 1, "opt": 2, "max": 8, "odd": 3}
ORT = {"backend": "onnxruntime"}
TRT = {"backend": "tensorrt", "typing": "weak"}
Outputs = dict[str, Tensor]
WIDE = {"x": {"min": (1, 3, 8, 8), "opt": (2, 3, 8, 8), "max": (8, 3, 8, 8)}}
SMALL = {"x": {"min": (1, 3, 8, 8), "opt": (1, 3, 8, 8), "max": (3, 3, 8, 8)}}
HUGE = {"x": {"min": (32, 3, 8, 8), "opt": (32, 3, 8, 8), "max": (64, 3, 8, 8)}}


def golden(value: float = 4.0, dtype: str = "float32", size: int = 4) -> dict[str, Outputs]:
    """Return an output y per case: ascending numbers with ``value`` as the largest."""
    numbers = np.linspace(value / size, value, size)
    return {case: {"y": tensor_of(np.stack([numbers] * n), dtype)} for case, n in CASES.items()}


class Session:
    """Gives the golden outputs, changed by ``change`` (profile, outputs)."""

    def __init__(
        self,
        expected: Mapping[str, Outputs],
        change: Callable[[int | None, Outputs], Outputs] = lambda profile, outputs: outputs,
        profiles: tuple[Any, ...] = (),
    ) -> None:
        self.profiles = profiles
        self._expected = expected
        self._change = change
        self.is_closed = False

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Outputs:
        batch = inputs["x"].shape[0]
        case = next(case for case, size in CASES.items() if size == batch)
        return self._change(profile, dict(self._expected[case]))

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StageResult]:
    def check(
        session: Session,
        expected: Mapping[str, Outputs],
        engine: Mapping[str, Any] = ORT,
        progress: Callable[[str], None] = lambda _: None,
        **sections: Any,
    ) -> StageResult:
        backend = SimpleNamespace(load=lambda *_: session)
        monkeypatch.setattr(verify, "load_backend", lambda *_, **__: backend)
        spec = resolved(engine, **sections)
        x = {
            case: {"x": tensor_of(np.zeros((n, 3, 8, 8), np.float32))} for case, n in CASES.items()
        }
        write_golden(tmp_path, expected, x)
        job = stage_job(spec, "verify", tmp_path)
        name = "engine.onnx" if engine["backend"] == "onnxruntime" else "engine.engine"
        inputs = {**job.inputs, "engine": tmp_path / name}
        try:
            return verify.run(replace(job, inputs=inputs, progress=progress))
        finally:
            assert session.is_closed

    return check


def plus(amount: float, index: tuple[int, ...] = (0, 0)) -> Callable[[Any, Outputs], Outputs]:
    """Return a change that adds ``amount`` to one element of y."""

    def change(profile: int | None, outputs: Outputs) -> Outputs:
        array = outputs["y"].array.copy()
        array[index] += np.asarray(amount, array.dtype)
        return {**outputs, "y": tensor_of(array)}

    return change


def test_right_outputs_pass_with_their_figures(verified: Any) -> None:
    steps: list[str] = []
    result = verified(Session(golden()), golden(), progress=steps.append)
    assert (result.status, result.reason, result.hint) == ("passed", "", "")
    assert list(result.figures["cases"]) == ["min", "opt", "max", "odd"]
    assert result.figures["cases"]["opt"]["y"]["relative"] == 0.0
    assert result.figures["dims"] == {case: {"batch": n} for case, n in CASES.items()}
    assert result.figures["failures"] == []
    assert result.figures["tolerance"]["rtol"] > 0
    assert "profiles" not in result.figures
    assert not result.figures["warnings"]
    assert steps == [f"case {name}" for name in CASES]


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_case_has_the_figures_of_its_worst_profile(
    verified: Any, tmp_path: Path, wrong: int
) -> None:
    def change(profile: int | None, outputs: Outputs) -> Outputs:
        return plus(2.0)(profile, outputs) if profile == wrong else outputs

    steps: list[str] = []
    session = Session(golden(), change, (WIDE, SMALL))
    result = verified(session, golden(), TRT, progress=steps.append)
    assert result.status == "failed"
    assert steps == [
        *(f"case {name} in profile 0" for name in CASES),
        *(f"case {name} in profile 1" for name in ("min", "opt", "odd")),
    ]  # fmt: skip
    cases = result.figures["cases"]
    assert (cases["min"]["y"]["relative"], cases["min"]["y"]["passed"]) == (0.5, False)
    by_profile = result.figures["profiles"]
    assert [profile["profile"] for profile in by_profile] == [0, 1]
    assert by_profile[1]["ranges"]["x"]["max"] == [3, 3, 8, 8]
    assert list(by_profile[1]["cases"]) == ["min", "opt", "odd"]
    passed = [profile["cases"]["min"]["y"]["passed"] for profile in by_profile]
    assert passed == [wrong != 0, wrong != 1]
    failures = result.figures["failures"]
    assert {failure["profile"] for failure in failures} == {wrong}
    assert f"output 'y', case min (batch 1), profile {wrong}: at [0, 0]" in result.reason
    assert (tmp_path / f"m/verify/failed/e-profile{wrong}-min.npz").is_file()
    assert not (tmp_path / f"m/verify/failed/e-profile{1 - wrong}-min.npz").exists()


def test_a_nan_is_worse_than_any_number(verified: Any) -> None:
    def change(profile: int | None, outputs: Outputs) -> Outputs:
        return plus(np.nan if profile == 0 else 1e6)(profile, outputs)

    result = verified(Session(golden(), change, (WIDE, WIDE)), golden(), TRT)
    assert result.figures["cases"]["min"]["y"]["relative"] is None


def test_one_profile_is_not_named(verified: Any, tmp_path: Path) -> None:
    result = verified(Session(golden(), plus(2.0), (WIDE,)), golden(), TRT)
    assert "output 'y', case min (batch 1): at [0, 0]" in result.reason
    assert result.figures["failures"][0]["profile"] == 0
    assert (tmp_path / "m/verify/failed/e-min.npz").is_file()


def test_a_case_in_no_profile_and_a_profile_without_case_fail(verified: Any) -> None:
    result = verified(Session(golden(), profiles=(SMALL, HUGE)), golden(), TRT)
    assert result.status == "failed"
    small, huge = "x [1, 3, 8, 8] to [3, 3, 8, 8]", "x [32, 3, 8, 8] to [64, 3, 8, 8]"
    outside = "case max (batch 8) fits no optimization profile of the engine"
    assert result.reason == f"the engine e of m is wrong: {outside} ({small}; {huge}) (and 1 more)"
    unverified = f"no golden case fits profile 1 ({huge}), so it is unverified"
    assert result.figures["failures"] == [
        {"case": "max", "dims": {"batch": 8}, "problem": outside},
        {"profile": 1, "problem": unverified},
    ]
    assert list(result.figures["cases"]) == list(result.figures["dims"]) == ["min", "opt", "odd"]


def test_an_unused_profile_alone_fails(verified: Any) -> None:
    result = verified(Session(golden(), profiles=(WIDE, HUGE)), golden(), TRT)
    assert result.status == "failed"
    assert "is wrong: no golden case fits profile 1 (x [32, 3, 8, 8] to [64" in result.reason


def test_a_case_outside_explicit_profiles_is_a_warning(verified: Any) -> None:
    explicit = {"x": {point: list(shape) for point, shape in SMALL["x"].items()}}
    session = Session(golden(), profiles=(SMALL,))
    result = verified(session, golden(), {**TRT, "profiles": [explicit]})
    assert result.status == "passed"
    assert result.figures["outside_profiles"] == ["max"]
    (warning,) = result.figures["warnings"]
    assert warning.endswith("are not run: max (batch 8)")


@pytest.mark.parametrize(
    ("engine", "reference"),
    [
        ("int32", "int64"), ("int64", "int32"), ("float16", "float32"), ("float64", "float32"),
        ("float32", "int32"), ("bool", "int32")
    ],
)  # fmt: skip
def test_another_type_fails(verified: Any, engine: str, reference: str) -> None:
    result = verified(Session(golden(4, engine)), golden(4, reference))
    assert result.status == "failed"
    assert f"has type {engine} instead of {reference}" in result.reason


@pytest.mark.parametrize(
    ("engine", "reference", "extra", "status"),
    [
        ("int32", "int64", 0, "passed"),
        ("int32", "int64", 1, "failed"),
        ("int16", "int64", 0, "failed"),
        ("int64", "int32", 0, "failed"),
    ],
)
def test_types_that_the_library_lacks_are_compared_exactly(
    verified: Any, engine: str, reference: str, extra: int, status: str
) -> None:
    session = Session(golden(20_000, engine), plus(extra))
    session.stand_in_types = {"int64": "int32"}  # type: ignore[attr-defined]
    result = verified(session, golden(20_000, reference))
    assert result.status == status
    if extra:
        assert "the engine has 5001 and the reference 5000" in result.reason


def test_an_integer_off_by_one_fails(verified: Any) -> None:
    session = Session(golden(400_000, "int64"), plus(1))
    result = verified(session, golden(400_000, "int64"), {**ORT, "tolerance": {"rtol": 1e-3}})
    assert result.status == "failed"
    assert "at [0, 0] the engine has 100001 and the reference 100000" in result.reason
    assert result.hint == ""


def test_an_integer_beyond_32_bits_is_the_cause_of_narrow_libraries(verified: Any) -> None:
    expected = golden(2.0**33, "int64")
    result = verified(Session(expected, plus(2**20, (0, 3))), expected, {"backend": "openvino"})
    assert result.hint.startswith("OpenVINO computes int64 in 32 bits: declare the range")


def test_the_cases_that_are_right_are_named(verified: Any) -> None:
    def change(profile: int | None, outputs: Outputs) -> Outputs:
        return plus(2.0)(profile, outputs) if outputs["y"].shape[0] == 2 else outputs

    result = verified(Session(golden(), change), golden())
    assert result.reason.startswith("the engine e of m is wrong in 1 of 4 cases: output 'y', case")
    assert result.reason.endswith("; it is right in min, max, odd")
    assert "more)" not in result.reason
    assert len(result.reason) < 250


def test_wrong_outputs_are_saved_with_inputs_and_expected_values(
    verified: Any, tmp_path: Path
) -> None:
    expected = {case: {**outputs, "z": outputs["y"]} for case, outputs in golden().items()}
    result = verified(Session(expected, plus(2.0)), expected)
    kept = load_tensors(tmp_path / "m/verify/failed/e-min.npz")
    assert set(kept) == {"in.x", "expected.y", "actual.y"}
    assert kept["actual.y"].array[0, 0] == kept["expected.y"].array[0, 0] + 2
    found = result.figures["failures"]
    assert [(failure["case"], failure["output"]) for failure in found] == [(c, "y") for c in CASES]
    assert found[0]["dims"] == {"batch": 1}
    assert "profile" not in found[0]


def test_a_missing_output_is_an_error(verified: Any) -> None:
    with pytest.raises(StageError, match="the engine has no output 'y', only z, w"):
        verified(
            Session(golden(), lambda _, outputs: {"z": outputs["y"], "w": outputs["y"]}), golden()
        )


@pytest.mark.parametrize(
    ("amount", "advised"), [(0.4, True), (0.8, False), (np.nan, False)], ids=str
)
def test_tf32_is_suggested_only_for_errors_that_it_can_cause(
    verified: Any, amount: float, *, advised: bool
) -> None:
    result = verified(Session(golden(), plus(amount), (WIDE,)), golden(), TRT)
    assert result.status == "failed"
    advice = "the error is no larger than TF32 can cause: try tf32: false, which computes in full"
    assert result.hint.startswith(advice) == advised


@pytest.mark.parametrize(
    ("engine", "hint"),
    [
        (
            {**ORT, "precision": "fp16"},
            "`buildsys debug --fp32-nodes m:e` finds the nodes that must stay in fp32;"
            " precision: auto-fp16 keeps the fewest nodes in fp32",
        ),
        ({**TRT, "precision": "fp16"}, "precision: auto-fp16 keeps the fewest nodes in fp32"),
        (
            {"backend": "openvino", "precision": "bf16"},
            "precision: auto-bf16 keeps the fewest nodes in fp32",
        ),
        (
            {**ORT, "precision": "auto-fp16"},
            "the engine's own rounding exceeds what the search left to it: raise search.margin, or"
            " the limits",
        ),
    ],
)
def test_a_wrong_engine_of_low_precision_names_what_keeps_nodes_in_fp32(
    verified: Any, engine: dict[str, Any], hint: str
) -> None:
    result = verified(Session(golden(), plus(np.nan)), golden(), engine)
    assert (result.status, result.hint) == ("failed", hint)


def test_wrong_integers_of_low_precision_name_a_policy_too(verified: Any) -> None:
    expected = {c: {"y": tensor_of(np.arange(batch) % 3)} for c, batch in CASES.items()}

    def change(profile: int | None, outputs: Outputs) -> Outputs:
        return {"y": tensor_of(outputs["y"].array + 1)}

    result = verified(Session(expected, change), expected, {**ORT, "precision": "fp16"})
    assert result.hint.startswith("if rounding decides it, allow steps of 1: outputs: ")
    assert "`buildsys debug --fp32-nodes m:e`" in result.hint


@pytest.mark.parametrize("profiles", [(WIDE,), (WIDE, WIDE)])
def test_an_engine_that_loses_the_variation_fails(verified: Any, profiles: tuple[Any, ...]) -> None:
    def varied(batch: int) -> Outputs:
        return {"y": tensor_of(np.float32(290) + np.arange(batch, dtype=np.float32)[:, None])}

    def change(profile: int | None, outputs: Outputs) -> Outputs:
        y = outputs["y"].array
        return {"y": tensor_of(np.full_like(y, 293))} if profile == wrong else outputs

    expected, wrong = {case: varied(batch) for case, batch in CASES.items()}, len(profiles) - 1
    calibration = {"data": {"x": {"random": "normal"}}}
    engine = {**TRT, "precision": "int8"}
    session = Session(expected, change, profiles)
    result = verified(session, expected, engine, calibration=calibration)
    names = ["y, profile 0", "y, profile 1"] if wrong else ["y"]
    assert [*result.figures["agreement"]] == names
    assert result.figures["agreement"][names[wrong]]["samples"] == 14
    assert "plain noise and random weights, choose inputs.NAME.data" in result.hint
    (failure,) = result.figures["failures"]
    assert failure.keys() == {"output", "problem"}
    assert failure["problem"].startswith("over 14 samples: correlation 0")
    where = f"output 'y'{' in profile 1' * wrong}: {failure['problem']}"
    assert (result.status, result.reason) == ("failed", f"the engine e of m is wrong: {where}")
    assert result.hint.startswith("calibrate on data like the golden inputs (calibration.data)")


def test_tf32_is_not_suggested_for_a_missing_case(verified: Any) -> None:
    result = verified(Session(golden(), profiles=(SMALL,)), golden(), TRT)
    assert result.hint == ""
    assert result.reason == (
        "the engine e of m is wrong: case max (batch 8) fits no optimization profile of the engine"
        " (x [1, 3, 8, 8] to [3, 3, 8, 8])"
    )


def test_an_engine_that_cannot_be_loaded_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> Any:
        raise Unavailable("no GPU", "build it elsewhere")

    monkeypatch.setattr(verify, "load_backend", lambda *_, **__: SimpleNamespace(load=load))
    write_golden(tmp_path, {}, {})
    job = stage_job(resolved(ORT), "verify", tmp_path)
    assert verify.run(job).reason == "there is no engine: see the result of its engine target"
    result = verify.run(replace(job, inputs={"engine": tmp_path / "engine.onnx"}))
    assert verify.run(job).status == "unavailable"
    assert (result.status, result.reason, result.hint) == (
        "unavailable",
        "no GPU",
        "build it elsewhere",
    )


def test_the_engine_is_loaded_by_its_backend_in_its_toolchain_with_its_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def load(*arguments: Any) -> Any:
        calls.append(arguments)
        raise Unavailable("no GPU")

    def load_backend(*arguments: Any, to_run: bool) -> Any:
        assert to_run
        calls.append(arguments)
        return SimpleNamespace(load=load)

    monkeypatch.setattr(verify, "load_backend", load_backend)
    job = stage_job(resolved(ORT), "verify", tmp_path)
    operators = [
        {"op": "a::B", "kind": "plugin", "python": "p.py"},
        {"op": "trt::C", "kind": "plugin"},
    ]
    toolchain: Any = object()
    engine = {**job.options["engine"], "unusable": "it has no GPU"}
    options = {**job.options, "engine": engine, "operators": operators}
    verify.run(replace(job, options=options, inputs={"engine": tmp_path}, toolchain=toolchain))
    uses = (
        OperatorUse("a::B", "plugin", tmp_path / "p.py", tmp_path),
        OperatorUse("trt::C", "plugin", None, tmp_path),
    )
    assert calls == [("onnxruntime", toolchain, "it has no GPU"), (tmp_path, engine, uses)]
