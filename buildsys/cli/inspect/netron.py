"""``doit netron MODEL[:STAGE]``: a graph in the netron viewer, served to a browser on this machine."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from buildsys.cli.inspect.command import DEFAULT_STAGE
from buildsys.cli.inspect.graph_names import STORED, GraphFile, GraphFiles
from buildsys.cli.name_suggestions import known_model
from buildsys.cli.targets import open_project
from buildsys.errors import BuildsysError, Unavailable, UsageError

_HOST = "127.0.0.1"
_PORT = 8080  # that of netron itself
_FREE_PORTS = 100


def serve(root: Path, name: str, out: TextIO, *, port: str, browse: bool) -> None:
    """Serve a graph until Ctrl-C or SIGTERM; print its address once it can be opened.

    Raises: UsageError: no such model or stage, or no such port. StageError: the graph is not built.
    Unavailable: netron is not installed. BuildsysError: the port is taken.
    """
    number = _port(port)
    session = open_project(root)
    model, _, stage = name.partition(":")
    known_model("netron", session.project.models, [model] if model else [])
    graph = GraphFiles(session, model).find(stage or DEFAULT_STAGE)
    if not graph.is_onnx:
        raise UsageError(
            f"{graph.target} is a TensorRT engine, which netron cannot show",
            "its graph is an earlier stage's",
        )
    if importlib.util.find_spec("netron") is None:
        raise Unavailable(
            "netron is not installed",
            "`pip install 'buildsys[netron]'` or `pip install netron` installs it",
        )
    if graph.note:
        out.write(f"{graph.note}\n")
    with _with_usual_name(graph) as file:
        _serve(file, number, out, browse=browse)


def _serve(file: Path, port: int, out: TextIO, *, browse: bool) -> None:
    netron: Any = importlib.import_module("netron")
    logging.getLogger("netron").setLevel(logging.CRITICAL)  # it has words of its own for the same
    ended = threading.Event()
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with contextlib.redirect_stdout(None):
            address = netron.start(str(file), (_HOST, port), browse=browse)
        out.write(f"http://{address[0]}:{address[1]} shows it; Ctrl-C ends\n")
        out.flush()
        ended.wait()
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
        with contextlib.redirect_stdout(None):
            netron.stop((_HOST, port))


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise KeyboardInterrupt


def _port(asked: str) -> int:
    """Return the port to serve on: the one asked for, or the first that is free from netron's usual one on."""
    if not asked:
        return next((port for port in range(_PORT, _PORT + _FREE_PORTS) if _is_free(port)), _PORT)
    if not asked.isdecimal() or not 0 < int(asked) < 65536:
        raise UsageError(f"--port takes a number from 1 to 65535, not {asked!r}")
    if not _is_free(int(asked)):
        raise BuildsysError(f"port {asked} is taken; without --port a free one is chosen")
    return int(asked)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((_HOST, port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _with_usual_name(graph: GraphFile) -> Iterator[Path]:
    """Yield a file that ends in .onnx, with its external data beside it: in the store, contents have no such names."""
    if graph.state != STORED:
        yield graph.file
        return
    with tempfile.TemporaryDirectory(prefix="buildsys-netron-") as folder:
        file = Path(folder) / "model.onnx"
        shutil.copyfile(graph.file, file)
        if graph.data is not None:
            file.with_name("model.onnx.data").symlink_to(graph.data)  # only read
        yield file
