"""The program of a worker server: ``python -m buildsys.workers.server.main JSON``, as ``starting`` calls it.

It loads libraries once, then forks a child for each job. Standard library only until it preloads.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import socket
import sys
import warnings
from pathlib import Path
from typing import NoReturn

from buildsys.workers.protocol import Message
from buildsys.workers.server.listener import Doorway
from buildsys.workers.server.preload import preload
from buildsys.workers.server.server import Server


def main() -> NoReturn:
    """Serve the orchestrator that started this process, or any that comes."""
    faulthandler.enable()
    # OpenBLAS, the one library here that starts threads when loaded, handles forks itself
    warnings.filterwarnings(
        "ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning
    )
    start = json.loads(sys.argv[1])
    here = str(Path.cwd())
    sys.path[:] = [
        entry for entry in sys.path if entry not in ("", here)
    ]  # the folder that it was started in
    os.chdir("/")  # a project may be moved or deleted
    server = _server(start)
    gc.disable()  # stays off in the server: a collection would write to pages that the children share
    server.serve(preload(start["preload"], start["without"]))


def _server(start: Message) -> Server:
    if "listener" in start:
        doorway = Doorway(socket.socket(fileno=start["listener"]), Path(start["path"]))
        return Server(doorway=doorway, idle_s=start["idle_s"])
    return Server(socket.socket(fileno=start["control"]), parent=start["parent"])


if __name__ == "__main__":
    main()
