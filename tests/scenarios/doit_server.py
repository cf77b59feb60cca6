"""Processes that have loaded doit and our modules, and fork a doit for each call.

Starting Python and importing pydantic takes longer than most commands. A forked doit is a process
with a separate environment, folder, session and streams. Two servers with different hash seeds take
turns, so that a result that depends on the order of a set changes from one call to the next.

A new project would parse our modules and read the installed packages, which takes half of a first
build. The servers know these texts, by the digests and stamps under which a project stores them.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import itertools
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("cli", "execution", "history", "manifest", "plan", "project", "report", "store")
PACKAGES += ("system", "workers")
FURTHER = ("blake3", "rich.console", "tomllib" if sys.version_info >= (3, 11) else "tomli")
FURTHER += ("doit.doit_cmd", "pydantic.types", "yaml")

LIBRARIES = ("torch", "torchvision", "numpy", "onnx", "onnxruntime", "onnxsim", "onnxscript")
LIBRARIES += ("onnx-ir", "onnxslim", "sympy", "ml-dtypes", "tensorrt_rtx")
texts_file = Path(os.devnull)  # JSON, written by the first process of the tests


def start_doit(
    arguments: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    program: str = "doit",
) -> ForkedDoit:
    """Start doit or buildsys as the leader of a session."""
    return next(_servers()).start(program, arguments, cwd, environment)


@cache
def _servers() -> Iterator[DoitServer]:
    return itertools.cycle([DoitServer(seed) for seed in ("1", "2")])


class DoitServer:
    """A server, which ends with this process."""

    def __init__(self, hash_seed: str) -> None:
        self._channel, theirs = socket.socketpair()
        self._sending = threading.Lock()
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
        with theirs:
            # pipes, as Python treats streams on files differently
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), str(texts_file)],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._channel.close()
        self._process.communicate()

    def start(
        self, program: str, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]
    ) -> ForkedDoit:
        ours, theirs = socket.socketpair()
        readers, writers = zip(*(os.pipe() for _ in range(2)), strict=True)
        with theirs, self._sending:
            socket.send_fds(self._channel, [b"!"], [*writers, theirs.fileno()])
            _send(self._channel, [program, list(arguments), str(cwd), dict(environment)])
        for writer in writers:
            os.close(writer)
        return ForkedDoit(ours, *readers)


class ForkedDoit:
    """A started doit, with the interface of ``Popen``."""

    def __init__(self, channel: socket.socket, stdout: int, stderr: int) -> None:
        self._channel = channel
        self.stdout, self.stderr = (os.fdopen(end, encoding="utf-8") for end in (stdout, stderr))
        self.pid: int = _receive(channel)
        self.returncode: int | None = None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return what it prints until it ends.

        Raises: TimeoutError: it had to be killed.
        """
        if self.returncode is not None:
            return "", ""
        with ThreadPoolExecutor(2) as threads:
            streams = [threads.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                out, err = (stream.result(timeout) for stream in streams)
            except TimeoutError:
                os.killpg(self.pid, signal.SIGKILL)
                raise
        with self._channel, self.stdout, self.stderr:
            self.returncode = _receive(self._channel)
        return out, err

    def has_ended(self) -> bool:
        return self.returncode is not None or bool(select.select([self._channel], [], [], 0)[0])

    def kill(self) -> None:
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)


def _send(channel: socket.socket, message: object) -> None:
    content = json.dumps(message).encode()
    channel.sendall(len(content).to_bytes(4, "big") + content)


def _receive(channel: socket.socket) -> Any:
    size = int.from_bytes(channel.recv(4, socket.MSG_WAITALL), "big")
    return json.loads(channel.recv(size, socket.MSG_WAITALL))


class Texts(dict[str, str]):
    """A text cache in memory."""

    set = dict.__setitem__


def read_texts() -> Texts:
    """Return what doit stores about the modules of stages and the installed packages."""
    from buildsys.plan.dependencies import SourceTree
    from buildsys.store.file_digests import hash_file
    from buildsys.system.versions import package_identities

    texts = Texts()
    stages = [str(path) for path in (REPOSITORY / "buildsys/stages").rglob("*.py")]
    tree = SourceTree(
        str(REPOSITORY), lambda path: hash_file(path).digest, texts, package="buildsys"
    )
    tree.dependencies(stages)  # and all that they import
    package_identities(LIBRARIES, tuple(sys.path), texts)
    return texts


def texts_of_keys(root: Path, known: Mapping[str, str]) -> dict[str, str]:
    """Return what doit stores when it makes the keys of a project, which follows our imports."""
    from buildsys.cli.session import BuildSession
    from buildsys.project.load import load_project

    session = BuildSession(load_project(root))
    session.executor._db._texts.update(known)
    for action in session.actions.values():
        session.executor._keys.build(action).digest  # noqa: B018
    texts = dict(session.executor._db._texts)
    session.executor.close()
    return {name: text for name, text in texts.items() if name.startswith("closure/")}


