"""Files of the Hugging Face Hub, from a server on this machine."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.models.weights_files import is_present, load_weights, locate, pinned

COMMIT = "0123456789" * 4
NAME = f"hf://owner/net@{COMMIT}"


class Hub(BaseHTTPRequestHandler):
    """The part of the Hub's API that serves files at a commit."""

    files: dict[str, bytes]

    def do_HEAD(self) -> None:
        self.answer(is_head=True)

    def do_GET(self) -> None:
        self.answer(is_head=False)

    def answer(self, *, is_head: bool) -> None:
        place = self.path.replace("/resolve/main/", f"/resolve/{COMMIT}/")
        content = self.files.get(place.removeprefix(f"/owner/net/resolve/{COMMIT}/"))
        self.send_response(404 if content is None else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound")
            content = b""
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not is_head:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Serve files by their paths; yield them."""
    constants = pytest.importorskip("huggingface_hub.constants")
    Hub.files = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(variable, "127.0.0.1")
    yield Hub.files
    server.shutdown()
    server.server_close()


def test_weights_of_a_commit_are_downloaded_once(
    tmp_path: Path, served: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"weight": torch.full((2, 2), 2.0), "bias": torch.ones(2)}, tmp_path / "w.pth")
    served["weights/net.pth"] = (tmp_path / "w.pth").read_bytes()
    module = nn.Linear(2, 2)
    weights = {"file": f"{NAME}/weights/net.pth", "sha256": None}
    load_weights(module, weights, tmp_path, "net")
    assert (module.weight == 2.0).all()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    load_weights(module, weights, tmp_path, "net")


def test_a_missing_file_differs_from_an_unreachable_hub(
    tmp_path: Path, served: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_present(f"{NAME}/net.pth", tmp_path)
    with pytest.raises(StageError, match=r"the Hub has no file hf://.*; check the name and the co"):
        locate(f"{NAME}/net.pth", tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda _: None)  # the library tries again for 20 s
    with pytest.raises(StageError) as error:
        locate(f"{NAME}/other.pth", tmp_path)
    assert f"{NAME}/other.pth is not in the cache, and http://127.0.0.1:9 did" in str(error.value)
    assert "go online, or run `hf download` elsewhere" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_branch_is_pinned_to_its_commit_also_offline(
    served: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    served["config.json"] = b"{}"
    assert pinned("owner/net", "main", "config.json") == f"{NAME}/config.json"
    with pytest.raises(StageError, match=r"the Hub has no x\.json of owner/net at main; check the"):
        pinned("owner/net", "main", "x.json")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert pinned("owner/net", "main", "config.json") == f"{NAME}/config.json"


def test_a_damaged_cached_file_is_an_error(tmp_path: Path, served: dict[str, bytes]) -> None:
    served["net.pth"] = b"weights"
    file = locate(f"{NAME}/net.pth", tmp_path)
    file.resolve().write_bytes(b"WEIGHTS")
    with pytest.raises(StageError, match=r"the cached file .* is damaged; delete it"):
        locate(f"{NAME}/net.pth", tmp_path)


def test_a_checkpoint_of_a_commit_is_loaded(tmp_path: Path, served: dict[str, bytes]) -> None:
    transformers = pytest.importorskip("transformers")
    from test_library_sources import BERT, network

    model = transformers.BertForMaskedLM(transformers.BertConfig.from_dict(BERT))
    model.save_pretrained(tmp_path / "saved", max_shard_size="3KB")
    served |= {file.name: file.read_bytes() for file in (tmp_path / "saved").iterdir()}
    shutil.rmtree(tmp_path / "saved")
    made = network({"transformers": "fill-mask", "checkpoint": NAME}, tmp_path)
    assert torch.equal(
        made.module.state_dict()["cls.predictions.bias"], model.state_dict()["cls.predictions.bias"]
    )
    assert made.weights == f"from {NAME}/model.safetensors.index.json"
