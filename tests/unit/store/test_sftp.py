"""The shared cache over SFTP, against a server in this process."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkouts import Checkout, files, restored
from sftp_server import PASSWORD, SshServer, ssh_server
from tiny_project import ENGINE, EXPORT

Clone = Callable[[str], Path]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    """A running server, and an empty home folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "home/.ssh").mkdir(parents=True)
    with ssh_server() as running:
        yield running


def known_hosts(root: Path) -> Path:
    return root / ".buildsys/known_hosts"


def checkout(root: Path, server: SshServer, shared: Path, **options: object) -> Checkout:
    (root / ".buildsys").mkdir(exist_ok=True)
    options = {"known_hosts": known_hosts(root), **options}
    return Checkout(root, server.url(shared), **options)  # type: ignore[arg-type]


def test_another_machine_reuses_a_build(clone: Clone, server: SshServer, shared: Path) -> None:
    one, two = (checkout(clone(name), server, shared) for name in ("one", "two"))
    assert restored(one.build(EXPORT, ENGINE)) == []
    assert restored(two.build(EXPORT, ENGINE)) == [EXPORT, ENGINE]
    assert two.pool.ran == []
    assert one.warnings == two.warnings == []
    assert {path.relative_to(shared).parts[0] for path in files(shared)} == {"actions", "objects"}
    assert not list(shared.rglob("*.part"))


@pytest.mark.parametrize("lose_after", [0, 1])
def test_a_lost_connection_costs_one_warning(
    clone: Clone,
    server: SshServer,
    shared: Path,
    lose_after: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkout(clone("one"), server, shared).build(EXPORT, ENGINE)
    server.lose_after = lose_after
    two = checkout(clone("two"), server, shared)
    assert restored(two.build(EXPORT, ENGINE)) == []
    assert two.pool.ran == [EXPORT, ENGINE]
    (warning,) = two.warnings
    assert warning.endswith("; this run goes on without it")
    assert PASSWORD not in warning
    gc.collect()  # asyncio reports lost tasks when they are collected
    assert caplog.text == ""


def test_another_host_key_is_refused(
    clone: Clone, server: SshServer, shared: Path, tmp_path: Path
) -> None:
    root = clone("one")
    checkout(root, server, shared).build(EXPORT)
    public = server.key.export_public_key("openssh").decode().split()
    line = f"[127.0.0.1]:{server.port} {public[0]} {public[1]}\n"
    assert known_hosts(root).read_text() == line
    server.close()
    with ssh_server(server.port) as impostor:
        again = checkout(root, impostor, shared)
        again.build(ENGINE)
        assert again.pool.ran == [ENGINE]
        (warning,) = again.warnings
        assert impostor.key.get_fingerprint() in warning
        assert f"remove its line from ~/.ssh/known_hosts or {known_hosts(root)}" in warning
        assert known_hosts(root).read_text() == line
        # the same for a key that the user knows, without one remembered here
        (tmp_path / "home/.ssh/known_hosts").write_text(line)
        two = checkout(clone("two"), impostor, shared)
        assert restored(two.build(EXPORT)) == []
        assert "another one is known" in two.warnings[0]
