"""A machine whose commands are forked: starting Python takes longer than most.

``command`` starts a client with little to import. A server in this process forks buildsys with the
client's arguments and environment, and ends it with the client.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path

from doit_server import ForkedDoit, start_doit

CLIENT = """\
import json, os, socket, sys
place = socket.socket(socket.AF_UNIX)
place.connect(sys.argv[1])
with place.makefile("rw") as stream:
    print(json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]), file=stream, flush=True)
    code, text = json.loads(stream.readline())
sys.stdout.write(text)
sys.exit(code)
"""


class ForkedMachine:
    """Runs commands of buildsys, or of doit, until this process ends."""

    def __init__(self, program: str = "buildsys") -> None:
        self._program = program
        self._folder = tempfile.TemporaryDirectory(prefix="bs-")  # addresses must be short
        folder = Path(self._folder.name)
        client, address = folder / "client.py", folder / "socket"
        client.write_text(CLIENT)
        self.command = [sys.executable, "-S", "-I", str(client), str(address)]
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client = self._listener.accept()[0]
                threading.Thread(target=self._run, args=[client], daemon=True).start()

    def close(self) -> None:
        """Start no more commands."""
        self._listener.close()
        self._folder.cleanup()

    def _run(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, client.makefile("rw") as stream:
            arguments, cwd, environment = json.loads(stream.readline())
            run = start_doit(arguments, Path(cwd), environment, self._program)
            threading.Thread(target=_end_with, args=[client, run], daemon=True).start()
            out, err = run.communicate()
            # fails if the client was killed
            print(json.dumps([run.returncode, out + err]), file=stream, flush=True)


def _end_with(client: socket.socket, run: ForkedDoit) -> None:
    with contextlib.suppress(OSError):
        if not client.recv(1, socket.MSG_PEEK) and not run.has_ended():
            os.killpg(run.pid, signal.SIGTERM)
