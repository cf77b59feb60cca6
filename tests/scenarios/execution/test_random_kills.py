"""Repeated ``kill -9`` of random processes, with changes in between.

There are three kills by default, 240 with ``BUILDSYS_LONG_TESTS=1``, or ``BUILDSYS_KILLS``. A run
prints its seed; ``BUILDSYS_KILL_SEED`` repeats its choices, though not the exact moments.
"""

import contextlib
import hashlib
import itertools
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from project_folder import TIMEOUT_S, Ran, wait_until
from ready_project import ReadyProject, content_of, contents, processes_marked, targets, workers_in

from buildsys.cli.failure_report import KEPT

LONG = os.environ.get("BUILDSYS_LONG_TESTS", "0") not in ("", "0")
KILLS = int(os.environ.get("BUILDSYS_KILLS", "240" if LONG else "3"))
SEED = int(os.environ.get("BUILDSYS_KILL_SEED") or random.SystemRandom().randrange(10**6))
NETWORKS = {"a": "networks/net.onnx", "b": "networks/other.onnx"}
TOOLS = ("onnxsim", "none")
STATES = list(
    itertools.product((0, 1), TOOLS)
)  # of a model: the seed of its network, and its simplifier
NEEDS = {
    "export": (),
    "reference": (),
    "simplify": ("export",),
    "validate": ("export", "reference", "simplify"),
    "engine": ("simplify",),
    "verify": ("engine", "reference"),
    "bench": ("engine", "reference", "verify"),
    "report": ("export", "reference", "simplify", "validate", "engine", "verify", "bench"),
}
State = tuple[int, str]
Contents = dict[str, str]


