"""Start of worker servers, or connection to running ones, in the right environment.

A running server is reused if its fingerprint is equal. The fingerprint misses what is written into
a module deep inside a large library, as keys do; ``buildsys cache workers --stop --all`` is for
such changes.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import buildsys
from buildsys.system.backend_registry import link_packages
from buildsys.system.files import Stamp, TextCache, in_library, link_into, stamp
from buildsys.system.processes import Process
from buildsys.system.toolchains import Interpreter, Toolchain, own_interpreter, require_interpreter
from buildsys.system.versions import package_identities
from buildsys.workers import registry
from buildsys.workers.job import ServerKind
from buildsys.workers.registry import ServerConnection

_BACKLOG = 128  # connections waiting while a server still loads libraries
_DEFAULTS = {
    # A worker ends with its stage, so freed memory need not be returned to the system. With glibc's
    # defaults each buffer of a large graph is mapped, zeroed and unmapped: half the time of
    # exporting vgg11.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 31),
    "MALLOC_TOP_PAD_": str(64 << 20),
    # telemetry would run in a thread, which a fork does not copy, and report models to the vendor
    "ORT_DISABLE_TELEMETRY": "1",
}
# no library reads these at import; they differ between terminals or calls
_PER_CALL = (
    "_", "ALACRITTY_WINDOW_ID", "COLUMNS", "GNOME_TERMINAL_SCREEN", "GPG_TTY", "INVOCATION_ID",
    "ITERM_SESSION_ID", "JOURNAL_STREAM", "KITTY_PID", "KITTY_WINDOW_ID", "LINES", "OLDPWD",
    "PWD", "PYTEST_CURRENT_TEST", "SHLVL", "SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION",
    "SSH_TTY", "STY", "TERM", "TERM_SESSION_ID", "TMUX", "TMUX_PANE", "WEZTERM_PANE", "WINDOWID",
    "XDG_SESSION_ID",
)  # fmt: skip
_SCHEMA = "buildsys/server/1"
_STATUS = ("Umask", "Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp", "Cpus_allowed_list")


def connect_server(
    kind: ServerKind, toolchain: Toolchain | None, folder: Path, texts: TextCache | None = None
) -> ServerConnection:
    """Connect to a running server for jobs of one kind, or start one.

    ``folder`` receives its log. ``texts`` caches facts about the libraries that it loads.
    Raises: OSError: it cannot be started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    interpreter, python = own_interpreter(), sys.executable
    if toolchain is not None:
        interpreter, python = require_interpreter(toolchain), str(toolchain.python)
    environment = server_environment(folder, os.environ, toolchain, interpreter.path)
    lasting, per_job = split_environment(environment)
    log, idle_s = folder / f"{kind.name}.log", registry.idle_limit_s(os.environ)
    digest = fingerprint(kind, python, interpreter, lasting, folder, texts)
    servers = registry.server_folder(os.environ)
    address, popen = registry.address(servers, digest), None
    with registry.locked(servers):
        record = registry.read_record(address)
        control = registry.connect(address) if record is not None else None
        if record is None or control is None:
            registry.remove(address)  # left by a server that was killed
            for other in servers.glob("*.sock"):
                older = registry.read_record(other)
                if older is None or not older.process.is_running:
                    registry.remove(other)
                elif older.log == str(log):  # of this kind and project
                    registry.retire(other)
            control, popen = _start(kind, python, log, lasting, address, idle_s)
            process = Process.of(popen.pid)
            record = registry.ServerRecord(
                process.pid, process.started, kind.name, python, str(log)
            )
            registry.write_record(address, record)
    return ServerConnection(address, control, record.process, popen, log, per_job, idle_s)


