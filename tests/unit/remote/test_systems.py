"""Command lines and manifests for Slurm and Kubernetes, and the states that they report."""

import json
from pathlib import Path
from typing import Any

import pytest

from buildsys.errors import StageError
from buildsys.manifest.schema.project import KubernetesExecutorSpec, SlurmExecutorSpec
from buildsys.plan.action import Needs
from buildsys.remote.jobs import JobState, RemoteJob
from buildsys.remote.ray import Ray
from buildsys.remote.systems import Kubernetes, Slurm, job_manifest, job_state

RUN = "20260102-030405-abc123"
GPU = Needs(gpu="RTX 6000", gpu_count=2, memory=3 << 30, time_s=90, exclusive=True)
COMMAND = ("job", "--run", RUN, "--", "build", "it's")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a program that records its arguments and input, and prints a text."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def install(name: str, prints: str = "", code: int = 0) -> Path:
        record = tmp_path / f"{name}.calls"
        (tmp_path / name).write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$@" >> {record}\ncat >> {record}\n'
            f"cat <<'END'\n{prints}\nEND\n"
            f"[ {code} = 0 ] || echo '{name}: error: no way' >&2\nexit {code}\n"
        )
        (tmp_path / name).chmod(0o755)
        return record

    return install


def slurm(**fields: Any) -> Slurm:
    spec = SlurmExecutorSpec(kind="slurm", **fields)
    return Slurm(spec, RUN, {"BUILDSYS_REMOTE": "/a b"}, Path("/logs"))


def test_slurm_gets_needs_dependencies_and_the_command(program: Any) -> None:
    record = program("sbatch", "77;cluster")
    system = slurm(partition="gpu", logs="/shared", setup=("module load cuda",))
    system.submit([RemoteJob("1-a-1", ()), RemoteJob("1-a-2", (), GPU, "1-a-1", COMMAND)])
    words = record.read_text().splitlines()
    assert system.handles == {"1-a-1": "77", "1-a-2": "77"}
    for word in (
        "--requeue", "--open-mode=append", "--kill-on-invalid-dep=yes", "--partition=gpu",
        "--dependency=afterany:77", "--gres=gpu:rtx-6000:2", "--mem=3072M", "--time=2",
        "--exclusive", f"--output=/shared/{RUN}-1-a-2.log", "export BUILDSYS_REMOTE='/a b'",
        "module load cuda", f"exec buildsys job --run {RUN} -- build 'it'\"'\"'s'",
    ):  # fmt: skip
        assert word in words
    assert words.index("--dependency=afterany:77") > words.index("#!/bin/bash")  # of the second


def test_slurm_forgets_jobs_that_have_ended(program: Any) -> None:
    program("squeue", "7|RUNNING|n1\n8|PENDING|(launch failed requeued held)\n9|COMPLETING|n1")
    system = slurm()
    system.handles = {"a": "7", "b": "8", "c": "9", "d": "10"}
    assert system.states(set()) == {
        "a": JobState("running", "n1"),
        "b": JobState("queued", "launch failed requeued held"),
        "c": JobState("running", "n1"),
        "d": JobState("ended", "Slurm job 10; set `logs` to see why"),
    }


def test_a_system_that_refuses_or_is_missing_is_one_sentence(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("sbatch", code=1)
    with pytest.raises(StageError, match=r"^sbatch: sbatch: error: no way; run buildsys where"):
        slurm().submit([RemoteJob("j", ())])
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(StageError, match=r"^cannot start squeue: No such file"):
        slurm().states(set())


def kubernetes(**fields: Any) -> KubernetesExecutorSpec:
    return KubernetesExecutorSpec(kind="kubernetes", image="registry/buildsys:1", **fields)


FULL = kubernetes(
    labels={"team": "vision"},
    node_selector={"nvidia.com/gpu.product": "NVIDIA-L4"},
    tolerations=({"key": "gpu", "operator": "Exists"},),
    resources={"cpu": 4},
    service_account="builder",
    image_pull_secrets=("registry",),
    secrets=("s3",),
)


@pytest.mark.parametrize("spec", [kubernetes(), FULL])
@pytest.mark.parametrize(
    "job", [RemoteJob("1-a-1", ()), RemoteJob("1-a-2", (), GPU, "1-a-1", COMMAND)]
)
def test_manifests_follow_the_published_schema(
    spec: KubernetesExecutorSpec, job: RemoteJob
) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    manifest = job_manifest(job, spec, RUN, {"BUILDSYS_REMOTE": "s3://bucket"})
    validator.validate(manifest, "1.31", strict=True)
    manifest["spec"]["suspended"] = True
    with pytest.raises(validator.ValidationError):
        validator.validate(manifest, "1.31", strict=True)


def test_a_job_of_kubernetes_has_needs_and_waits_for_the_one_before() -> None:
    job = RemoteJob("1-a-2", (), GPU, "1-a-1", COMMAND)
    manifest = job_manifest(job, FULL, RUN, {"BUILDSYS_REMOTE": "s3://bucket"})
    spec, pod = manifest["spec"], manifest["spec"]["template"]["spec"]
    assert (spec["suspend"], spec["backoffLimit"]) == (True, 3)
    assert spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [1, 2, 3]
    assert pod["restartPolicy"] == "Never"
    assert pod["activeDeadlineSeconds"] == 90
    container = pod["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert container["resources"]["requests"]["memory"] == str(3 << 30)
    assert container["args"] == list(COMMAND)
    assert container["env"] == [{"name": "BUILDSYS_REMOTE", "value": "s3://bucket"}]
    assert not job_manifest(RemoteJob("1-a-1", ()), FULL, RUN, {})["spec"]["suspend"]


def test_kubectl_resumes_what_follows_an_ended_job(program: Any) -> None:
    job = RemoteJob("1-a-2", (), GPU, "1-a-1")
    item = job_manifest(job, kubernetes(), RUN, {})
    record = program("kubectl", json.dumps({"items": [item]}))
    system = Kubernetes(kubernetes(context="c", namespace="n"), RUN, {}, Path("/logs"))
    system.submit([RemoteJob("1-a-1", ()), job])
    assert system.states(set())["1-a-2"] == JobState("queued", "suspended")
    assert "patch" not in record.read_text()
    system.states({"1-a-1"})
    assert f"patch\njob\nbs-{RUN}-1-a-2\n" in record.read_text()
    assert "--context=c\n--namespace=n\n" in record.read_text()


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (None, JobState("ended", "its Job was deleted")),
        ({}, JobState("queued")),
        ({"active": 1}, JobState("running")),
        (
            {"conditions": [{"type": "Failed", "status": "True", "message": "deadline"}]},
            JobState("ended", "deadline"),
        ),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, JobState("ended")),
        ({"conditions": [{"type": "Failed", "status": "False"}], "active": 1}, JobState("running")),
    ],
)
def test_the_states_of_kubernetes(status: dict[str, Any] | None, state: JobState) -> None:
    assert job_state(None if status is None else {"spec": {}, "status": status}) == state


def test_a_ray_that_does_not_answer_is_one_sentence() -> None:
    from buildsys.manifest.schema.project import RayExecutorSpec

    system = Ray(RayExecutorSpec(kind="ray", address="127.0.0.1:9"), RUN, {}, Path("/logs"))
    with pytest.raises(StageError, match=r"^Ray at http://127.0.0.1:9 does not answer: .*8265"):
        system.states(set())
