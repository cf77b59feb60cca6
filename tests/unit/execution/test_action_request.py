"""Requests of single targets: round trip, and documents that nobody should believe."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from tiny_project import BENCH, ENGINE, EXPORT, actions, make_executor, make_project

from buildsys.errors import TemporaryError, UsageError
from buildsys.execution.action_request import (
    ActionRequest,
    check_machine,
    decode_request,
    encode_request,
    load_request,
    make_request,
    materialize,
    sign_request,
)
from buildsys.plan.action import BaselineRef, ToolchainRef
from buildsys.store.file_digests import DigestCache
from buildsys.store.ledger import OutputFile
from buildsys.store.object_store import Store, object_name
from buildsys.store.record_file import MAX_SHARED_BYTES
from buildsys.store.shared_cache import READ_WRITE, SharedCache
from buildsys.store.signatures import NO_POLICY, SigningKey, TrustPolicy, generate_key
from buildsys.store.state_db import MemoryStateDb


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


@pytest.fixture
def shared(tmp_path: Path) -> SharedCache:
    (tmp_path / "shared").mkdir()
    return SharedCache(str(tmp_path / "shared"), print, mode=READ_WRITE, required=True)


@pytest.fixture
def digests(tmp_path: Path) -> Iterator[DigestCache]:
    db = MemoryStateDb(tmp_path / "state.db")
    yield DigestCache(db)
    db.close()


def request_of(root: Path, target: str = EXPORT, **changes: Any) -> ActionRequest:
    action = replace(actions()[target], **changes)
    executor, _ = make_executor(root, {target: action})
    key = executor.examine(target).key
    executor.close()
    assert key is not None
    store = Store(root / ".buildsys/store")
    return make_request(action, key, root, root / "build", store)


def push(root: Path, shared: SharedCache, request: ActionRequest) -> str:
    content = encode_request(request)
    own = OutputFile(blake3(content).hexdigest(), len(content))
    store = Store(root / ".buildsys/store")
    store.add(own, [content])
    shared.push_objects([*request.objects, own], store)
    return own.digest


def test_a_request_holds_what_the_key_depends_on(root: Path) -> None:
    request = request_of(root)
    assert list(request.files) == ["blocks.py", "net.py"]
    assert request.inputs == {}
    assert "source:blocks.py" in request.parts
    again = decode_request(encode_request(request))
    assert again == request
    assert list(again.action.outputs) == list(request.action.outputs)  # roles keep their order


def test_the_same_state_gives_the_same_request(root: Path) -> None:
    assert encode_request(request_of(root)) == encode_request(request_of(root))


def test_inputs_and_advisory_files_travel(root: Path) -> None:
    model = root / "build/m/export/model.onnx"
    model.parent.mkdir(parents=True)
    model.write_text("a model")
    request = request_of(
        root, ENGINE, advisory={"hints": replace(actions()[ENGINE].inputs["model"])}
    )
    assert list(request.inputs) == ["m/export/model.onnx"]
    assert request.files == {}


def test_a_materialized_request_has_the_same_key(
    root: Path, shared: SharedCache, digests: DigestCache, tmp_path: Path
) -> None:
    request = load_request(shared, push(root, shared, request_of(root)), NO_POLICY)
    there = tmp_path / "there"
    materialize(request, shared, Store(there / ".buildsys/store"), there, digests)
    executor, _ = make_executor(there, {EXPORT: request.action})
    key = executor.examine(EXPORT).key
    executor.close()
    assert key is not None
    check_machine(request, key)


def test_files_of_another_request_stay_if_both_have_them(
    root: Path, shared: SharedCache, digests: DigestCache, tmp_path: Path
) -> None:
    first = load_request(shared, push(root, shared, request_of(root)), NO_POLICY)
    there = tmp_path / "there"
    store = Store(there / ".buildsys/store")
    materialize(first, shared, store, there, digests)
    before = (there / "net.py").stat()

    (there / "build/m").mkdir(parents=True)
    (there / "build/m/output").write_text("of the first target")
    (there / "build/m/link").symlink_to(there / "net.py")
    (there / "build/m/folder").symlink_to(tmp_path)
    materialize(first, shared, store, there, digests)
    assert (there / "net.py").stat() == before
    left = {str(file.relative_to(there)) for file in there.rglob("*") if not file.is_dir()}
    assert {name for name in left if not name.startswith(".buildsys")} == {*first.files}
    assert (tmp_path / "shared").exists()


@pytest.mark.parametrize("change", ["edited", "replaced", "link", "folder", "removed"])
def test_an_input_that_a_stage_has_changed_is_written_again(
    root: Path, shared: SharedCache, digests: DigestCache, tmp_path: Path, change: str
) -> None:
    request = load_request(shared, push(root, shared, request_of(root)), NO_POLICY)
    there = tmp_path / "there"
    store = Store(there / ".buildsys/store")
    materialize(request, shared, store, there, digests)
    file = there / "net.py"
    content = file.read_bytes()
    time.sleep(0.05)
    materialize(request, shared, store, there, digests)  # its digest is known now
    other = content.replace(b"blocks", b"blokcs")
    assert other != content
    if change == "edited":
        file.write_bytes(other)
        os.utime(file, ns=(0, 0))
    else:
        file.unlink()
    if change == "replaced":
        file.write_bytes(other)
    elif change == "link":
        (tmp_path / "other.py").write_bytes(content)
        file.symlink_to(tmp_path / "other.py")
    elif change == "folder":
        (file / "inner").mkdir(parents=True)
    materialize(request, shared, store, there, digests)
    assert file.read_bytes() == content
    assert not file.is_symlink()


def test_measurements_and_gates_stay_in_their_project(root: Path) -> None:
    with pytest.raises(UsageError, match="measures the machine"):
        request_of(root, BENCH)
    with pytest.raises(UsageError, match="earlier builds of this project"):
        request_of(root, ENGINE, baseline=BaselineRef("m/engine/e/engine.bin", ENGINE))


def test_a_file_outside_the_project_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.txt").write_text("data")
    (root / "inside.txt").write_text("data")
    assert "inside.txt" in request_of(root, reads=("inside.txt",)).files
    with pytest.raises(UsageError, match=r"elsewhere\.txt, which is outside of the project"):
        request_of(root, reads=("../elsewhere.txt",))


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return an edit that sets, or with ``...`` removes, a field of a document."""

    def edit(document: dict[str, Any]) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            document = document[parent]
        if value is ...:
            del document[name]
        else:
            document[name] = value

    return edit


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("schema", "buildsys/action-request/2", "is not an action request"),
        ("schema", ["x"], "is not an action request"),
        ("buildsys", "0.0.1", "was made by buildsys '0.0.1'"),
        ("buildsys", ..., "is not an action request"),
        ("unknown", 1, "not as buildsys writes it"),
        ("action.unknown", 1, "not as buildsys writes it"),
        ("action.stage", "../../x", "no valid name"),
        ("action.stage", "buildsys.stages.validate.stress", "no valid name"),
        ("action.model", "m/../n", "no valid name"),
        ("action.target", "export:n", "'export:n' is not the name of its target"),
        ("action.alone_on_gpu", 0, "not as buildsys writes it"),
        ("action.timeout_s", "5", "not as buildsys writes it"),
        ("action.outputs", {}, "no result"),
        ("action.outputs.result.path", "../../outside.json", "cannot be the name of a file"),
        ("action.outputs.result.path", "/etc/passwd", "cannot be the name of a file"),
        ("action.outputs.result", None, "is not an action request"),
        ("key", "x" * 64, "its key is not a digest"),
        ("parts", {"config:x": 5}, "is not an action request"),
        ("files", {"../net.py": ["a" * 64, 5]}, "cannot be the name of a file"),
        ("files", {"a\0b": ["a" * 64, 5]}, "cannot be the name of a file"),
        ("files", {"\ud800": ["a" * 64, 5]}, "is not an action request"),
        ("files", {"x" * 300: ["a" * 64, 5]}, "cannot be the name of a file"),
        ("files", {"a": ["a" * 64, 5], "a/b": ["a" * 64, 5]}, "is inside another file"),
        ("files", {"build/x": ["a" * 64, 5]}, "in a folder of buildsys"),
        ("files", {".buildsys/state.db": ["a" * 64, 5]}, "in a folder of buildsys"),
        ("files", {"a": ["../../x", 5]}, "is not a digest"),
        ("files", {"a": ["a" * 64, -1]}, "is not a size"),
        ("files", {"a": ["a" * 64, True]}, "not as buildsys writes it"),
        ("inputs", {"a": ["a" * 64]}, "is not an action request"),
        ("inputs", [], "is not an action request"),
    ],
)
def test_an_altered_document_is_refused(root: Path, path: str, value: Any, problem: str) -> None:
    document = json.loads(encode_request(request_of(root)))
    change(path, value)(document)
    with pytest.raises(UsageError) as raised:
        decode_request(json.dumps(document, separators=(",", ":")).encode())
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"schema": 1}'],
    ids=["empty", "cut", "list", "null", "binary", "deep", "number"],
)
def test_other_objects_are_no_requests(content: bytes) -> None:
    with pytest.raises(UsageError, match="is not an action request"):
        decode_request(content)