def _start(
    kind: ServerKind,
    python: str,
    log: Path,
    environment: Mapping[str, str],
    address: Path,
    idle_s: float,
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a server that listens at ``address``, and connect to it."""
    start = {"path": str(address), "idle_s": idle_s}
    start |= {"preload": kind.preload, "without": kind.without}
    with log.open("wb") as output, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(address))
        listener.listen(_BACKLOG)
        start["listener"] = listener.fileno()
        process = subprocess.Popen(
            [python, "-m", "buildsys.workers.server", json.dumps(start)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # `-m` imports from this folder first; a project may contain an `onnx.py`
            cwd=log.parent,
            env=environment,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C must not reach a server that others use
        )
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        control.connect(str(address))
    return control, process


def split_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split variables into the server's and those sent with each job.

    Without the second kind a server could not be reused from another terminal. A job sees both.
    """
    lasting, per_job = dict[str, str](), dict[str, str]()
    for name, value in environment.items():
        (per_job if name in _PER_CALL or name.startswith("BUILDSYS_") else lasting)[name] = value
    return lasting, per_job


def server_environment(
    folder: Path,
    base: Mapping[str, str],
    toolchain: Toolchain | None = None,
    path: Sequence[str] = (),
) -> dict[str, str]:
    """Choose the variables of a server in our or a toolchain's interpreter.

    ``folder`` receives links; ``path`` is the module path of the interpreter. That of a toolchain
    gets only this package of ours.
    """
    package = Path(buildsys.__file__).resolve().parent
    if toolchain is not None:
        environment = toolchain.environment(base)
        _prepend(environment, "PYTHONPATH", link_packages(folder / "package"))
    else:
        environment = dict(base)
        if environment.get("PYTHONPATH"):  # a server starts in another folder
            entries = filter(None, environment["PYTHONPATH"].split(os.pathsep))
            environment["PYTHONPATH"] = os.pathsep.join(str(Path(e).absolute()) for e in entries)
        # on PYTHONPATH, site-packages would hide the standard library
        if not in_library(str(package)):
            _prepend(environment, "PYTHONPATH", package.parent)
    for name, value in _DEFAULTS.items():
        environment.setdefault(name, value)
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as the driver sorts GPUs, also for the keys
    # TensorRT-RTX's parser opens libtensorrt_rtx.so for Python plugins and aborts without it; the
    # wheel only has libtensorrt_rtx.so.1. Through a link the loader recognizes the loaded library.
    spec = PathFinder.find_spec("tensorrt_rtx_libs", path)
    locations = spec.submodule_search_locations if spec is not None else None
    libraries = sorted(Path(locations[0]).glob("libtensorrt_rtx.so.*")) if locations else []
    if libraries:
        links = folder / ("lib" if toolchain is None else f"lib-{toolchain.name}")
        link = link_into(links, "libtensorrt_rtx.so", libraries[-1])
        _prepend(environment, "LD_LIBRARY_PATH", link)
    return environment


def _prepend(environment: dict[str, str], name: str, entry: Path) -> None:
    parts = (str(entry), environment.get(name, ""))
    environment[name] = os.pathsep.join(filter(None, parts))


def fingerprint(
    kind: ServerKind,
    python: str,
    interpreter: Interpreter,
    environment: Mapping[str, str],
    folder: Path,
    texts: TextCache | None = None,
) -> str:
    """Digest everything a server started now depends on.

    ``folder`` is the project's folder of worker logs: projects do not share servers.
    ``texts`` caches facts about preloaded libraries, whose edited modules would stay in the memory
    of a server.
    """
    standard = interpreter.standard
    # not where this process looks for modules only because of how it was called
    program = str(Path(sys.argv[0]).absolute().parent)
    ours = {"", str(Path.cwd()), str(folder.parent.parent), program}
    named = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    entries = dict.fromkeys([*named, *(name for name in interpreter.path if name not in ours)])
    unchanging = {standard, f"{standard}/lib-dynload"}  # these belong to the interpreter
    status = Path("/proc/self/status").read_text().splitlines()
    preloaded = sorted({name.partition(".")[0] for name in kind.preload})
    parts = {
        "schema": _SCHEMA,
        "kind": [kind.name, kind.preload, kind.without],
        # a virtual environment has several names for one interpreter
        "python": [
            str(Path(python).parent),
            os.path.realpath(python),
            interpreter.full_version,
            stamp(python),
        ],
        "folder": str(folder),
        "code": [(path, stamp(path)) for path in server_modules()],
        "modules": {
            entry: [("", stamp(entry))] if entry in unchanging else list(_modules(entry))
            for entry in entries
        },
        "preloaded": None
        if texts is None
        else package_identities(preloaded, tuple(entries), texts),
        "environment": sorted(environment.items()),
        "process": [line for line in status if line.startswith(_STATUS)],
        "limits": Path("/proc/self/limits").read_text(),
        "group": Path("/proc/self/cgroup").read_text(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def server_modules() -> list[str]:
    """List the files of this package possibly imported by a server."""
    return sorted(map(str, Path(buildsys.__file__).parent.rglob("*.py")))


def _modules(folder: str) -> Iterator[tuple[str, Stamp | None]]:
    """Yield a stamp of everything importable in a folder."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - only the names matter
    except OSError:  # an archive or a missing folder
        yield folder, stamp(folder)
        return
    for name in names:
        path = f"{folder}/{name}"
        if name.endswith((".py", ".so", ".pth")):
            yield name, stamp(path)
        elif name.endswith(".dist-info"):
            yield name, stamp(f"{path}/RECORD")
        elif "." not in name and name != "__pycache__":
            init = stamp(f"{path}/__init__.py")
            if init is not None:
                yield name, init
