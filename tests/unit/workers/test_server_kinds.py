from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from buildsys.system.toolchains import Toolchain
from buildsys.workers.job import LIGHT, TORCH, Job, late_preload, server_kind_of


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
