"""Targets built by `run-action` in another folder, with nothing but a store in common."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from blake3 import blake3
from command_answers import commit, git
from doit_server import ForkedDoit
from project_folder import Ran, finish, wait_until
from ready_project import VALUES, ReadyProject, content_of, workers_in

from buildsys.execution.model_jobs import Order
from buildsys.store.object_store import object_name
from buildsys.store.signatures import generate_key

TARGETS = ("export:a", "simplify:a", "reference:a", "validate:a", "engine:a:ort", "verify:a:ort")
VALUES_FILE = """\
import os
import time

import numpy


def load(shape, dtype, case, seed):
    while os.access({hold!r}, os.F_OK):  # not recorded as a read
        os.makedirs({held!r}, exist_ok=True)
        time.sleep(0.01)
    return numpy.linspace(-1, 1, numpy.prod(shape)).reshape(shape).astype(dtype)
"""


class Machines(NamedTuple):
    """A project on one machine, and another one that knows only the store."""

    project: ReadyProject
    store: Path
    elsewhere: Path  # current and temporary folder of the other machine
    hold: Path  # while it exists, the stage ``reference`` waits
    held: Path  # made by the waiting stage

    def request(self, target: str, **variables: str) -> str:
        asked = self._with(variables).doit("request-action", target, program="buildsys")
        assert (asked.code, asked.err) == (0, "")
        return asked.out.strip()

    def start(self, *arguments: str, **variables: str) -> ForkedDoit:
        project = self._with({"TMPDIR": str(self.elsewhere), **variables})
        words = ("run-action", "--store", str(self.store), *arguments)
        return project.start(*words, cwd=self.elsewhere, program="buildsys")

    def run(self, *arguments: str, **variables: str) -> Ran:
        return finish(self.start(*arguments, **variables))

    def answer(self, *arguments: str, **variables: str) -> tuple[int, dict[str, Any]]:
        """Return exit code and JSON document."""
        ran = self.run(*arguments, "--json", **variables)
        document: dict[str, Any] = json.loads(ran.out)
        assert document["exit_code"] == ran.code
        return ran.code, document

    def object_of(self, digest: str) -> Path:
        path = self.store / object_name(digest)
        path.chmod(0o644)
        return path

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Let the stage ``reference`` wait."""
        self.hold.touch()
        try:
            yield
        finally:
            self.hold.unlink()

    def jobs(self) -> list[int]:
        """Return the processes that run ``reference`` on the other machine."""
        found = workers_in(self.elsewhere).items()
        return [process for log, process in found if log.name == "reference.log"]

    def leftovers(self) -> list[Path]:
        return list(self.elsewhere.glob("buildsys-*/run-action/.tmp/*"))

    def _with(self, variables: dict[str, str]) -> ReadyProject:
        other = ReadyProject(self.project.root, self.project.root)
        other.environment = {**self.project.environment, **variables}
        return other


@pytest.fixture
def machines(ready: ReadyProject, elsewhere: Path, tmp_path: Path) -> Iterator[Machines]:
    (tmp_path / "store").mkdir()
    found = Machines(ready, tmp_path / "store", elsewhere, tmp_path / "hold", tmp_path / "held")
    text = VALUES_FILE.format(hold=str(found.hold), held=str(found.held))
    (ready.root / VALUES).write_text(text)
    settings = f"cache: {{remote: {found.store}, mode: read-write}}\n"
    (ready.root / "configs/project.yaml").write_text(settings)
    yield found
    found.hold.unlink(missing_ok=True)


def test_every_stage_can_be_built_elsewhere(machines: Machines) -> None:
    project = machines.project
    for target in TARGETS:
        digest = machines.request(target)
        code, built = machines.answer(digest)
        assert (code, built["status"], built["target"]) == (0, "passed", target)
        here = project.doit(target)
        assert (here.code, here.restored) == (0, {target}), here.out + here.err
    assert machines.answer(digest)[1]["status"] == "restored"
    assert machines.leftovers() == []
    project.environment["BUILDSYS_REMOTE"] = ""  # built, not restored
    clean = project.clean_contents()
    del project.environment["BUILDSYS_REMOTE"]
    for name in project.files():
        if name.endswith((".onnx", ".npz", ".json")):
            assert content_of(project.root / "build" / name) == clean[name], name
    measured = project.doit("request-action", "bench:a:ort", program="buildsys")
    assert measured.code == 3
    assert "bench:a:ort measures the machine" in measured.err
    early = project.doit("request-action", "report:a", program="buildsys")
    assert early.code == 3
    assert (
        "reads outputs of bench:a:ort, which must be up to date; run `buildsys bench:a:ort`"
        in early.err
    )


