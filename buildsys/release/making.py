"""A release of published engines: its index, made from their records and reports."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from buildsys.deploy.versions import CHECKSUMS, PROVENANCE, read_version
from buildsys.errors import StageError
from buildsys.history.builds import build_figures
from buildsys.release.documents import sign_document, to_json
from buildsys.release.index import RULE_FIELDS, SCHEMA, Index, index_name, load_index, read_index
from buildsys.stages.bench.result import engine_contender
from buildsys.stages.table import BENCH, VERIFY
from buildsys.store.ledger import utc_now
from buildsys.store.remote_folder import RemoteFolder
from buildsys.store.signatures import SigningKey
from buildsys.system.backend_registry import Reason, Record, describe_backend
from buildsys.system.engine_files import (
    RECORD_NAME,
    is_file_name,
    signer_of,
)
from buildsys.system.signatures import PREFIX, TrustedKeys

_OTHERS = (PROVENANCE, CHECKSUMS)  # files of a version that no engine needs
_MAX_RESULT_BYTES = 64 << 20
_DEVICE = ("platform", "gpu", "compute_capability", "driver", "cpu", "instructions")
_ACCURACY = ("title", "value", "original", "loss", "low", "high", "samples", "is_share")
Signed = Callable[[Mapping[str, Any], str], Mapping[str, Any]]


def make_release(
    folder: RemoteFolder,
    release: str,
    models: Iterable[str],
    signed: Signed,
    keys: TrustedKeys | None,
) -> tuple[Index, bool]:
    """Write the index of all engines of ``models`` published under a release's name.

    Return it, and False if it was there already. With ``keys``, each engine must be signed by a
    trusted one: others may have published it.
    Raises: StageError: an engine is damaged or not trusted, or the release has other engines.
    """
    name = index_name(release)
    models = sorted(set(models))
    variants = [
        _variant(folder, model, engine, release, document, keys)
        for model in models
        for engine in folder.names(model, "directory")
        if (document := read_version(folder, f"{model}/{engine}/{release}"))
    ]
    document = {"schema": SCHEMA, "release": release, "variants": variants}
    content = to_json(signed({**document, "published": utc_now()}, name))
    index = read_index(content, release, None)  # before anyone else reads it
    try:
        folder.create(name, content)
    except FileExistsError:
        existing = find_release(folder, release, keys)
        theirs = dict(existing.document) if existing else {}
        if existing and {**theirs, **document} == theirs:
            return existing, False
        raise _other(release, "with other engines") from None
    return index, True


def find_release(folder: RemoteFolder, release: str, keys: TrustedKeys | None) -> Index | None:
    """Read the index of a release, None without it.

    Raises: EngineError: it is damaged, or not signed by a trusted key.
    """
    try:
        return load_index(folder, index_name(release), release, keys)
    except FileNotFoundError:
        return None


def check_release(
    folder: RemoteFolder, release: str, engines: Iterable[str], keys: TrustedKeys | None
) -> None:
    """Refuse to publish engines under a complete release without them.

    Raises: StageError: there is such a release.
    """
    index = find_release(folder, release, keys)
    present = {variant.name for variant in index.variants} if index else {*engines}
    if missing := sorted({*engines} - present):
        raise _other(release, f"without {', '.join(missing)}")


def _other(release: str, how: str) -> StageError:
    problem = f"the release {release} exists already, {how}"
    return StageError(problem, "releases never change; choose another --release")


def document_signer(key: SigningKey | None) -> Signed:
    """Return the function that signs documents, or leaves them unsigned without a key."""
    if key is None:
        return lambda document, _: document
    builder = base64.b64decode(key.public_key.removeprefix(PREFIX)).hex()
    identity = f"urn:buildsys:builder:{builder}"
    return lambda document, name: sign_document(document, name, identity, key.sign_statement)


def _variant(
    folder: RemoteFolder,
    model: str,
    engine: str,
    release: str,
    version: Mapping[str, Any],
    keys: TrustedKeys | None,
) -> dict[str, Any]:
    """Describe an engine by its published files."""
    place, files = f"{model}/{engine}/{release}", version["files"]

    def read(name: str) -> dict[str, Any]:
        if name not in files:
            return {}
        with folder.open_to_read(f"{place}/{name}") as reader:
            content: bytes = reader.read(_MAX_RESULT_BYTES)
        if hashlib.sha256(content).hexdigest() != files[name].get("sha256"):
            hint = f"remove {place} and publish it again"
            raise StageError(f"{place}/{name} is not what was published", hint)
        figures: dict[str, Any] = json.loads(content)
        return figures

    figures = read(RECORD_NAME)
    if not figures:
        raise StageError(f"{place} has no {RECORD_NAME}", f"remove {place} and publish it again")
    record = Record(figures["backend"], figures)
    signer = "" if keys is None else signer_of(record, keys)
    if isinstance(signer, Reason):
        raise StageError(f"{place}: {signer.problem}", signer.remedy)
    published = {name: file.get("sha256") for name, file in files.items()}
    if any(published.get(name) != file.get("sha256") for name, file in record.files.items()):
        hint = f"remove {place} and publish it again"
        raise StageError(f"{place} has other files than its {RECORD_NAME} says", hint)
    verified = build_figures(VERIFY, read("reports/verify.json"))
    evaluated = read("reports/evaluate.json")
    module = describe_backend(record.backend).module
    built = record.map("built_with")
    floors = {
        "library": f"{module} {built.get(module, '')}".strip(),
        "cuda": built.get("cuda_runtime"),
    }
    return {
        "model": model,
        "engine": engine,
        "backend": record.backend,
        "precision": str(record.map("settings").get("precision") or ""),
        "device": {name: built[name] for name in _DEVICE if name in built},
        "floors": {what: floor for what, floor in floors.items() if floor},
        "files": {
            name: {"bytes": file["bytes"], "sha256": file["sha256"]}
            for name, file in files.items()
            if is_file_name(name) and name not in _OTHERS
        },
        "rules": {field: figures[field] for field in RULE_FIELDS if field in figures},
        "measured": _measured(read("reports/bench.json"), record),
        "error": verified.get("relative"),
        "accuracy": {name: evaluated[name] for name in _ACCURACY if name in evaluated},
    }  # fmt: skip


def _measured(bench: Mapping[str, Any], record: Record) -> list[dict[str, Any]]:
    """List the latencies of a benchmark with its device, none if they are not steady."""
    figures = build_figures(BENCH, bench) if bench else {}
    device = record.map("device")
    if figures.get("latency_p50_ms") is None or figures.get("noisy") or not device.get("name"):
        return []
    cases = {}
    for name, case in bench["cases"].items():
        own = case["contenders"].get(engine_contender(case["contenders"]), {})
        if own.get("p50_ms") and not own.get("noisy"):
            facts = {"dims": case.get("dims", {}), "batch": case.get("batch")}
            cases[name] = {**facts, "p50_ms": own["p50_ms"]}
    return [
        {
            "device": {"kind": device.get("kind"), "name": device["name"]},
            "case": figures["case"],
            "p50_ms": figures["latency_p50_ms"],
            "interval_ms": figures.get("latency_interval_ms"),
            "cases": cases,
        }
    ]
