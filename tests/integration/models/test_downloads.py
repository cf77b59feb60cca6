import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.models.weights_files import load_weights

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12345\n"


class Server(NamedTuple):
    """Files by their path, and the paths that were asked for."""

    url: str
    files: dict[str, bytes]
    asked: list[str]


@pytest.fixture
def server() -> Iterator[Server]:
    files, asked = dict[str, bytes](), list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=http.serve_forever, daemon=True).start()
    yield Server(f"http://127.0.0.1:{http.server_port}", files, asked)
    http.shutdown()
    http.server_close()


def saved(folder: Path, value: float = 2.0) -> bytes:
    torch.save({"weight": torch.full((2, 2), value)}, folder / "saved.pth")
    return (folder / "saved.pth").read_bytes()


def load(folder: Path, url: str, sha256: str | None = None) -> Any:
    module = nn.Linear(2, 2, bias=False)
    weights = {"file": url, "sha256": sha256, "key": None, "strict": True}
    load_weights(module, weights, folder, "net")
    return module.weight


def test_a_file_is_downloaded_once_and_needs_its_digest(tmp_path: Path, server: Server) -> None:
    server.files["/w.pth"] = content = saved(tmp_path)
    digest, url = hashlib.sha256(content).hexdigest(), f"{server.url}/w.pth"
    with pytest.raises(StageError) as error:
        load(tmp_path, url)
    assert error.value.hint == f"write weights: {{file: {url}, sha256: {digest}}}"
    assert (load(tmp_path, url, digest) == 2.0).all()
    assert (load(tmp_path, url, digest) == 2.0).all()
    assert server.asked == ["/w.pth"]
    with pytest.raises(
        StageError, match=f"has the sha256 {digest}, the manifest expects {'0' * 64}"
    ):
        load(tmp_path, url, "0" * 64)
    (tmp_path / ".buildsys/downloads" / digest / "w.pth").write_bytes(b"damaged")
    with pytest.raises(StageError, match="has the sha256"):
        load(tmp_path, url, digest)
    assert (load(tmp_path, url, digest) == 2.0).all()  # downloaded again


def test_what_is_no_checkpoint_is_named(tmp_path: Path, server: Server) -> None:
    server.files.update({"/w.pth": LFS, "/page.pth": b"<html>sign in</html>"})
    for name, text in (("w", "is a Git LFS pointer"), ("page", "is a web page; download")):
        with pytest.raises(StageError, match=text):
            load(tmp_path, f"{server.url}/{name}.pth")
    with pytest.raises(StageError, match=r"cannot download .*/none.pth \(HTTPError: .* 404"):
        load(tmp_path, f"{server.url}/none.pth")
    with pytest.raises(StageError, match=r"cannot download http://127.0.0.1:9/w.pth \(URLError: "):
        load(tmp_path, "http://127.0.0.1:9/w.pth")
    with pytest.raises(StageError, match=r"cannot download nowhere://a/w.pth \(ValueError: "):
        load(tmp_path, "nowhere://a/w.pth")


def test_shards_are_downloaded_with_their_index(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    index = json.dumps({"weight_map": {"weight": "a.bin"}}).encode()
    files = {"m.bin.index.json": index, "a.bin": saved(tmp_path)}
    for name, content in files.items():
        with fsspec.open(f"memory://bucket/net/{name}", "wb") as opened:
            opened.write(content)
    digest = hashlib.sha256(b"".join(files.values())).hexdigest()
    assert (load(tmp_path, "memory://bucket/net/m.bin.index.json", digest) == 2.0).all()
    assert {*(tmp_path / ".buildsys/downloads" / digest).iterdir()} == {
        tmp_path / ".buildsys/downloads" / digest / name for name in files
    }