def know_texts(file: str) -> None:
    """Let every state database of this process, and of builds it starts, begin with texts."""
    from buildsys.cli.commands import check
    from buildsys.store.state_db import StateDb

    texts = json.loads(Path(file).read_text(encoding="utf-8") or "{}")
    first = f"import sys; sys.path.append({str(Path(__file__).parent)!r})"
    first += f"; import doit_server; doit_server.know_texts({file!r})"
    check.BUILD_PROGRAM = f"{first}; {check.BUILD_PROGRAM}"
    start = StateDb.__init__

    def start_with_texts(self: StateDb, *arguments: Any, **options: Any) -> None:
        start(self, *arguments, **options)
        self._texts.update(texts)

    StateDb.__init__ = start_with_texts  # type: ignore[method-assign]


def store_texts(root: Path) -> None:
    """Write into a built project what a new interpreter would read again in every copy of it."""
    from buildsys.store.state_db import StateDb

    state = StateDb(root / ".buildsys/state.db")
    for name, text in json.loads(texts_file.read_text(encoding="utf-8")).items():
        state.set(name, text)
    state.close()


def make_classes() -> None:
    """Make what a run makes at its first use: classes of manifests and results, templates."""
    from buildsys.cli.commands.pages import prepare
    from buildsys.project.model import model_fields
    from buildsys.report.key_figures import load_result_types
    from buildsys.system.backend_registry import our_backends

    manifest = {
        "model": "m",
        "source": {"onnx": "m.onnx"},
        "inputs": {"x": {"shape": ["batch", 4], "data": {"random": "uniform"}}},
        "outputs": {"y": {"shape": ["batch", 4]}},
        "dims": {"batch": {"min": 1, "opt": 2, "max": 4}},
        "engines": [{"name": name, "backend": name} for name in our_backends()],
        "export": {"opset": 17},
        "bench": {"noise": None},
    }
    model_fields(manifest)
    prepare()
    load_result_types()


def remember_plugins() -> None:
    """Look up doit's plugins once: each run reads the metadata of all packages four times."""
    plugin = importlib.import_module("doit.plugin")
    plugin.entry_points = cache(plugin.entry_points)  # type: ignore[attr-defined]
    for kind in ("COMMAND", "LOADER", "BACKEND", "REPORTER"):
        plugin.entry_points(group=f"doit.{kind}")


def serve(channel: socket.socket) -> str:
    """Answer requests; in each forked process, return the program to run."""
    running: dict[int, tuple[int, socket.socket]] = {}  # descriptor -> process, its client
    ready = select.poll()
    ready.register(channel, select.POLLIN)
    while True:
        for found, _ in ready.poll():
            if found in running:
                ready.unregister(found)
                os.close(found)
                pid, client = running.pop(found)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with client, contextlib.suppress(BrokenPipeError):
                    _send(client, code)
                continue
            message, descriptors, *_ = socket.recv_fds(channel, 1, 3)
            if not message:
                os._exit(0)
            *streams, answers = descriptors
            program, arguments, cwd, environment = _receive(channel)
            pid = os.fork()
            if pid == 0:
                for other, (_, client) in running.items():
                    os.close(other)
                    client.close()
                for descriptor in (channel.fileno(), answers):
                    os.close(descriptor)
                _become(streams, arguments, cwd, environment)
                return str(program)
            for descriptor in streams:
                os.close(descriptor)
            client = socket.socket(fileno=answers)
            _send(client, pid)
            process = os.pidfd_open(pid)
            running[process] = pid, client
            ready.register(process, select.POLLIN)


def _become(
    streams: list[int], arguments: list[str], cwd: str, environment: dict[str, str]
) -> None:
    """Make this process what a new one with these arguments is."""
    known, path = (one["PYTHONPATH"].split(os.pathsep) for one in (os.environ, environment))
    os.setsid()
    for stream, descriptor in enumerate(streams, start=1):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv[1:] = arguments
    # the current folder as under `python -m doit`
    sys.path[:] = [cwd, *path, *(entry for entry in sys.path[1:] if entry not in known)]


def run(program: str) -> None:
    """Run a program and end, without the teardown of modules, which would copy their pages."""
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for stream in (sys.__stdout__, sys.__stderr__):  # doit's reporters keep them
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(end.code or 0)


def import_ours() -> None:
    """Import the modules of the orchestrator."""
    from buildsys.stages.table import STAGES

    for package in PACKAGES:
        found = importlib.import_module(f"buildsys.{package}")
        for module in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    for stage in STAGES:
        for part in ("plan", "checks", "report", "result"):
            with contextlib.suppress(ImportError):  # it does not have one
                importlib.import_module(f"{stage.package}.{part}")


if __name__ == "__main__":
    for name in FURTHER:
        importlib.import_module(name)
    import_ours()
    make_classes()
    remember_plugins()
    know_texts(sys.argv[2])
    importlib.import_module("forked_modules").fork_modules()
    gc.freeze()  # else a collection would write to every page that the processes share
    run(serve(socket.socket(fileno=int(sys.argv[1]))))
