"""Builds on a machine reached by ssh: a server of this test, with its own keys."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

from project_folder import wait_until
from remote_project import (
    BUILDSYS,
    RemoteProject,
    Run,
    builds,
    compare_nights,
    files,
    places,
    processes_of,
)


def test_a_night_elsewhere_equals_one_here(over_ssh: RemoteProject, tmp_path: Path) -> None:
    project, here = over_ssh, tmp_path / "here"
    remote = compare_nights(project, here)
    assert "9 passed, 1 failed, 6 not-run" in remote.out
    assert "no such data" in (project.root / "build/c/reference/reference.log").read_text()
    page = (project.root / "build/report/a.html").read_text()
    assert page.count("<tr") == (here / "build/report/a.html").read_text().count("<tr")
    # what failed has regressed only if it passed before
    assert "regressed" not in remote.out


def test_reports_come_without_fetching_and_only_trusted_machines_count(
    over_ssh: RemoteProject, tmp_path: Path
) -> None:
    project, keys = over_ssh, {}
    for name in ("ours", "theirs"):
        made = project.run("cache", "keygen", str(tmp_path / name))
        keys[name] = made.out.partition("ed25519:")[2][:44]
    settings = project.root / "configs/project.yaml"
    trusted = f"mode: read-write, trusted_keys: ['ed25519:{keys['ours']}']"
    text = settings.read_text().replace("mode: read-write", trusted)

    def build(signer: str, *options: str) -> Run:
        key = f"env: {{BUILDSYS_SIGNING_KEY: '{tmp_path / signer}', "
        settings.write_text(text.replace("env: {", key))
        return project.run("build", "--on", "there", "a", "--results", "r.json", *options)

    ran = build("ours", "--junit", "results.xml")
    assert ran.code == 0, ran.out
    assert "8 passed" in ran.out
    names = files(project.root)
    assert {"report/a.html", "a/engine/ort/engine.log"} <= names
    assert "a/engine/ort/engine.onnx" not in names
    assert len(builds(project.root)) == 8
    assert (project.root / "results.xml").read_text().count("<testcase") == 8

    ran = build("theirs", "--fetch")
    assert ran.code == 2, ran.out
    targets = json.loads((project.root / "r.json").read_bytes())["targets"]
    assert {target["status"] for target in targets} == {"failed"}
    assert "is not signed by a trusted key" in ran.out
    assert "a/engine/ort/engine.onnx" not in files(project.root)

    ran = build("ours", "--fetch")
    assert ran.code == 0, ran.out
    assert "2 passed, 6 restored" in ran.out  # figures are measured where they are asked for
    assert "a/engine/ort/engine.onnx" in files(project.root)
    assert not [*(project.store / "runs").iterdir()]


def test_a_gate_compares_with_the_build_of_an_earlier_run(over_ssh: RemoteProject) -> None:
    manifest = over_ssh.root / "configs/models/a.yaml"
    manifest.write_text(manifest.read_text() + "gates: {size: {tolerance: 1%}}\n")
    for factor, status in ((1, "unavailable"), (2, "passed")):
        over_ssh.write_network(factor)
        ran = over_ssh.run("build", "--on", "there", "gate:a:ort", "--results", "r.json")
        assert ran.code == 0, ran.out
        targets = json.loads((over_ssh.root / "r.json").read_bytes())["targets"]
        assert [t["status"] for t in targets if t["stage"] == "gate"] == [status]


def test_an_interruption_ends_the_commands_there(over_ssh: RemoteProject) -> None:
    (over_ssh.root / "hold").touch()  # travels: the stage waits for ever
    process = subprocess.Popen(
        [*BUILDSYS, "build", "--on", "there"], cwd=over_ssh.root, env=over_ssh.environment,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(lambda: places(over_ssh, "held"), "a stage runs there")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "interrupted: the jobs are cancelled" in out
    wait_until(lambda: not processes_of(over_ssh.mark), "no process is left there")
    wait_until(lambda: not places(over_ssh, ""), "its folder is gone")


def test_another_host_key_is_refused(over_ssh: RemoteProject, ssh_host: Path) -> None:
    shutil.copy(ssh_host / "known_other", ssh_host / "known_hosts")
    try:
        ran = over_ssh.run("build", "--on", "there", "a")
    finally:
        shutil.copy(ssh_host / "known_host", ssh_host / "known_hosts")
    assert ran.code == 2
    assert "exit code 255: Host key verification failed." in ran.out
    assert "the job all ended without results" in ran.out
