"""The index of a release: its engines, with all that a choice among them needs.

``releases/RELEASE.json`` names the engines published as ``MODEL/ENGINE/RELEASE``. It is written
last, so a release is complete or absent. Standard library only.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from buildsys.errors import EngineError
from buildsys.release.documents import (
    MAX_BYTES,
    NAME,
    SHA256,
    WrongDocument,
    integer_of,
    map_of,
    number_of,
    read_document,
    text_of,
)
from buildsys.system.backend_registry import Record
from buildsys.system.engine_files import RECORD_NAME, is_file_name
from buildsys.system.signatures import TrustedKeys

if TYPE_CHECKING:
    from buildsys.store.remote_folder import RemoteFolder

SCHEMA = "buildsys/release/1"
RULE_FIELDS = (  # of engine.json: what the rules of backends read
    "settings", "built_with", "toolchain", "portability", "provider_libraries",
    "precision_shares", "specification",
)  # fmt: skip
_MOST_VARIANTS, _MOST_FILES = 10_000, 1000
_BACKEND = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Measurement:
    """The latency of an engine on a device, in its main case."""

    kind: str  # of the device: cpu, gpu or xpu
    device: str
    p50_ms: float


@dataclass(frozen=True)
class Variant:
    """An engine of a release."""

    model: str
    engine: str
    backend: str
    precision: str
    files: Mapping[str, tuple[int, str]]  # name -> bytes and SHA-256
    rules: Mapping[str, Any] = field(repr=False)  # the RULE_FIELDS of its engine.json
    measured: tuple[Measurement, ...] = ()
    error: float | None = None  # the largest relative one of verify
    accuracy: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The engine as MODEL:ENGINE."""
        return f"{self.model}:{self.engine}"

    @property
    def record(self) -> Record:
        """The part of its engine.json that decides where it runs."""
        return Record(self.backend, self.rules)

    @property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(size for size, _ in self.files.values())


@dataclass(frozen=True)
class Index:
    """A release."""

    release: str
    variants: tuple[Variant, ...]
    published: str = ""
    signed_by: str = ""
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def place(self, variant: Variant) -> str:
        """Return the folder of an engine below the URL."""
        return f"{variant.model}/{variant.engine}/{self.release}"


def index_name(release: str) -> str:
    """Return the path of a release's index below the URL."""
    return f"releases/{release}.json"


def read_index(content: bytes, release: str, keys: TrustedKeys | None) -> Index:
    """Parse the index of a release.

    Raises: EngineError: it is damaged, of another release, or not signed by a trusted key.
    """
    name = index_name(release)
    document, signer = read_document(content, name, SCHEMA, keys)
    try:
        if text_of(document.get("release"), "its release") != release:
            raise WrongDocument(f"it is the index of {document['release']!a:.100}")
        entries = document.get("variants")
        if not isinstance(entries, list) or len(entries) > _MOST_VARIANTS:
            raise WrongDocument(f"variants is not a list of at most {_MOST_VARIANTS}")
        variants = tuple(map(_variant, entries))
        published = text_of(document.get("published", ""), "published")
        if len({variant.name for variant in variants}) < len(variants):
            raise WrongDocument("it has an engine twice")
    except WrongDocument as error:
        hint = "publish it again, or take another release"
        raise EngineError(f"{name} is not a valid index: {error}", hint) from None
    return Index(release, variants, published, signer, document)


def load_index(folder: "RemoteFolder", path: str, release: str, keys: TrustedKeys | None) -> Index:
    """Read the index of a release from ``path`` below a URL.

    Raises: EngineError: as ``read_index``. FileNotFoundError. Exception: a problem of the place.
    """
    with folder.open_to_read(path) as reader:
        return read_index(reader.read(MAX_BYTES), release, keys)


def _variant(entry: object) -> Variant:
    fields = map_of(entry, "a variant")
    names = {key: text_of(fields.get(key), key, NAME) for key in ("model", "engine")}
    where = f"{names['model']}:{names['engine']}"
    files = {
        name: _file(name, facts, where)
        for name, facts in map_of(fields.get("files"), f"files of {where}").items()
    }
    if RECORD_NAME not in files or len(files) > _MOST_FILES:
        raise WrongDocument(f"{where} has {len(files)} files, or no {RECORD_NAME} among them")
    rules = {
        key: value
        for key, value in map_of(fields.get("rules"), f"rules of {where}").items()
        if key in RULE_FIELDS
    }
    measured = fields.get("measured", [])
    if not isinstance(measured, list):
        raise WrongDocument(f"measured of {where} is not a list")
    return Variant(
        **names,
        backend=text_of(fields.get("backend"), f"the backend of {where}", _BACKEND),
        precision=text_of(fields.get("precision", ""), f"the precision of {where}"),
        files=files,
        rules=rules,
        measured=tuple(_measurement(one, where) for one in measured),
        error=number_of(fields.get("error"), f"the error of {where}"),
        accuracy=map_of(fields.get("accuracy", {}), f"the accuracy of {where}"),
        document=fields,
    )


def _file(name: str, facts: object, where: str) -> tuple[int, str]:
    if not is_file_name(name) or len(name) > 255 or not name.isprintable():
        raise WrongDocument(f"{where} refers to {name!a:.100}, which is not in its folder")
    fields = map_of(facts, f"the file {name} of {where}")
    size = integer_of(fields.get("bytes"), f"bytes of {name} of {where}")
    return size, text_of(fields.get("sha256"), f"sha256 of {name} of {where}", SHA256)


def _measurement(entry: object, where: str) -> Measurement:
    fields = map_of(entry, f"a measurement of {where}")
    p50_ms = number_of(fields.get("p50_ms"), f"p50_ms of {where}")
    if p50_ms is None:
        raise WrongDocument(f"a measurement of {where} has no p50_ms")
    device = map_of(fields.get("device"), f"a device of {where}")
    kind = text_of(device.get("kind"), f"the kind of a device of {where}")
    return Measurement(kind, text_of(device.get("name"), f"a device of {where}"), p50_ms)
