"""`buildsys.resolve`: tampered, forged, hostile and missing files, each refused in a sentence."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from release_folder import bench_result, engine_record, promote, publish_engine, release_engines

import buildsys
from buildsys.errors import EngineError
from buildsys.release.resolve import Resolution, resolve
from buildsys.store.remote_folder import RemoteFolder, connect
from buildsys.store.signatures import SigningKey, generate_key
from buildsys.system.files import sha256_of

ROOT = Path(buildsys.__file__).parents[1]
SLOW, FAST, BIG = b"slow" * 9, b"fast" * 9, b"big" * 100


class Released:
    """A URL with the releases 1.0 and 1.1 of engines for this processor; stable is 1.1."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "releases [1]"
        self.public = generate_key(tmp_path / "key.pem")
        self.key = SigningKey(tmp_path / "key.pem")
        self.folder: RemoteFolder = connect(str(self.path))
        self.cache = tmp_path / "cache"
        for release in ("1.0", "1.1"):
            for name, content, p50_ms in (("slow", SLOW, 2.0), ("fast", FAST, 1.0)):
                results = {"bench": bench_result(p50_ms)}
                publish_engine(
                    self.folder, tmp_path / "built", release, name, content=content, results=results
                )
            release_engines(self.folder, release, self.key)
            promote(self.folder, release, key=self.key)

    def resolve(self, **options: Any) -> Resolution:
        defaults = {"folder": self.cache, "trusted_keys": [self.public]}
        return resolve(self.path, **{**defaults, **options})

    def edit(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        document = json.loads((self.path / name).read_text())
        change(document)
        (self.path / name).write_text(json.dumps(document))


@pytest.fixture
def released(tmp_path: Path) -> Released:
    return Released(tmp_path)


@pytest.fixture
def server(released: Released) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    handler = partial(Quiet, directory=str(released.path.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/releases%20%5B1%5D?token=secret"
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("url", ["folder", "file", "http", "fsspec"])
def test_the_fastest_engine_is_downloaded_from_any_url(
    released: Released, server: str, url: str
) -> None:
    urls = {
        "folder": str(released.path), "file": released.path.as_uri(), "http": server,
        "fsspec": f"local://{released.path}",
    }  # fmt: skip
    result = resolve(urls[url], folder=released.cache, trusted_keys=[released.public])
    folder = Path(result)
    assert (folder / "engine.onnx").read_bytes() == FAST
    assert sorted(path.name for path in folder.iterdir()) == ["engine.json", "engine.onnx"]
    assert [c.variant.name for c in result.decision.choices] == ["net:fast", "net:slow"]
    assert (result.index.signed_by, result.index.release) == (released.public, "1.1")
    assert "secret" not in f"{result}{result.as_json()}"
    assert json.loads(json.dumps(result.as_json()))["ranked"][0]["same_device"] is True


def test_a_download_is_used_again_and_repaired(released: Released) -> None:
    folder = Path(released.resolve())
    inode = (folder / "engine.onnx").stat().st_ino
    assert (Path(released.resolve()) / "engine.onnx").stat().st_ino == inode
    (folder / "engine.onnx").write_bytes(b"x" * len(FAST))
    (folder / "more.txt").write_text("of an older version")
    assert (Path(released.resolve()) / "engine.onnx").read_bytes() == FAST
    assert [path.name for path in released.cache.iterdir() if path.name != "channels"] == [
        folder.name
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda file: file.write_bytes(b"x" * len(FAST)), "it has another SHA-256"),
        (lambda file: file.write_bytes(FAST + b"x"), f"which has {len(FAST)} bytes"),
        (lambda file: file.write_bytes(FAST[:-1]), f"which has {len(FAST)} bytes"),
        (lambda file: file.unlink(), "cannot be downloaded: FileNotFoundError"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "cannot be downloaded: ValueError"),
    ],
)
def test_an_altered_engine_is_refused_and_the_next_one_taken(
    released: Released, change: Callable[[Path], object], problem: str
) -> None:
    change(released.path / "net/fast/1.1/engine.onnx")
    result = released.resolve()
    assert (Path(result) / "engine.onnx").read_bytes() == SLOW
    (refusal,) = result.decision.refusals
    assert problem in str(refusal.reasons[0])
    assert "net:fast  refused:" in str(result)
    shutil.rmtree(released.path / "net/slow")
    with pytest.raises(EngineError, match=r"no engine of the release 1\.1.*net:fast: net/fast/1"):
        released.resolve(folder=released.cache.with_name("new"))


def index(change: Callable[[dict[str, Any]], object]) -> Callable[[Released], object]:
    return lambda released: released.edit("releases/1.1.json", change)


def variant(**fields: Any) -> Callable[[Released], object]:
    return index(lambda document: document["variants"][0].update(fields))


def copy(source: str, target: str) -> Callable[[Released], object]:
    return lambda released: shutil.copy(released.path / source, released.path / target)


def write(name: str, content: bytes) -> Callable[[Released], object]:
    return lambda released: (released.path / name).write_bytes(content)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (variant(error=0.0), "releases/1.1.json was altered after it was signed"),
        (index(lambda d: d.pop("attestation")), "releases/1.1.json is not signed"),
        (
            copy("releases/1.0.json", "releases/1.1.json"),
            "1.1.json has a signed statement that b",
        ),
        (copy("channels/stable.json", "releases/1.1.json"), "releases/1.1.json has a signed stat"),
        (copy("channels/stable.json", "channels/canary.json"), None),
        (write("channels/stable.json", b"{"), "channels/stable is damaged: Expecting property"),
        (write("channels/stable.json", b"[" * 10**5), "channels/stable is damaged: "),
        (write("channels/stable.json", b"[NaN]"), "is damaged: NaN is not a JSON number"),
        (write("channels/stable.json", b" " * (8 << 20) + b"[]"), "more than 8 MiB"),
        (
            lambda r: (r.path / "channels/stable.json").unlink(),
            "there is no .*s/stable.json",
        ),
        (lambda r: (r.path / "releases/1.1.json").unlink(), "there is no .*releases/1.1.json"),
    ],
)
def test_a_forged_or_damaged_document_is_refused(
    released: Released, change: Callable[[Released], object], problem: str | None
) -> None:
    change(released)
    channel = "stable" if problem else "canary"
    with pytest.raises(EngineError, match=problem or "channels/canary has a signed statement"):
        released.resolve(channel=channel)
    assert not released.cache.exists() or [*released.cache.iterdir()] == [
        released.cache / "channels"
    ]


