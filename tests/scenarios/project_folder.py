"""A project in a temporary folder, built by real doit processes."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from documents import check_printed
from doit_server import ForkedDoit, start_doit

from buildsys.cli.commands import COMMANDS
from buildsys.cli.target_names import STAGE_DOCS

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 300  # of whatever takes moments on an idle machine
MODEL_FILE = """\
import torch


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


def raising():
    raise RuntimeError("the weights are on the other disk")


def slow():
    import time

    print("sleeping", flush=True)
    time.sleep(600)
"""


# words that doit has as well: commands, and names of stages
_OF_DOIT = {"run", "list", "clean", "help", *STAGE_DOCS}


def program_of(arguments: Sequence[str]) -> str:
    """Return the program that has a command."""
    return "buildsys" if {*arguments[:1]} & (COMMANDS.keys() - _OF_DOIT) else "doit"


@dataclass(frozen=True)
class Ran:
    """A finished doit process."""

    code: int
    out: str
    err: str

    @property
    def ran(self) -> set[str]:
        """Targets that were rebuilt or restored."""
        return set(re.findall(r"^run +(\S+)", self.out, re.MULTILINE))

    @property
    def restored(self) -> set[str]:
        """Targets that were restored from the store."""
        return set(re.findall(r"^restored +(\S+)", self.out, re.MULTILINE))

    @property
    def passed(self) -> set[str]:
        """Targets that passed."""
        return set(re.findall(r"^done +(\S+)", self.out, re.MULTILINE))


class ProjectFolder:
    """A project on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        dropped = ("COLUMNS", "LINES")  # the terminal's, of those who watch the tests
        kept = {key: value for key, value in os.environ.items() if key not in dropped}
        self.environment = {
            key: value for key, value in kept.items() if not key.startswith("BUILDSYS_")
        }
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        self.environment |= {"PYTHONPATH": path, "BUILDSYS_WORKER_IDLE": "0"}
        self.environment["BUILDSYS_TRIALS"] = "0"  # only tests of trials pay for them
        self.environment["BUILDSYS_MACHINE_LOCK"] = os.environ[
            "BUILDSYS_MACHINE_LOCK"
        ]  # of this process of the tests
        # of all projects: a worker server is not reused with other variables
        for role in ("AUTHOR", "COMMITTER"):
            self.environment |= {f"GIT_{role}_NAME": "t", f"GIT_{role}_EMAIL": "t@example.org"}
        self.environment["READ_COPY"] = "1"  # by a network

    def create(self) -> None:
        for name in ("dodo.py", "pyproject.toml"):
            shutil.copy(REPOSITORY / name, self.root)
        for folder in ("configs/models", "plugins/models"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "plugins/models/small.py").write_text(MODEL_FILE)

    def add_model(self, name: str, make: str = "Linear") -> Path:
        """Write a manifest of a fast model."""
        path = self.root / f"configs/models/{name}.yaml"
        path.write_text(
            f"model: {name}\n"
            f"source: {{python: plugins/models/small.py:{make}}}\n"
            "inputs: {x: {shape: [batch, 4]}}\n"
            "outputs: {y: {shape: [batch, 3]}}\n"
            "dims: {batch: {min: 1, opt: 2, max: 4}}\n"
            "export: {opset: 17}\n"
            "engines: [{backend: onnxruntime, name: ort}]\n"
            "bench: {duration: 5ms, warmup: 1ms, baselines: [], noise: null, cold_start: 0}\n"
        )
        return path

    def edit(self, path: str, old: str, new: str) -> None:
        file = self.root / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    def start_new(self, *arguments: str) -> subprocess.Popen[str]:
        """Start doit in a new interpreter, which has to import all that it uses."""
        return subprocess.Popen(
            [sys.executable, "-m", program_of(arguments), *arguments],
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that leftover processes can be found
        )

    def start(self, *arguments: str, cwd: Path | None = None, program: str = "") -> ForkedDoit:
        """Start the program of a command, forked from a process that has imported its modules."""
        program = program or program_of(arguments)
        return start_doit(arguments, cwd or self.root, self.environment, program)

    def doit(self, *arguments: str, cwd: Path | None = None, program: str = "") -> Ran:
        """Run doit in a process forked from one that has imported its modules."""
        ran = finish(self.start(*arguments, cwd=cwd, program=program))
        if "--json" in arguments:
            check_printed(ran.out)
        return ran

    def buildsys(self, *arguments: str, cwd: Path | None = None) -> Ran:
        """Run ``buildsys`` in the same way."""
        return self.doit(*arguments, cwd=cwd, program="buildsys")

    def files(self) -> set[str]:
        """Return the files of the build folder, without the HTML pages."""
        build = self.root / "build"
        found = (path for path in build.rglob("*") if path.is_file() and path.suffix != ".html")
        return {str(path.relative_to(build)) for path in found}


def finish(process: ForkedDoit | subprocess.Popen[str], printed: str = "") -> Ran:
    """Wait for the end of doit; ``printed`` is its output so far."""
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode is not None
    assert "Traceback" not in out + err, out + err
    return Ran(process.returncode, printed + out, err)


def processes_of_session(leader: int) -> list[int]:
    """Return the live processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[2]) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
