"""A graph in the netron viewer, served until Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from buildsys.cli.command import print_lines
from buildsys.cli.graph_files import STORED, GraphFile
from buildsys.errors import BuildsysError, Unavailable, UsageError

_HOST = "127.0.0.1"


def serve_graph(graph: GraphFile, port: int) -> int:
    """Serve a graph until Ctrl-C or SIGTERM; port 0 is a free one.

    Raises: UsageError: it is an engine without a graph. Unavailable: netron is not installed.
    BuildsysError: the port is in use.
    """
    if not graph.is_onnx:
        hint = "show the graph of an earlier stage"
        raise UsageError(f"{graph.target} is an engine; netron cannot show it", hint)
    if importlib.util.find_spec("netron") is None:
        hint = "`pip install 'buildsys[netron]'` or `pip install netron` installs it"
        raise Unavailable("netron is not installed", hint)
    if graph.note:
        print_lines([graph.note])
    with _file_with_suffix(graph) as file:
        _serve(file, port)
    return 0


def _serve(file: Path, port: int) -> None:
    netron: Any = importlib.import_module("netron")
    logging.getLogger("netron").setLevel(logging.CRITICAL)  # it announces the address as well
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        try:
            with contextlib.redirect_stdout(None):
                host, bound = netron.start(str(file), (_HOST, port), browse=False)
        except (OSError, OverflowError) as error:
            problem = f"port {port} cannot be used: {error}"
            raise BuildsysError(f"{problem}; without --port a free one is chosen") from None
        sys.stdout.write(f"serving at http://{host}:{bound}; stop with Ctrl-C\n")
        sys.stdout.flush()
        threading.Event().wait()
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
        with contextlib.redirect_stdout(None):
            netron.stop()


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
