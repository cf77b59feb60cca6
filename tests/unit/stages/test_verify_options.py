"""Limits, policies, profiles and hints of the verify stage."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_jobs import BATCHES, random_x, resolved, stage_job, write_golden

from buildsys.manifest.default_limits import effective_limits
from buildsys.onnx_graphs.tensors import Tensor, save_case, tensor_of
from buildsys.stages.common.difference_hints import UNINFORMATIVE, uninformative_changes
from buildsys.stages.verify import stage as verify
from buildsys.stages.verify.stage import CaseRun, plan_runs
from buildsys.system.backend_registry import describe_backend
from buildsys.workers.job import Job, StageResult

CASES = {**BATCHES, "odd": 3}
ORT = {"backend": "onnxruntime"}
Rows = Callable[[int], Any]


class Session:
    """Returns y of ``rows`` for the batch of x."""

    profiles = ()

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def run(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> dict[str, Tensor]:
        return {"y": tensor_of(np.asarray(self._rows(inputs["x"].shape[0]), np.float32))}

    def close(self) -> None:
        pass


def rows(*values: float) -> Rows:
    return lambda batch: [values] * batch


@pytest.fixture
def job_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    def make(expected: Rows, actual: Rows, engine: Mapping[str, Any] = ORT, **sections: Any) -> Job:
        loaded = SimpleNamespace(load=lambda *_: Session(actual))
        monkeypatch.setattr(verify, "load_backend", lambda *_, **__: loaded)
        inputs = {case: random_x(batch, seed=batch) for case, batch in CASES.items()}
        golden = {case: Session(expected).run(x) for case, x in inputs.items()}
        write_golden(tmp_path, golden, inputs)
        job = stage_job(resolved(engine, **sections), "verify", tmp_path)
        return replace(job, inputs={**job.inputs, "engine": tmp_path / "engine"})

    return make


def outcome(job: Job) -> StageResult:
    return verify.run(job)


def test_an_output_that_is_zero_in_every_case_fails_with_its_remedies(job_of: Any) -> None:
    result = outcome(job_of(rows(0, 0), rows(0, 0)))
    problem = "output 'y': it is zero everywhere in every case, so no case compares anything"
    assert result.status == "failed"
    assert result.reason == f"the engine e of m is wrong: {problem}"
    assert result.figures["failures"] == [{"output": "y", "problem": problem}]
    assert (result.hint, result.changes) == (UNINFORMATIVE, uninformative_changes(["y"], ["y"]))
    warned = outcome(job_of(rows(0, 0), rows(0, 0), validate={"uncompared": "warn"}))
    doubt = {"kind": "output", "text": problem, "place": "y"}
    assert (warned.status, warned.figures["doubts"]) == ("passed", [doubt])


def test_an_output_that_hardly_varies_is_a_doubt_about_low_precision(job_of: Any) -> None:
    result = outcome(job_of(rows(293, 294), rows(293, 294), {**ORT, "precision": "fp16"}))
    (doubt,) = result.figures["doubts"]
    assert (result.status, doubt["kind"], doubt["place"]) == ("passed", "output", "y")
    assert doubt["text"].startswith("output 'y': it hardly varies over the golden inputs")
    assert not outcome(job_of(rows(293, 294), rows(293, 294))).figures["doubts"]


def test_the_compared_cases_are_counted(job_of: Any) -> None:
    counted: list[tuple[Any, ...]] = []
    job = replace(job_of(rows(1, 2), rows(1, 2)), count=lambda *what: counted.append(what))
    assert outcome(job).status == "passed"
    assert counted == [(number, 4, "cases") for number in range(4)]


def test_without_further_cases_the_four_are_compared(job_of: Any) -> None:
    job = job_of(rows(1, 2), rows(1, 2))
    options = {name: value for name, value in job.options.items() if name != "further"}
    assert [*outcome(replace(job, options=options)).figures["cases"]] == [*CASES]


@pytest.mark.parametrize("float_type", ["float32", "float16"])
def test_the_limits_are_those_of_the_weights(job_of: Any, float_type: str) -> None:
    job = job_of(rows(1, 2), rows(1, 2))
    for case, batch in CASES.items():
        x = random_x(batch, seed=batch)
        save_case(job.inputs[f"case.{case}"], x, Session(rows(1, 2)).run(x), float_type)
    unset = dict.fromkeys(job.options["tolerance"])
    job = replace(job, options={**job.options, "tolerance": unset})
    limits = effective_limits(unset, "fp32", float_type)
    assert outcome(job).figures["tolerance"] == limits
    assert (limits["rtol"] == 1e-3) == (float_type == "float32")


def test_an_output_is_compared_by_its_policy(job_of: Any) -> None:
    policy = {"policy": "elementwise", "atol": 0.5}
    for outputs, status in (({}, "failed"), ({"y": {"compare": policy}}, "passed")):
        assert outcome(job_of(rows(1, 2), rows(1.2, 2), outputs=outputs)).status == status


def test_small_parts_of_an_assembled_output_are_compared_apart(job_of: Any, tmp_path: Path) -> None:
    expected = rows(*range(600, 640), *np.linspace(0.1, 1, 40))
    # the same errors in large parts excuse those in small ones, unless they are computed apart
    job = job_of(expected, rows(*np.arange(600, 640) + 0.02, *np.linspace(0.1, 1, 40) + 0.02))
    file = tmp_path / "assembled.json"
    for outputs, status in ((["z"], "passed"), (["y"], "failed")):
        file.write_text(json.dumps({"outputs": outputs}))
        found = outcome(replace(job, inputs={**job.inputs, "assembled": file}))
        assert found.status == status, outputs


def test_an_explicitly_quantized_engine_can_keep_nodes_in_fp32(job_of: Any) -> None:
    calibration = {"data": {"x": {"random": "normal"}}}
    int8 = {"backend": "tensorrt", "precision": "int8", "typing": "weak"}
    for quantization, advised in (("explicit", True), ("implicit", False)):
        engine = {**int8, "quantization": quantization}
        job = job_of(rows(1, 2), rows(9, 2), engine, calibration=calibration)
        result = outcome(job)
        assert result.status == "failed"
        assert ("`buildsys debug --fp32-nodes m:e` finds" in result.hint) == advised


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"backend": "tensorrt", "precision": "fp32", "tf32": True, "flags": {}}, "tf32: false"),
        ({"backend": "tensorrt", "precision": "fp32", "tf32": False, "flags": {}}, ""),
        ({"backend": "tensorrt", "precision": "fp16", "tf32": True, "flags": {}}, ""),
        ({"backend": "tensorrt_rtx", "precision": "fp32", "flags": {}}, "flags: {tf32: false}"),
        ({"backend": "tensorrt_rtx", "precision": "fp32", "flags": {"tf32": False}}, ""),
        ({"backend": "onnxruntime", "precision": "fp32"}, ""),
    ],
)
def test_the_tf32_remedy_is_for_engines_that_use_tf32(options: dict[str, Any], advice: str) -> None:
    assert describe_backend(options["backend"]).exact_float32(options) == advice


def test_a_case_runs_in_every_profile_that_it_fits() -> None:
    small = {"x": {"min": (1, 3), "opt": (2, 3), "max": (4, 3)}}
    large = {"x": {"min": (4, 3), "opt": (8, 3), "max": (16, 3)}}
    shapes = {str(batch): {"x": (batch, 3), "k": (7,)} for batch in (1, 4, 16)}
    fitting = [CaseRun("1", 0), CaseRun("4", 0), CaseRun("4", 1), CaseRun("16", 1)]
    assert plan_runs([small, large], shapes | {"another rank": {"x": (1, 3, 1)}}) == fitting
