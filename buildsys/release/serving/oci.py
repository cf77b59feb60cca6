"""OCI artifacts in the format of ModelPack: an image layout, and its upload to a registry.

Source: CNCF model-spec 1, specs-go/v1; OCI image-spec, "Image Layout".
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from buildsys.errors import StageError, Unavailable
from buildsys.release.serving import ServedEngine
from buildsys.release.serving.card import model_card
from buildsys.system.files import sha256_of

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_MODEL = "application/vnd.cncf.model"
_FILE_PATH = "org.cncf.model.filepath"
_TITLE = "org.opencontainers.image"
_TIMEOUT_S = 30.0
Descriptor = dict[str, Any]


def write_layout(engines: Sequence[ServedEngine], folder: Path) -> dict[str, str]:
    """Write the image layout of engines into a new folder; return their tags by name."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    manifests, tags = [], {}
    for engine in engines:
        tags[engine.variant.name] = tag = tag_of(engine)
        manifest = _blob(blobs, _MANIFEST, _to_json(_manifest(engine, blobs)))
        manifests.append({**manifest, "annotations": {f"{_TITLE}.ref.name": tag}})
    index = {
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    }  # fmt: skip
    (folder / "index.json").write_bytes(_to_json(index))
    (folder / "oci-layout").write_bytes(_to_json({"imageLayoutVersion": "1.0.0"}))
    return tags


def tag_of(engine: ServedEngine) -> str:
    """Return the tag of an engine; + is not allowed there."""
    variant = engine.variant
    return f"{variant.model}-{variant.engine}-{engine.release}".replace("+", "_")[:128]


def push_layout(folder: Path, repository: str, *, insecure: bool) -> list[str]:
    """Upload all artifacts of a layout; return their references.

    Raises: Unavailable: the package oras is missing. StageError: the registry refuses.
    """
    try:
        from oras.provider import Registry
    except ImportError as error:
        hint = "pip install 'buildsys[oci]'"
        raise Unavailable("oras is not installed, which uploads artifacts", hint) from error
    registry, references = Registry(insecure=insecure), []
    blobs = folder / "blobs" / "sha256"
    try:
        host = repository.partition("/")[0]  # oras would try for minutes
        registry.session.get(f"{registry.prefix}://{host}/v2/", timeout=_TIMEOUT_S)
        for entry in json.loads((folder / "index.json").read_bytes())["manifests"]:
            reference = f"{repository}:{entry['annotations'][f'{_TITLE}.ref.name']}"
            container = registry.get_container(reference)
            registry.auth.load_configs(container)
            manifest = json.loads((blobs / entry["digest"].partition(":")[2]).read_bytes())
            for layer in (manifest["config"], *manifest["layers"]):
                blob = str(blobs / layer["digest"].partition(":")[2])
                registry.upload_blob(blob, container, layer).raise_for_status()
            registry.upload_manifest(manifest, container).raise_for_status()
            references.append(f"{reference}@{entry['digest']}")
    except Exception as error:  # of requests, jsonschema or oras
        problem = " ".join(f"cannot upload to {repository}: {error}".split())
        raise StageError(problem, "check the registry and `docker login`") from error
    return references


def _manifest(engine: ServedEngine, blobs: Path) -> dict[str, Any]:
    """Write the files of an engine as blobs; describe them."""
    variant, files = engine.variant, [*engine.figures["files"]]
    others = [name for name in variant.files if name not in files]
    layers = [_layer(blobs, engine.folder / name, f"{_MODEL}.weight.v1.raw") for name in files]
    layers += [
        _layer(blobs, engine.folder / name, f"{_MODEL}.weight.config.v1.raw") for name in others
    ]
    card = engine.folder / "README.md"
    card.write_text(model_card([engine]), encoding="utf-8")
    layers.append(_layer(blobs, card, f"{_MODEL}.doc.v1.raw"))
    config = {
        "descriptor": {"name": variant.model, "title": variant.name, "version": engine.release},
        "config": {"format": variant.backend, "precision": variant.precision},
        "modelfs": {"type": "layers", "diffIds": [layer["digest"] for layer in layers]},
    }
    return {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "artifactType": f"{_MODEL}.manifest.v1+json",
        "config": _blob(blobs, f"{_MODEL}.config.v1+json", _to_json(config)),
        "layers": layers,
        "annotations": {f"{_TITLE}.title": variant.name, f"{_TITLE}.version": engine.release},
    }


def _layer(blobs: Path, file: Path, media_type: str) -> Descriptor:
    digest = sha256_of(file)
    if not (blobs / digest).exists():
        shutil.copyfile(file, blobs / digest)
    names = {_FILE_PATH: file.name, f"{_TITLE}.title": file.name}  # the latter is read by oras
    facts = {"digest": f"sha256:{digest}", "size": file.stat().st_size}
    return {"mediaType": media_type, **facts, "annotations": names}


def _blob(blobs: Path, media_type: str, content: bytes) -> Descriptor:
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _to_json(document: Mapping[str, Any]) -> bytes:
    """Write JSON as oras uploads it, so that the digests of manifests are the same."""
    return json.dumps(document).encode()
