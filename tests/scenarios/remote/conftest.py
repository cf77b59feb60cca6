import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # of the modules beside

from remote_project import BUILDSYS, RemoteProject

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@pytest.fixture
def project() -> Iterator[RemoteProject]:
    folder = Path(tempfile.mkdtemp(prefix="bs-"))  # addresses of sockets are short
    project = RemoteProject(folder)
    yield project
    project.end()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def ssh_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an ``ssh`` whose host ``node`` is a server of this test, on this machine."""
    if SSHD is None or not shutil.which("ssh"):
        pytest.skip("there is no sshd")
    folder = tmp_path_factory.mktemp("ssh")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name in ("host", "user", "other"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(key, check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/authorized\nPidFile none\nUsePAM no\n"
    )
    for name in ("host", "other"):
        key_text = " ".join((folder / f"{name}.pub").read_text().split()[:2])
        (folder / f"known_{name}").write_text(f"[127.0.0.1]:{port} {key_text}\n")
    shutil.copy(folder / "known_host", folder / "known_hosts")
    (folder / "config").write_text(
        f"Host node\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder}/user\n  UserKnownHostsFile {folder}/known_hosts\n"
        "  GlobalKnownHostsFile none\n  StrictHostKeyChecking yes\n"
    )
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    (folder / "ssh").chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # a demand of sshd started by root
    server = subprocess.Popen(
        [SSHD, "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "log")]
    )
    yield folder
    server.terminate()
    server.wait()


@pytest.fixture
def over_ssh(project: RemoteProject, ssh_host: Path) -> RemoteProject:
    """A project whose executor is reached by ssh."""
    project.environment["PATH"] = f"{ssh_host}{os.pathsep}{project.environment['PATH']}"
    # sshd starts commands without the variables of this process, which are parts of keys
    variables = {
        name: value
        for name, value in project.environment.items()
        if name.startswith(
            ("OPENBLAS_", "OMP_", "MKL_", "ORT_", "PYTHONPATH", "BUILDSYS_", "READ_")
        )
        or name in ("TMPDIR", project.mark.partition("=")[0])
    }
    settings = ", ".join(f"{name}: '{value}'" for name, value in variables.items())
    command = ", ".join(BUILDSYS)
    project.set_executor(f"{{kind: ssh, host: node, command: [{command}], env: {{{settings}}}}}")
    return project
