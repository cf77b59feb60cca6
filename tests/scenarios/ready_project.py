"""A project of ONNX files: its stages are real but need no torch, and a build takes a second.

Golden inputs come from a function, with which a test can pause the stage ``reference``.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from doit_server import ForkedDoit
from onnx import TensorProto, helper, numpy_helper
from project_folder import ProjectFolder, Ran, wait_until

UP_TO_DATE = Ran(0, "everything is up to date (8 targets)\n", "")
FEATURES = 256  # 256 KiB of weights: writing them is not over in one moment
NETWORK, VALUES = "networks/net.onnx", "plugins/data/values.py"
_CLEAN: dict[str, dict[str, str]] = {}
VALUES_FILE = """\
import os
import time
from pathlib import Path

import numpy

SCALE = 1.0


def load(shape, dtype, case, seed):
    with open("calls", "a") as calls:
        print(case, file=calls)
    if os.access("hold", os.F_OK):  # unlike Path.exists(), not recorded as a read
        Path("held").touch()
    while os.access("hold", os.F_OK):
        time.sleep(0.01)
    return (SCALE * numpy.linspace(-1, 1, numpy.prod(shape))).reshape(shape).astype(dtype)
"""


def targets(model: str) -> set[str]:
    """Return all targets of a model."""
    stages = {"export", "reference", "simplify", "validate", "report"}
    return {f"{stage}:{model}" for stage in stages} | {
        f"{stage}:{model}:ort" for stage in ("engine", "verify", "bench")
    }


class ReadyProject(ProjectFolder):
    """A project of ONNX files; its worker servers outlive a run until ``end``.

    ``mark`` is in the environment of every process that belongs to it.
    """

    def __init__(self, root: Path, runtime: Path) -> None:
        super().__init__(root)
        self._started: list[ForkedDoit | subprocess.Popen[str]] = []
        self.mark = f"BELONGS_TO={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        self.environment |= {
            name: value,
            "XDG_RUNTIME_DIR": str(runtime),
            "BUILDSYS_WORKER_IDLE": "300",
        }
        self.environment["BUILDSYS_MACHINE_LOCK"] = str(runtime)  # do not wait for others

    def end(self) -> None:
        """Kill every process that belongs to this project."""
        self._kill_runs()
        while left := processes_marked(self.mark):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def finish_runs(self) -> None:
        """Kill leftover runs and their jobs, but not the servers."""
        self._kill_runs()
        wait_until(lambda: not workers_in(self.root / "build"), "the workers end with their runs")

    def _kill_runs(self) -> None:
        self.let_go()
        for process in self._started:
            process.kill()
            process.communicate()
        self._started.clear()

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """Use the empty folder for a while; afterwards end its runs, but not its servers."""
        self.clear()
        environment = dict(self.environment)
        yield
        self.environment = environment
        self.finish_runs()

    def copy_from(self, built: Path) -> None:
        """Copy a built project into the empty folder."""
        dropped = shutil.ignore_patterns("workers")
        shutil.copytree(built, self.root, symlinks=True, dirs_exist_ok=True, ignore=dropped)

    def clear(self) -> None:
        """Delete everything except the registry of running servers."""
        for path in (
            *self.root.glob("*"),
            *self.root.glob(".buildsys/*"),
            *self.root.glob(".kept"),
        ):
            if path.name not in (".buildsys", "workers"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def start_new(self, *arguments: str) -> subprocess.Popen[str]:
        process = super().start_new(*arguments)
        self._started.append(process)
        return process

    def start(self, *arguments: str, cwd: Path | None = None, program: str = "") -> ForkedDoit:
        process = super().start(*arguments, cwd=cwd, program=program)
        self._started.append(process)
        return process

    def create(self) -> None:
        super().create()
        (self.root / VALUES).parent.mkdir()
        (self.root / VALUES).write_text(VALUES_FILE)
        self.write_network(0)

    def write_network(self, seed: int, path: str = NETWORK) -> Path:
        """Write a network with other weights; its file has the same size for every seed."""
        file = self.root / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(network(seed))
        return file

    def add_model(self, name: str, make: str = NETWORK) -> Path:
        path = self.root / f"configs/models/{name}.yaml"
        path.write_text(
            f"model: {name}\n"
            f"source: {{onnx: {make}}}\n"
            f"inputs: {{x: {{shape: [batch, {FEATURES}], data: {{python: {VALUES}:load}}}}}}\n"
            f"outputs: {{y: {{shape: [batch, {FEATURES}]}}}}\n"
            "dims: {batch: {min: 1, opt: 2, max: 4}}\n"
            "simplify: {tool: onnxsim}\n"
            "engines: [{backend: onnxruntime, name: ort}]\n"
            "bench: {duration: 5ms, warmup: 1ms, baselines: [], noise: null, cold_start: 0}\n"
        )
        return path

    def clean_contents(self) -> dict[str, str]:
        """Return the contents of a clean build of the same inputs.

        They depend on the inputs alone, so each is made once.
        """
        folders = ("networks", "plugins/data", "configs/models")
        inputs = {
            path.name: path.read_bytes()
            for name in folders
            for path in sorted((self.root / name).glob("*.*"))
        }
        if str(inputs) not in _CLEAN:
            _CLEAN[str(inputs)] = self._clean_build()
        return _CLEAN[str(inputs)]

    def _clean_build(self) -> dict[str, str]:
        state, kept = self.root / ".buildsys", self.root / ".kept"
        kept.mkdir()
        state.mkdir(exist_ok=True)
        for entry in state.iterdir():
            if entry.name != "workers":  # the servers that run already may be used
                entry.rename(kept / entry.name)
        self.environment["BUILDSYS_BUILD"] = "clean"
        clean = self.doit()
        del self.environment["BUILDSYS_BUILD"]
        found = contents(self.root / "clean")
        assert clean.code == 0
        assert clean.ran == clean.passed
        shutil.rmtree(self.root / "clean")
        for entry in kept.iterdir():
            if entry.is_dir():
                shutil.rmtree(state / entry.name, ignore_errors=True)
            entry.rename(state / entry.name)
        kept.rmdir()
        return found

    def hold(self) -> None:
        """Pause the stage ``reference``; it then creates the file ``held``."""
        (self.root / "held").unlink(missing_ok=True)
        (self.root / "hold").touch()

    @property
    def is_held(self) -> bool:
        return (self.root / "held").exists()

    def let_go(self) -> None:
        (self.root / "hold").unlink(missing_ok=True)


class TorchProject(ReadyProject):
    """A project of PyTorch models whose worker servers outlive a run until ``end``."""

    create = ProjectFolder.create
    add_model = ProjectFolder.add_model


def network(seed: int) -> bytes:
    """Return a graph with a matrix product and two additions that a simplifier merges."""
    weights = (
        np.random.default_rng(seed)
        .normal(0, FEATURES**-0.5, (FEATURES, FEATURES))
        .astype(np.float32)
    )
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", FEATURES])
        for name in ("x", "y")
    ]
    nodes = [
        helper.make_node("Identity", ["w"], ["v"]),
        helper.make_node("MatMul", ["x", "v"], ["z"]),
        helper.make_node("Add", ["z", "b"], ["y"]),
    ]
    stored = [
        numpy_helper.from_array(weights, "w"),
        numpy_helper.from_array(np.ones(FEATURES, np.float32), "b"),
    ]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


_WITH_TIMES = (".html", ".log", ".md")


def contents(build: Path) -> dict[str, str]:
    """Return file -> reproducible content of a build.

    The content is the digest of an artifact, and stage and status of a result, which has times.
    Logs, Markdown and HTML pages have times as well and are left out.
    """
    found = {}
    for path in sorted(build.rglob("*")):
        name = path.relative_to(build).as_posix()
        if path.is_file() and not name.startswith(".tmp/") and path.suffix not in _WITH_TIMES:
            found[name] = content_of(path)
    return found


def content_of(path: Path) -> str:
    """Return the reproducible content of a file."""
    content = path.read_bytes()
    try:
        result = json.loads(content) if path.suffix == ".json" else {}
        return f"{result['stage']} {result['status']}"
    except (ValueError, KeyError):  # an artifact, or an incomplete result
        return hashlib.sha256(content).hexdigest()


def processes_marked(mark: str) -> dict[int, str]:
    """Return live processes with ``mark`` in their environment, with command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
        except OSError:
            continue  # it has just ended
    return found


def workers_in(build: Path) -> dict[Path, int]:
    """Return the busy workers of a build folder by log file."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            log = (folder / "fd/1").readlink()
        except OSError:
            continue  # it has just ended
        if log.is_relative_to(build):
            found[log] = int(folder.name)
    return found