FILE = {"bytes": 3, "sha256": "0" * 64}
RECORD = {"engine.json": FILE}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            variant(files={**RECORD, "../../x": FILE}),
            r"refers to '../../x', which is not in",
        ),
        (variant(files={**RECORD, "a/b": FILE}), "refers to 'a/b'"),
        (variant(files={}), "has 0 files, or no engine.json"),
        (variant(files={"engine.json": {**FILE, "bytes": -1}}), "is -1, not an integer from 0"),
        (variant(files={"engine.json": {**FILE, "bytes": True}}), "is True, not an integer"),
        (variant(files={"engine.json": {**FILE, "bytes": 10**300}}), "not an integer from 0"),
        (variant(files={"engine.json": {**FILE, "sha256": "x"}}), "sha256 of engine.json .* 'x'"),
        (variant(model="../net"), "model is '../net'"),
        (variant(engine="slow"), "it has an engine twice"),
        (variant(backend="os.path"), "the backend of net:fast is 'os.path'"),
        (variant(measured=[{"device": {"kind": "cpu", "name": "x"}}]), "has no p50_ms"),
        (variant(measured=[{"device": 5, "p50_ms": 1}]), "a device of net:fast is not a JSON obj"),
        (variant(error="small"), "the error of net:fast is 'small', not a number from 0"),
        (variant(rules=[]), "rules of net:fast is not a JSON object"),
        (index(lambda d: d.update(variants={})), "variants is not a list"),
        (index(lambda d: d.update(variants=[5])), "a variant is not a JSON object"),
        (index(lambda d: d.update(release="1.0")), "it is the index of '1.0'"),
        (index(lambda d: d.update(schema="buildsys/release/9")), "use a newer buildsys"),
        (index(lambda d: d.pop("published")), "1.1.json is not the index that channels/stable na"),
    ],
)
def test_a_wrong_index_is_refused_without_signatures(
    released: Released, change: Callable[[Released], object], problem: str
) -> None:
    change(released)
    with pytest.raises(EngineError, match=problem):
        released.resolve(trusted_keys=None)


