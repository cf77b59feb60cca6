from typing import Any

import pytest

from buildsys.plan.action import NO_NEEDS, Action, FileRef, Needs
from buildsys.remote.jobs import RemoteJob, plan_jobs

H100, L4 = Needs(gpu="H100", gpu_count=1), Needs(gpu="L4", gpu_count=1)


def action(target: str, *after: str, **fields: Any) -> Action:
    stage, model, *variant = target.split(":")
    outputs = {"result": FileRef(f"{model}/{stage}.json")}
    return Action(target, stage, model, "".join(variant), {}, {}, outputs, after=after, **fields)


def model(name: str, *engines: tuple[str, Needs, tuple[str, ...]]) -> list[Action]:
    """Return the actions of a model with engines of some needs and devices."""
    actions = [action(f"export:{name}")]
    for engine, needs, devices in engines:
        own = {"needs": needs, "devices": devices}
        built, measured = f"engine:{name}:{engine}", f"bench:{name}:{engine}"
        actions.append(action(built, f"export:{name}", **own))
        actions.append(action(measured, built, measures=True, **own))
    measured_targets = [one.target for one in actions if one.measures]
    return [*actions, action(f"report:{name}", *measured_targets)]


def stages(job: RemoteJob) -> list[str]:
    return [":".join(target.split(":")[::2]) for target in job.targets]


def test_a_model_for_the_processor_is_one_job() -> None:
    jobs = plan_jobs([*model("a", ("ort", NO_NEEDS, ("cpu",))), *model("b")])
    assert [(job.name, job.after) for job in jobs] == [("1-a-1", ""), ("2-b-1", "")]
    assert stages(jobs[0]) == ["export", "engine:ort", "bench:ort", "report"]
    assert jobs[0].needs == NO_NEEDS


def test_what_measures_or_uses_a_gpu_follows_on_another_machine() -> None:
    first, second = plan_jobs(model("a", ("ort", NO_NEEDS, ()), ("trt", NO_NEEDS, ("gpu",))))
    assert stages(first) == ["export", "engine:ort"]
    assert stages(second) == ["bench:ort", "engine:trt", "bench:trt", "report"]
    assert (first.needs.gpu_count, second.needs.gpu_count) == (0, 1)
    assert second.after == first.name


def test_each_kind_of_gpu_has_a_job_and_the_last_one_has_the_report() -> None:
    plain = ("trt", NO_NEEDS, ("gpu",))
    jobs = plan_jobs(model("a", plain, ("h", H100, ("gpu",)), ("l", L4, ("gpu",))))
    assert [stages(job) for job in jobs[:2]] == [["export"], ["engine:h", "bench:h"]]
    assert jobs[2].targets[-1] == "report:a"
    assert "engine:a:trt" in jobs[2].targets  # any GPU will do
    assert [job.needs.gpu for job in jobs] == ["", "H100", "L4"]
    assert [job.after for job in jobs] == ["", jobs[0].name, jobs[1].name]


def test_a_model_whose_stages_all_need_a_gpu_is_one_job() -> None:
    export = action("export:a", needs=H100)
    (job,) = plan_jobs([export, action("engine:a:x", "export:a", needs=H100, devices=("gpu",))])
    assert job.needs == H100


def test_the_needs_of_a_job_are_enough_for_each_of_its_actions() -> None:
    (job,) = plan_jobs([
        action("export:a", needs=Needs(memory=4, time_s=60)),
        action("engine:a:x", "export:a", needs=Needs(memory=2, exclusive=True)),
    ])  # fmt: skip
    assert job.needs == Needs(memory=4, time_s=60, exclusive=True)


def test_one_machine_has_one_job() -> None:
    actions = [*model("a", ("trt", H100, ("gpu",))), *model("b")]
    (job,) = plan_jobs(actions, single=True)
    assert job.targets == tuple(one.target for one in actions)


@pytest.mark.parametrize("name", ["Net_1.5+", "x" * 90])
def test_names_of_jobs_suit_every_system(name: str) -> None:
    (job,) = plan_jobs(model(name))
    assert len(job.name) < 40
    assert set(job.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
