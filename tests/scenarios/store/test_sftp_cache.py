"""The shared cache over SFTP, against a real sshd on this machine."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ready_project import ReadyProject

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
pytestmark = pytest.mark.skipif(SSHD is None, reason="no sshd: apt-get install openssh-server")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the URL of an SFTP cache and a home folder."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    for key in (home / ".ssh/id_ed25519", tmp_path / "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    shutil.copy(home / ".ssh/id_ed25519.pub", tmp_path / "authorized_keys")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host_key\n"
        f"AuthorizedKeysFile {tmp_path}/authorized_keys\n"
        f"PidFile {tmp_path}/sshd.pid\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        "Subsystem sftp internal-sftp\n"
    )
    # sshd, started by root, separates its privileges there
    Path("/run/sshd").mkdir(exist_ok=True)
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield f"sftp://{getpass.getuser()}@127.0.0.1:{port}{tmp_path}/shared", home
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("sshd did not start")


def checkout(root: Path, url: str, home: Path) -> ReadyProject:
    """Make a checkout of the same project as on another machine."""
    project = ReadyProject(root, root)
    root.mkdir()
    project.create()
    project.add_model("a")
    settings = f"cache: {{remote: '{url}', mode: read-write, timeout: 20s}}\n"
    (root / "configs/project.yaml").write_text(settings)
    project.environment |= {"HOME": str(home), "BUILDSYS_WORKER_IDLE": "0"}
    return project


def test_another_checkout_reuses_a_build_over_sftp(
    server: tuple[str, Path], tmp_path: Path
) -> None:
    one, two = (checkout(tmp_path / name, *server) for name in ("one", "two"))
    built = one.doit("simplify:a")
    assert (built.code, built.err) == (0, "")
    assert built.passed == {"export:a", "reference:a", "simplify:a"}
    taken = two.doit("simplify:a")
    assert (taken.code, taken.err) == (0, "")
    assert taken.restored == built.passed
    for name in ("export", "simplify"):
        path = f"build/a/{name}/model.onnx"
        assert (one.root / path).read_bytes() == (two.root / path).read_bytes()
    shared = {
        path.relative_to(tmp_path / "shared").parts[0]
        for path in (tmp_path / "shared").rglob("*.*")
    }
    assert shared == {"actions"}  # no temporary parts are left; objects have no suffix


def test_a_refusing_server_costs_one_warning(server: tuple[str, Path], tmp_path: Path) -> None:
    url, home = server
    (home / ".ssh/id_ed25519").unlink()
    project = checkout(tmp_path / "one", url, home)
    built = project.doit("simplify:a")
    assert built.code == 0
    assert built.passed == {"export:a", "reference:a", "simplify:a"}
    assert built.err.count("this run goes on without it") == 1
    assert len(built.err.splitlines()) == 1