def test_an_engine_larger_than_the_disk_is_refused_before_its_download(released: Released) -> None:
    files = {"engine.json": FILE, "engine.onnx": {**FILE, "bytes": 1 << 52}}
    variant(files=files)(released)
    result = released.resolve(release="1.1", trusted_keys=None)
    assert "and " in str(result.decision.refusals[0].reasons[0])
    assert "has room for" in str(result.decision.refusals[0].reasons[0])
    assert (Path(result) / "engine.onnx").read_bytes() == SLOW


def test_an_older_pointer_than_before_is_refused(released: Released) -> None:
    older = (released.path / "channels/stable/1.json").read_bytes()
    with_key = Path(released.resolve())
    (released.path / "channels/stable.json").write_bytes(older)
    with pytest.raises(EngineError, match=r"serial 1 with 1\.0, but serial 2 with 1\.1 was s"):
        released.resolve()
    elsewhere = released.resolve(folder=released.cache.with_name("new"))  # it cannot know
    assert elsewhere.index.release == "1.0"
    assert with_key.exists()


def test_keys_are_checked_before_anything_is_read(released: Released) -> None:
    other = generate_key(released.path.parent / "other.pem")
    with pytest.raises(EngineError, match="is not signed by a trusted key, but by ed25519:"):
        released.resolve(trusted_keys=[other])
    with pytest.raises(EngineError, match="is signed by the revoked key"):
        released.resolve(revoked_keys=[released.public])
    with pytest.raises(EngineError, match=r"wrong keys: 'x' is not a public key"):
        released.resolve(trusted_keys=["x"])
    with pytest.raises(EngineError, match=r"'\.\./x' is not a valid name of a chan"):
        released.resolve(channel="../x")


def test_a_release_with_a_changed_engine_json_of_another_is_refused_by_its_maker(
    released: Released, tmp_path: Path
) -> None:
    publish_engine(released.folder, tmp_path / "built", "2.0", "a")
    record = released.path / "net/a/2.0/engine.json"
    record.write_text(json.dumps(engine_record(BIG)))
    with pytest.raises(Exception, match=r"net/a/2\.0/engine\.json is not what was published"):
        release_engines(released.folder, "2.0", released.key)
    version = released.path / "net/a/2.0/version.json"
    document = json.loads(version.read_text())
    document["files"]["engine.json"]["sha256"] = sha256_of(record)
    version.write_text(json.dumps(document))
    with pytest.raises(Exception, match=r"net/a/2\.0 has other files than its engine\.json says"):
        release_engines(released.folder, "2.0", released.key)
    assert not (released.path / "releases/2.0.json").exists()


def test_it_needs_the_standard_library_only(released: Released, tmp_path: Path) -> None:
    code = (
        "import sys, buildsys\n"
        "r = buildsys.resolve(sys.argv[1], folder=sys.argv[2], download=False)\n"
        "assert not r.decision.choices and len(r.decision.refusals) == 2\n"
        "print({n.partition('.')[0] for n in sys.modules} - {*sys.stdlib_module_names})"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(released.path), str(tmp_path / "other")],
        capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert set(eval(done.stdout)) <= {"buildsys", "__main__", "_distutils_hack", "sitecustomize"}
    done = subprocess.run(
        [sys.executable, "-S", "-m", "buildsys.release", str(released.path)],
        capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    assert "net:fast  refused:\n       ONNX Runtime is not installed here" in done.stdout