def test_a_huge_object_is_not_read(root: Path) -> None:
    with pytest.raises(UsageError, match="more than 8 MiB"):
        decode_request(b" " * (MAX_SHARED_BYTES + 1))


def test_missing_and_altered_requests(root: Path, shared: SharedCache, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no request"):
        load_request(shared, "a" * 64, NO_POLICY)
    digest = push(root, shared, request_of(root))
    file = tmp_path / "shared" / object_name(digest)
    file.chmod(0o644)
    file.write_bytes(file.read_bytes().replace(b'"opset":17', b'"opset":18'))
    with pytest.raises(UsageError, match="was altered: it does not match its digest"):
        load_request(shared, digest, NO_POLICY)


@pytest.mark.parametrize("damage", ["gone", "edited"])
def test_an_object_that_is_not_as_requested(
    root: Path, shared: SharedCache, digests: DigestCache, tmp_path: Path, damage: str
) -> None:
    request = request_of(root)
    push(root, shared, request)
    file = tmp_path / "shared" / object_name(request.files["net.py"].digest)
    if damage == "gone":
        file.unlink()
    else:
        file.chmod(0o644)
        file.write_bytes(file.read_bytes().replace(b"blocks", b"blokcs"))
    there = tmp_path / "there"
    with pytest.raises(UsageError, match=r"has no valid net\.py of the request; remove the object"):
        materialize(request, shared, Store(there / ".buildsys/store"), there, digests)


def test_a_required_cache_raises(root: Path, tmp_path: Path) -> None:
    request = request_of(root)
    nowhere = SharedCache(str(tmp_path / "nowhere"), print, mode=READ_WRITE, required=True)
    with pytest.raises(TemporaryError, match="there is no such folder"):
        push(root, nowhere, request)
    with pytest.raises(TemporaryError, match="could not look up"):
        load_request(nowhere, "a" * 64, NO_POLICY)
    (tmp_path / "a-file").touch()
    below = SharedCache(str(tmp_path / "a-file/below"), print, mode=READ_WRITE, required=True)
    with pytest.raises(TemporaryError, match="could not write a file"):
        below.check_writable()


def test_a_check_of_the_cache_leaves_nothing(shared: SharedCache, tmp_path: Path) -> None:
    shared.check_writable()
    assert [path for path in (tmp_path / "shared").rglob("*") if path.is_file()] == []


def test_only_trusted_keys_may_request(root: Path, shared: SharedCache, tmp_path: Path) -> None:
    public = [generate_key(tmp_path / f"{name}.pem") for name in "ab"]
    plain = request_of(root)
    ours = sign_request(plain, SigningKey(tmp_path / "a.pem"))
    digest = push(root, shared, ours)
    assert load_request(shared, digest, TrustPolicy(public[:1])).signature is not None
    assert load_request(shared, digest, NO_POLICY) == ours
    with pytest.raises(UsageError, match="is not signed by a trusted key"):
        load_request(shared, digest, TrustPolicy(public[1:]))
    with pytest.raises(UsageError, match="is not signed;"):
        load_request(shared, push(root, shared, plain), TrustPolicy(public))
    forged = replace(ours, action=replace(ours.action, timeout_s=5.0))
    with pytest.raises(UsageError, match="does not match its signature"):
        load_request(shared, push(root, shared, forged), TrustPolicy(public[:1]))


def test_another_machine_is_named_by_its_differences(root: Path) -> None:
    request = request_of(root)
    executor, _ = make_executor(root)
    key = executor.examine(EXPORT).key
    executor.close()
    assert key is not None
    check_machine(request, key)
    parts = {
        **request.parts,
        "tool:torch": "2.10.0",
        "device:gpu.name": "H100",
        "code:buildsys.errors": "a" * 64,
        "env:OMP_NUM_THREADS": "4",
    }
    there = replace(key, make_parts=lambda: {**request.parts, "tool:torch": "2.11.0"})
    toolchain = ToolchainRef("trt-10", "venvs/trt/bin/python")
    action = replace(request.action, toolchain=toolchain)
    with pytest.raises(UsageError) as raised:
        check_machine(replace(request, action=action, parts=parts), there)
    text = str(raised.value)
    for words in (
        "torch 2.10.0 → 2.11.0",
        "device gpu.name: H100 → unset",
        "env OMP_NUM_THREADS: 4 → unset",
        "other code of buildsys",
        "BUILDSYS_TOOLCHAIN_TRT_10",
    ):
        assert words in text
    with pytest.raises(UsageError, match="the digest of the key"):
        check_machine(replace(request, key="a" * 64), key)