def test_a_killed_run_is_repeated(machines: Machines) -> None:
    machines.project.doit("export:a")
    digest = machines.request("reference:a")
    machines.hold.touch()
    before = sorted(machines.store.rglob("*"))
    process = machines.start(digest)
    wait_until(machines.held.exists, "the stage runs")
    process.kill()
    process.communicate()
    (left,) = machines.leftovers()
    wait_until(lambda: not workers_in(left), "the worker ends with its run")
    assert sorted(path for path in machines.store.rglob("*") if path.name != "tmp") == before
    machines.hold.unlink()
    assert machines.answer(digest)[1]["status"] == "passed"
    assert machines.leftovers() == []


def test_a_killed_worker_may_be_tried_again(machines: Machines) -> None:
    digest = machines.request("reference:a")
    with ThreadPoolExecutor(1) as thread, machines.holding():
        answer = thread.submit(machines.answer, digest)
        wait_until(lambda: machines.held.exists() and machines.jobs(), "the stage runs")
        os.kill(machines.jobs()[0], signal.SIGKILL)
        code, document = answer.result()
    assert code == 75
    assert "killed by signal 9" in document["reason"]
    assert machines.run(digest).code == 0


def test_two_runs_of_one_request(machines: Machines) -> None:
    digest = machines.request("reference:a")
    with ThreadPoolExecutor(2) as threads:
        with machines.holding():
            answers = [threads.submit(machines.answer, digest) for _ in range(2)]
            wait_until(lambda: len(machines.leftovers()) == 2, "both have fetched the request")
            wait_until(lambda: len(machines.jobs()) == 1, "one of them runs the stage")
        found = [answer.result() for answer in answers]
    ends = sorted((code, document["status"]) for code, document in found)
    assert ends == [(0, "passed"), (0, "restored")]
    assert machines.project.doit("reference:a").restored == {"reference:a"}


def test_what_was_altered_is_refused(machines: Machines) -> None:
    machines.project.doit("export:a")
    digest = machines.request("simplify:a")
    model = machines.project.root / "build/a/export/model.onnx"
    stored = next(
        path
        for path in machines.store.glob("objects/*/*")
        if path.read_bytes() == model.read_bytes()
    )
    content = stored.read_bytes()
    stored.chmod(0o644)
    stored.write_bytes(content[:-1] + b"?")
    altered = machines.run(digest)
    assert altered.code == 3
    assert "has no valid build/a/export/model.onnx of the request" in altered.err
    stored.unlink()
    assert machines.run(digest).code == 3
    machines.request("simplify:a")
    assert stored.read_bytes() == content
    assert machines.run(digest).code == 0
    request = machines.object_of(digest)
    request.write_bytes(request.read_bytes().replace(b'"simplify:a"', b'"simplify:b"'))
    edited = machines.run(digest)
    assert edited.code == 3
    assert f"the request {digest} was altered" in edited.err
    assert machines.run("a" * 64).code == 3
    assert machines.run("simplify:a").code == 3
    assert machines.run().code == 3


def test_another_environment_is_refused(machines: Machines) -> None:
    digest = machines.request("reference:a")
    machines.hold.touch()  # nothing may run
    other = machines.run(digest, ORT_LOGGING="1")
    assert other.code == 3
    assert "would build something else than requested" in other.err
    assert "env ORT_LOGGING: unset → 1" in other.err
    misspelled = machines.run(digest, BUILDSYS_SINGING_KEY="x")
    assert misspelled.code == 3
    assert "nearest: BUILDSYS_SIGNING_KEY" in misspelled.err


def test_a_store_that_cannot_be_used(machines: Machines) -> None:
    digest = machines.request("reference:a")
    nowhere = machines.run(digest, "--store", str(machines.store / "nowhere"))
    assert nowhere.code == 75
    code, document = machines.answer(digest, "--store", "nonsense://x")
    assert code == 75
    assert "could not look up" in document["reason"]
    machines.hold.touch()  # found out before the stage runs
    (machines.store / "tmp").touch()  # root may write into read-only folders
    refused = machines.run(digest)
    assert refused.code == 75
    assert "could not write a file" in refused.err


def test_a_failed_check_is_an_exit_code(machines: Machines) -> None:
    project = machines.project
    project.edit("configs/models/a.yaml", "name: ort", "name: ort, precision: fp16")
    with (project.root / "configs/models/a.yaml").open("a") as manifest:
        manifest.write("verify: {fp16: {rtol: 1e-12}}\n")
    for target in ("reference:a", "simplify:a"):
        project.doit(target)
    digest = machines.request("convert:a:fp16")
    code, document = machines.answer(digest)
    assert (code, document["status"]) == (1, "failed")
    assert "allowed 1e-12" in document["reason"], document
    assert any("convert:a:fp16" in line for line in document["log"])
    assert machines.run(digest).code == 1  # nothing was shared


def signature_of(record: Path) -> Any:
    return json.loads(record.read_bytes().partition(b"\n")[2])["signature"]


