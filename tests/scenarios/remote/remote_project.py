"""A project that other machines build: networks in ONNX files, one of which fails."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ready_project import VALUES_FILE, ReadyProject

from buildsys.history.database import History

BUILDSYS = [sys.executable, "-m", "buildsys"]
_TIMES = {"seconds", "started", "last_passed", "host", "pid", "time", "timestamp", "figure"}


@dataclass(frozen=True)
class Run:
    """A finished command."""

    code: int
    out: str


class RemoteProject(ReadyProject):
    """A project with the network ``a``, and an executor for a test."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "project", folder / "run")
        for place in (self.root, folder / "run", folder / "store", folder / "tmp"):
            place.mkdir(parents=True)
        self.store = folder / "store"
        self.environment |= {"BUILDSYS_WORKER_IDLE": "0", "TMPDIR": str(folder / "tmp")}
        self.create()
        self.add_model("a")
        (self.root / ".gitignore").write_text("build\n.buildsys\ncalls\n")

    def add_failing_model(self) -> None:
        """Add a network whose golden inputs cannot be loaded."""
        values = VALUES_FILE.replace("    while", "    raise ValueError('no such data')\n    while")
        (self.root / "plugins/data/broken.py").write_text(values)
        manifest = self.add_model("c").read_text().replace("data/values.py", "data/broken.py")
        (self.root / "configs/models/c.yaml").write_text(manifest)

    def set_executor(self, text: str, cache: str = "") -> None:
        """Declare the executor ``there``, and the shared cache."""
        (self.root / "configs/project.yaml").write_text(
            f"cache: {{remote: {self.store}, mode: read-write{cache}}}\n"
            f"executors: {{there: {text}}}\n"
        )

    def commit(self) -> None:
        """Put all files under version control."""
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
            subprocess.run(["git", *words], cwd=self.root, env=self.environment, check=True)

    def copy(self, folder: Path) -> Path:
        """Copy the project, without what it has built."""
        ignored = shutil.ignore_patterns("build", ".buildsys", "calls")
        return shutil.copytree(self.root, folder, symlinks=True, ignore=ignored)

    def run(self, *words: str, root: Path | None = None, **variables: str) -> Run:
        """Run a command of buildsys in this project, or in a copy of it."""
        done = subprocess.run(
            [*BUILDSYS, *words], cwd=root or self.root, env={**self.environment, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
        )  # fmt: skip
        return Run(done.returncode, done.stdout)


def results(root: Path) -> dict[str, Any]:
    """Read the results of the last nightly run, without times and names of machines."""
    return without_times(json.loads((root / "build/nightly/nightly.json").read_bytes()))


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(v) for name, v in value.items() if name not in _TIMES}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def builds(root: Path) -> list[tuple[Any, ...]]:
    """List the builds of the history in the order of targets; one run is one number."""
    with closing(History.readable(root / ".buildsys/history.db")) as history:
        found = history.builds()
    runs = [*dict.fromkeys(build.run for build in sorted(found, key=lambda one: one.started))]
    return sorted(
        (build.target, runs.index(build.run), build.how, build.status, build.why,
         "" if build.stage == "report" else build.key,  # it reads measured times
         build.revision, build.dirty, sorted(build.outputs))
        for build in found
    )  # fmt: skip


def files(root: Path) -> set[str]:
    """List the files of a build folder."""
    build = root / "build"
    return {str(path.relative_to(build)) for path in build.rglob("*") if path.is_file()}


def explanation(project: RemoteProject, root: Path) -> dict[str, Any]:
    """Read what ``buildsys explain`` says about all targets."""
    ran = project.run("explain", "--json", root=root)
    targets: list[dict[str, Any]] = json.loads(ran.out)["targets"]
    return {
        target["target"]: (target["state"], without_times(target["reasons"])) for target in targets
    }


def compare_nights(project: RemoteProject, here: Path) -> Run:
    """Run a night with a failing model on the executor and in a copy; both must leave the same."""
    project.add_failing_model()
    project.commit()
    project.copy(here)
    local = project.run("nightly", root=here, BUILDSYS_REMOTE="")
    remote = project.run("nightly", "--on", "there", "--fetch")
    assert (local.code, remote.code) == (2, 2), remote.out
    assert results(project.root) == results(here)
    assert builds(project.root) == builds(here)
    assert files(project.root) == files(here)
    assert explanation(project, project.root) == explanation(project, here)
    return remote


def places(project: RemoteProject, name: str) -> list[Path]:
    """List the files of a name in the folders of running jobs."""
    return [*Path(project.environment["TMPDIR"]).glob(f"buildsys-job-*/project/{name}")]


def processes_of(mark: str) -> list[int]:
    """List the processes with a text in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and folder.name != str(
                os.getpid()
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found
