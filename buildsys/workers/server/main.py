"""Program of a worker server: ``python -m buildsys.workers.server.main JSON``.

It imports libraries once, then forks a child for each job. Standard library only until then.
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

from buildsys.workers.server.preload import preload
from buildsys.workers.server.server import Listener, Server


def main() -> NoReturn:
    """Serve the parent of this process, or all clients."""
    faulthandler.enable()
    # OpenBLAS, the only library here that starts threads at import, handles forks itself
    warnings.filterwarnings(
        "ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning
    )
    start = json.loads(sys.argv[1])
    here = str(Path.cwd())
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]
    os.chdir("/")  # the project may be moved or deleted
    if "listener" in start:
        listener = Listener(socket.socket(fileno=start["listener"]), Path(start["path"]))
        server = Server(listener=listener, idle_s=start["idle_s"])
    else:
        server = Server(socket.socket(fileno=start["control"]), parent=start["parent"])
    gc.disable()  # a collection would write to the pages shared with the children
    server.serve(preload(start["preload"], start["without"]))


if __name__ == "__main__":
    main()