def test_only_signed_requests_run_with_trusted_keys(machines: Machines, tmp_path: Path) -> None:
    git(machines.project.root, "init", "-q")
    commit(machines.project.root, "zero")
    head = git(machines.project.root, "rev-parse", "HEAD").strip()
    ours, theirs = tmp_path / "ours.pem", tmp_path / "theirs.pem"
    public = generate_key(ours)
    generated = generate_key(theirs)
    trusting = ("--trusted-key", public)
    for variables in ({}, {"BUILDSYS_SIGNING_KEY": str(theirs)}):
        refused = machines.run(machines.request("export:a", **variables), *trusting)
        assert refused.code == 3
        assert "is not signed" in refused.err
    digest = machines.request("export:a", BUILDSYS_SIGNING_KEY=str(ours))
    built = machines.answer(digest, *trusting, "--key", str(theirs))
    assert (built[0], built[1]["status"]) == (0, "passed")
    (record,) = machines.store.glob("actions/*/*.json")
    (signature,) = signature_of(record)["signatures"]
    assert signature["keyid"] == generated
    payload = json.loads(base64.b64decode(signature_of(record)["payload"]))
    source, *_ = payload["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": head}
    again = machines.answer(digest, *trusting)  # theirs is not trusted
    assert (again[0], again[1]["status"]) == (0, "passed")
    assert machines.run(digest, "--key", str(tmp_path / "none.pem")).code == 3
    assert machines.run(digest, "--trusted-key", "me").code == 3


def test_the_folder_of_a_run_can_be_kept(machines: Machines, tmp_path: Path) -> None:
    digest = machines.request("export:a")
    kept = tmp_path / "kept"
    assert machines.run(digest, "--keep", str(kept)).code == 0
    assert (kept / "build/a/export/export.log").is_file()
    assert "exists" in machines.run(digest, "--keep", str(kept)).err


def test_a_job_has_the_files_of_one_request_at_a_time(machines: Machines) -> None:
    digest, first, second = machines.request("export:a"), "a" * 32, "b" * 32
    job = machines.start(digest, "--answer", first, "--linger", "60")
    answers, orders = machines.store / "answers", machines.store / "orders"
    wait_until((answers / f"{first}.json").exists, "the first answer")
    (build,) = [folder / "tree/build" for folder in machines.leftovers()]
    (build / "other").write_text("of another target")
    (build / "link").symlink_to(machines.store)
    exported = (build / "a/export/model.onnx").stat()
    assert machines.project.doit("export:a").restored == {"export:a"}
    orders.mkdir()
    order = Order(machines.request("simplify:a"), second, rebuild=False, linger=60)
    (orders / "new").write_bytes(order.encode())
    (orders / "new").replace(orders / f"{first}.json")
    wait_until((answers / f"{second}.json").exists, "the second answer")
    assert {entry.name for entry in build.iterdir()} == {".tmp", "a"}
    assert (build / "a/export/model.onnx").stat() == exported  # the input was there
    assert not (build / "a/export/export.log").exists()
    os.kill(job.pid, signal.SIGTERM)
    ended = finish(job)
    assert "simplify:a was built in" in ended.out
    names = {name for path in answers.iterdir() for name in json.loads(path.read_bytes())["files"]}
    assert {"a/export/model.onnx", "a/simplify/model.onnx"} <= names
    assert machines.leftovers() == []


def test_only_lists_of_questions_are_answered(machines: Machines) -> None:
    questions = ['[["onnx"],[],null,["cpu"],[]]']

    def ask(content: bytes) -> Ran:
        file = machines.store / object_name(digest := blake3(content).hexdigest())
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        words = ("describe-machine", digest, "--store", str(machines.store), "--json")
        return machines.project.doit(*words, program="buildsys")

    answered = ask(json.dumps(questions).encode())
    assert answered.code == 0, answered.err
    (parts,) = json.loads(answered.out)["environments"]
    assert {"tool:onnx", "device:cpu.model"} <= parts.keys()
    for content in (b"", b"{}", b"[1]", b'["[]"]', b'["{}"]', b'["[[1],[],[1],[],[]]"]'):
        refused = ask(content)
        assert (refused.code, refused.out) == (3, ""), content
        assert "is not a list of questions" in refused.err


def test_an_attached_command_ends_with_its_standard_input(machines: Machines) -> None:
    digest = machines.request("export:a")
    command = [sys.executable, "-m", "buildsys", "run-action", digest, "--attached"]
    command += ["--store", str(machines.store)]
    variables = {**machines.project.environment, "TMPDIR": str(machines.elsewhere)}

    def start() -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=variables)

    with start() as done:
        out, error = done.stdout, done.stderr
        assert out is not None and error is not None
        assert (done.wait(60), error.read()) == (0, b"")
        assert b"export:a was built" in out.read()
    with start() as ended:
        assert ended.stdin is not None
        ended.stdin.close()
        assert ended.wait(60) in (143, -signal.SIGTERM)
