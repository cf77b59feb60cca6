import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from buildsys.errors import CheckFailed, StageError, Unavailable, WorkerDied
from buildsys.system.toolchains import Toolchain
from buildsys.workers.job import (
    LIGHT,
    TORCH,
    Job,
    encode,
    error_from_json,
    error_to_json,
    job_from_json,
    job_to_json,
    late_preload,
    server_kind_of,
)

JOB = Job(
    target="export:m",
    stage="export",
    model="m",
    variant="",
    options={"opset": 17, "deep": {"list": [1, 2.5, None, "ü"]}},
    inputs={"model": Path("/p/in.onnx")},
    outputs={"result": Path("/p/out.json")},
    project=Path("/p"),
    threads=3,
    advisory={"origins": Path("/p/origins.json")},
    earlier=({"engine": "/s/1", "result": "/s/2"},),
)


def test_a_job_survives_conversion_to_json() -> None:
    message = json.loads(encode(job_to_json(JOB)))
    assert job_from_json(message) == JOB
    assert {field.name for field in fields(Job)} - message.keys() == {"progress", "count", "fail"}


@pytest.mark.parametrize("kind", [StageError, CheckFailed, Unavailable, WorkerDied])
def test_errors_keep_their_class(kind: type[StageError]) -> None:
    error = error_from_json(error_to_json(kind("what", "what to do")))
    assert type(error) is kind
    assert (error.problem, error.hint) == ("what", "what to do")
    assert error.is_external is (kind is WorkerDied)


class _Subclass(CheckFailed):
    pass


def _job(stage: str, **options: Any) -> Job:
    return Job(f"{stage}:m", stage, "m", "", options, {}, {}, Path(), server="light")


@pytest.mark.parametrize("name", ["bare", "light", "torch"])
def test_a_job_names_its_server(name: Any) -> None:
    assert server_kind_of(replace(_job("export"), server=name)).name == name


def test_a_toolchain_has_a_server_unless_the_stage_uses_it_through_another_process() -> None:
    toolchain = Toolchain("other", Path("/envs/other/bin/python"), {})
    job = replace(_job("verify"), toolchain=toolchain)
    assert server_kind_of(job).name == "toolchain-other"
    assert server_kind_of(replace(job, in_own_interpreter=True)).name == "light"


def test_the_light_server_hides_what_onnxsim_imports_without_need() -> None:
    assert set(LIGHT.without) == {"torch", "sympy"}
    assert not [name for name in LIGHT.preload if name.partition(".")[0].startswith("torch")]
    assert TORCH.preload[0] == "torch"


def test_the_module_of_a_stage_is_loaded_into_its_server() -> None:
    assert late_preload(_job("simplify", simplify={})) == ("buildsys.stages.simplify.stage",)


def test_a_stage_of_another_package_is_loaded_by_its_child() -> None:
    assert late_preload(_job("team.stages.prune")) == ()
