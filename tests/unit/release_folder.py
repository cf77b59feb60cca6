"""Releases in a folder: engines of ONNX Runtime with records, but no real graph."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildsys.deploy.versions import EngineVersion, VersionFile, publish_version
from buildsys.release.channels import PROMOTE, Pointer, change_channel
from buildsys.release.index import Index
from buildsys.release.making import document_signer, find_release, make_release
from buildsys.store.file_digests import hash_file
from buildsys.store.ledger import OutputFile
from buildsys.store.remote_folder import RemoteFolder
from buildsys.store.signatures import SigningKey
from buildsys.system.cpu import cpu_model
from buildsys.system.engine_files import content_digest
from buildsys.system.signatures import TrustedKeys

GRAPH = b"graph" * 50


def engine_record(content: bytes = GRAPH, **changes: Any) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {
        "backend": "onnxruntime",
        "status": "passed",
        "settings": {"precision": "fp32", "graph_optimization_level": "extended"},
        "built_with": {"onnxruntime": "1.20.0"},
        "device": {"kind": "cpu", "name": cpu_model()},
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["n", 8]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": ["n", 4]}],
        "files": {"engine.onnx": {"bytes": len(content), "sha256": digest}},
        **changes,
    }


def bench_result(p50_ms: float, **dims: int) -> dict[str, Any]:
    own = {"p50_ms": p50_ms, "p50_interval_ms": [p50_ms, p50_ms], "count": 100}
    case = {"dims": dims, "batch": 1, "contenders": {"engine": own}}
    return {"stage": "bench", "status": "passed", "cases": {"opt": case}}


def publish_engine(
    folder: RemoteFolder,
    built: Path,
    release: str,
    name: str = "ort",
    *,
    content: bytes = GRAPH,
    model: str = "net",
    results: Mapping[str, Any] | None = None,
    **record: Any,
) -> None:
    """Publish an engine with results as `buildsys publish` does."""
    files: dict[str, bytes] = {"engine.onnx": content}
    files["engine.json"] = json.dumps(engine_record(content, **record)).encode()
    for stage, result in (results or {}).items():
        files[f"reports/{stage}.json"] = json.dumps(result).encode()
    versions = {}
    for file, text in files.items():
        path = built / release / model / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        versions[file] = VersionFile(path, OutputFile(hash_file(str(path)).digest, len(text)))
    publish_version(folder, EngineVersion(model, name, release, versions, {}))


def release_engines(
    folder: RemoteFolder, release: str, key: SigningKey | None = None, keys: Any = None
) -> Index:
    return make_release(folder, release, ["net"], document_signer(key), keys)[0]


def promote(
    folder: RemoteFolder,
    release: str,
    channel: str = "stable",
    key: SigningKey | None = None,
    keys: TrustedKeys | None = None,
) -> Pointer:
    index = find_release(folder, release, keys)
    assert index is not None
    change = PROMOTE, release, content_digest(index.document)
    return change_channel(folder, channel, lambda _: change, document_signer(key), keys)
