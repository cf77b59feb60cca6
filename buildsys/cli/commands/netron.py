"""buildsys netron: a graph in the netron viewer."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import shutil
import signal
import socket
import sys
import tempfile
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from buildsys.cli.command import add_names, print_lines
from buildsys.cli.graph_files import STORED, GraphFile, named_graph, target_of
from buildsys.cli.session import Session
from buildsys.errors import BuildsysError, Unavailable, UsageError

_HOST = "127.0.0.1"
_PORT = 8080  # netron's own default
_TRIED_PORTS = 100


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys netron``."""
    add_names(parser, "MODEL[:STAGE]")
    parser.epilog = "STAGE names a graph as in `buildsys inspect`; simplify is the default"
    parser.add_argument("--port", default="", help="the port; by default 8080 or the next free one")
    parser.add_argument("--browse", action="store_true", help="open a browser")


def run(options: Namespace) -> int:
    """Print the address and serve until Ctrl-C or SIGTERM."""
    if len(options.names) != 1:
        hint = "for example `buildsys netron resnet50:export`"
        raise UsageError("netron takes one MODEL or MODEL:STAGE", hint)
    port = _port(options.port)
    session = Session.read_only(options.root, [target_of(options.names[0])])
    _, graph = named_graph(session, "netron", options.names[0])
    if not graph.is_onnx:
        hint = "show the graph of an earlier stage"
        raise UsageError(f"{graph.target} is an engine; netron cannot show it", hint)
    if importlib.util.find_spec("netron") is None:
        hint = "`pip install 'buildsys[netron]'` or `pip install netron` installs it"
        raise Unavailable("netron is not installed", hint)
    if graph.note:
        print_lines([graph.note])
    with _file_with_suffix(graph) as file:
        _serve(file, port, browse=options.browse)
    return 0


def _serve(file: Path, port: int, *, browse: bool) -> None:
    netron: Any = importlib.import_module("netron")
    logging.getLogger("netron").setLevel(logging.CRITICAL)  # it announces the address as well
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.redirect_stdout(None):
            host, bound = netron.start(str(file), (_HOST, port), browse=browse)
        sys.stdout.write(f"serving at http://{host}:{bound}; stop with Ctrl-C\n")
        sys.stdout.flush()
        threading.Event().wait()
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
        with contextlib.redirect_stdout(None):
            netron.stop((_HOST, port))


def _port(text: str) -> int:
    """Return the requested port, or the first free one from netron's default."""
    if not text:
        return next((n for n in range(_PORT, _PORT + _TRIED_PORTS) if _is_free(n)), _PORT)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        problem = f"--port expects a number from 1 to 65535, found {text!r}"
        raise UsageError(problem, "without --port a free one is chosen")
    if not _is_free(int(text)):
        raise BuildsysError(f"port {text} is in use; without --port a free one is chosen")
    return int(text)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((_HOST, port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _file_with_suffix(graph: GraphFile) -> Iterator[Path]:
    """Yield the graph under an ``.onnx`` name, unlike in the store."""
    if graph.state != STORED:
        yield graph.file
        return
    with tempfile.TemporaryDirectory(prefix="buildsys-netron-") as folder:
        file = Path(folder) / "model.onnx"
        shutil.copyfile(graph.file, file)
        if graph.data is not None:
            file.with_name("model.onnx.data").symlink_to(graph.data)
        yield file