@dataclass
class Ordeal:
    """A project with two models and its expected contents."""

    project: ReadyProject
    clean: dict[State, Contents]
    choice: random.Random
    state: dict[str, State] = field(default_factory=lambda: dict.fromkeys(NETWORKS, STATES[0]))
    usual_s: float = 1.5  # that a run takes
    spoilt: set[str] = field(default_factory=set)  # digests of outputs that were edited by hand
    killed: Counter[str] = field(default_factory=Counter)

    @property
    def build(self) -> Path:
        return self.project.root / "build"

    def change(self) -> str:
        """Make a change requiring a rebuild; return its description."""
        model = self.choice.choice("ab")
        seed, tool = self.state[model]
        what = self.choice.choice(
            ["network", "network", "tool", "delete", "delete all", "edit", "cut"]
        )
        if what == "network":
            seed = 1 - seed
            self.project.write_network(seed, NETWORKS[model])
        elif what == "tool":
            old, tool = tool, TOOLS[1 - TOOLS.index(tool)]
            self.project.edit(f"configs/models/{model}.yaml", f"tool: {old}", f"tool: {tool}")
        elif what == "delete all":
            shutil.rmtree(self.build, ignore_errors=True)
        else:
            self._spoil(what)
        self.state[model] = (seed, tool)
        if (
            self.choice.random() < 0.5
        ):  # else most is restored, and few stages are there to be killed
            shutil.rmtree(self.project.root / ".buildsys/store", ignore_errors=True)
            what += ", no store"
        return f"{model}: {what}"

    def run_and_kill(self) -> tuple[Ran, str]:
        """Run doit and kill one of its processes; return result and victim."""
        arguments = self.choice.choice([(), ("-n", "2"), ("-n", "2", "--continue")])
        process = self.project.start(*arguments)
        time.sleep(self.choice.uniform(0, self.usual_s))
        others = sorted(processes_marked(self.project.mark))
        what = "doit" if not others or self.choice.random() < 0.4 else "worker"
        if process.has_ended():
            what = ""
        elif what == "doit":
            process.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.choice.choice(others), signal.SIGKILL)
        out, err = process.communicate(timeout=TIMEOUT_S)
        if what == "doit" and process.returncode >= 0:  # it had just ended
            what = ""
        self.killed[what] += bool(what)
        return Ran(process.returncode, out, err), what

    def check_after(self, ran: Ran, what: str) -> set[str]:
        """Require complete outputs; return the fresh targets."""
        story = f"{what} killed, {ran}"
        assert "Traceback" not in ran.out + ran.err, story
        if ran.code == 2:
            assert re.search(
                r"^failed .* (killed by signal 9|ended unexpectedly)", ran.out, re.MULTILINE
            ), story
        else:
            assert ran.code == (-signal.SIGKILL if what == "doit" else 0), story
        wait_until(lambda: not workers_in(self.build), f"a worker goes on: {story}")
        self._check_whole()
        fresh = self._fresh()
        assert ran.passed <= fresh, f"finished and lost: {ran.passed - fresh}; {story}"
        for target in fresh:
            if all(needed in fresh for needed in _needed(target)):
                self._check_target(target, story)
        return fresh

    def finish(self, fresh: set[str]) -> None:
        """Require the next run to continue the killed one to the end."""
        began = time.monotonic()
        done = self.project.doit(*self.choice.choice([(), ("-n", "2")]))
        self.usual_s = 0.8 * self.usual_s + 0.2 * (time.monotonic() - began)
        assert done.code == 0, done
        kept = {target for target in fresh if all(needed in fresh for needed in _needed(target))}
        assert not done.ran & kept, f"made again: {done.ran & kept}; {done}"
        for model in self.state:
            assert contents(self.build / model) == self.expected(model)
        left = (
            [path for path in (self.build / ".tmp").rglob("*") if path.is_file()]
            if done.ran
            else []
        )
        assert not left, f"leftover processes: {left}"

    def expected(self, model: str) -> Contents:
        """Return the contents of a clean build of a model's current inputs."""
        return self.clean[self.state[model]]

    def _spoil(self, how: str) -> None:
        outputs = [
            path
            for path in sorted(self.build.rglob("*"))
            if path.suffix in (".onnx", ".npz", ".json", ".md")
        ]
        outputs = [path for path in outputs if ".tmp" not in path.parts]
        if not outputs:
            return
        path = self.choice.choice(outputs)
        if how == "delete":
            path.unlink()
            return
        content = path.read_bytes()
        content = (
            content[: len(content) // 2]
            if how == "cut"
            else content[:-1] + bytes([content[-1] ^ 1])
        )
        path.write_bytes(content)
        self.spoilt.add(hashlib.sha256(content).hexdigest())

    def _check_whole(self) -> None:
        """Compare all files not edited by hand with a clean build."""
        for path in self.build.rglob("*"):
            name = path.relative_to(self.build).as_posix()
            if (
                not path.is_file()
                or name.startswith(".tmp/")
                or path.suffix not in (".onnx", ".npz", ".json")
            ):
                continue
            if hashlib.sha256(path.read_bytes()).hexdigest() not in self.spoilt:
                inside = name.partition("/")[2]
                known = {clean.get(inside.replace(KEPT, "report")) for clean in self.clean.values()}
                if inside == "report/report.json":
                    known.add("report failed")  # of a run that did not get through
                assert content_of(path) in known, f"{name} is not whole"

    def _check_target(self, target: str, story: str) -> None:
        stage, model = target.split(":")[:2]
        now, right = contents(self.build / model), self.expected(model)
        names = [name for name in now.keys() | right.keys() if name.startswith(f"{stage}/")]
        assert [now.get(name) for name in names] == [right.get(name) for name in names], (
            f"{target} counts as fresh and is wrong; {story}"
        )

    def _fresh(self) -> set[str]:
        listed = self.project.doit("list", "--all", "--status")
        assert listed.code == 0, listed
        everything = targets("a") | targets("b")
        fresh = set(re.findall(r"^U (\S+)", listed.out, re.MULTILINE)) & everything
        stale = set(re.findall(r"^R (\S+)", listed.out, re.MULTILINE)) & everything
        assert fresh | stale == everything, listed
        return fresh


@pytest.fixture
def ordeal(tmp_path: Path, runtime_folder: Path, ready_place: ReadyProject) -> Iterator[Ordeal]:
    with ready_place.cleared():
        clean = clean_builds(ready_place)
    project = ReadyProject(tmp_path / "project", runtime_folder)
    project.root.mkdir()
    project.create()
    for model, network in NETWORKS.items():
        project.add_model(model, network)
        project.write_network(0, network)
    yield Ordeal(project, clean, random.Random(SEED))
    project.end()


def clean_builds(project: ReadyProject) -> dict[State, Contents]:
    """Return a model's contents in each state, without its name in paths."""
    project.create()
    for seed, tool in STATES:
        network = f"networks/{seed}.onnx"
        project.write_network(seed, network)
        manifest = project.add_model(f"{seed}-{tool}", network)
        manifest.write_text(manifest.read_text().replace("tool: onnxsim", f"tool: {tool}"))
    built = project.doit("-n", "2")
    assert built.code == 0, built
    build = project.root / "build"
    return {(seed, tool): contents(build / f"{seed}-{tool}") for seed, tool in STATES}


@pytest.mark.timeout(3600)
def test_a_kill_never_leaves_partial_outputs(ordeal: Ordeal) -> None:
    print(f"BUILDSYS_KILL_SEED={SEED}")
    began = time.monotonic()
    while ordeal.killed.total() < KILLS:
        changed = ordeal.change()
        ran, what = ordeal.run_and_kill()
        print(
            f"{time.monotonic() - began:6.1f} s  {changed}; killed: {what or 'nothing'}; {ran.code}"
        )
        fresh = ordeal.check_after(ran, what)
        if ordeal.choice.random() < 0.6:
            ordeal.finish(fresh)
    ordeal.finish(set())
    assert ordeal.project.doit() == Ran(0, "everything is up to date (16 targets)\n", "")
    print(f"{dict(ordeal.killed)} in {time.monotonic() - began:.0f} s")


def _needed(target: str) -> set[str]:
    """Return all targets downstream of a target."""
    stage, model = target.split(":")[:2]
    direct = {
        name for name in targets(model) for needed in NEEDS[stage] if name.split(":")[0] == needed
    }
    return direct.union(*map(_needed, direct))
