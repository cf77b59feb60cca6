"""SLSA provenance of built targets, as in-toto statements.

The formats are published: in-toto.io/Statement/v1 and slsa.dev/provenance/v1. Statements hold no
paths outside of the project and no values of variables: engines carry theirs to other machines.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from buildsys import __version__
from buildsys.errors import BuildsysError, StageError
from buildsys.execution.key_parts import FILES
from buildsys.plan.action import RESULT, Action
from buildsys.stages.table import ENGINE
from buildsys.store.ledger import ActionRecord, utc_now
from buildsys.store.record_file import signed_bytes
from buildsys.store.signatures import RECORD
from buildsys.system.engine_files import ENVELOPE, RECORD_NAME, content_digest
from buildsys.system.signatures import (
    PREFIX,
    PROVENANCE_TYPE,
    STATEMENT_TYPE,
    described,
    make_envelope,
)

if TYPE_CHECKING:
    from buildsys.execution.action_key import ActionKey
    from buildsys.store.signatures import SigningKey
    from buildsys.system.git import Checkout

BUILD_TYPE = "urn:buildsys:target:1"
_FILES = ("input", "source", "weights", "read")  # parts with the digest of a file
_DIGEST = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]*")
_HOST = re.compile(r"[\w-]+(\.[\w-]+)+(:\d+)?/")
Descriptor = dict[str, Any]  # a ResourceDescriptor of in-toto


class ProvenanceSigner:
    """Signs what one run builds. Threads may share it.

    ``read_checkout`` returns the state of the project's git checkout, or raises.
    """

    def __init__(
        self,
        key: SigningKey,
        notify: Callable[[str], None],
        read_checkout: Callable[[], Checkout | None] = lambda: None,
    ) -> None:
        self._key = key
        self._notify = notify
        self._read_checkout = read_checkout
        self._invocation = f"urn:uuid:{uuid.uuid4()}"
        self._guard = threading.Lock()
        self._has_key: bool | None = None  # not looked at yet
        self._checkout: Checkout | None = None

    def prepare(self) -> None:
        """Read key and checkout before a long build; warn of an unusable key."""
        with self._guard:
            if self._has_key is not None:
                return
            try:
                self._has_key = bool(self._key.public_key)
            except StageError as error:
                self._has_key = False
                text = f"cannot sign results: {error}"
                self._notify(f"{text}; engines stay unsigned, and nothing is shared")
                return
            with suppress(BuildsysError, OSError):  # without git, or outside of a repository
                self._checkout = self._read_checkout()

    def sign_record(self, record: ActionRecord) -> ActionRecord | None:
        """Sign a record; None with an unusable key."""
        self.prepare()
        if not self._has_key:
            return None
        subjects = [described(n, blake3=file.digest) for n, file in record.files.items()]
        content = described(RECORD, sha256=hashlib.sha256(signed_bytes(record)).hexdigest())
        names = record.target, record.key, record.parts, record.started
        return replace(record, signature=self._envelope(self._statement(*names, subjects, content)))

    def sign_engine(self, action: Action, key: ActionKey, tree: Path, started: str) -> None:
        """Add the envelope to the new ``engine.json`` in ``tree``."""
        from buildsys.workers.result_file import format_figures  # not needed by most runs

        result = tree / action.outputs[RESULT].path
        if action.stage != ENGINE or not self._has_key or not result.is_file():
            return
        figures = json.loads(result.read_text(encoding="utf-8"))
        files = figures["files"].items()
        subjects = [described(name, sha256=facts["sha256"]) for name, facts in files]
        record = described(RECORD_NAME, sha256=content_digest(figures))
        record["annotations"] = {"content": f"JSON without {ENVELOPE}, sorted, without spaces"}
        statement = self._statement(key.target, key.digest, key.parts, started, subjects, record)
        result.write_text(
            format_figures({**figures, ENVELOPE: self._envelope(statement)}), encoding="utf-8"
        )

    def _envelope(self, statement: Mapping[str, Any]) -> dict[str, Any]:
        payload = json.dumps(statement, separators=(",", ":")).encode()
        return make_envelope(payload, self._key.sign_statement(payload))

    def _statement(
        self,
        target: str,
        key: str,
        parts: Mapping[str, str],
        started: str,
        subjects: Sequence[Descriptor],
        record: Descriptor,
    ) -> dict[str, Any]:
        kinds: dict[str, dict[str, str]] = {}
        for label, value in sorted(parts.items()):
            kind, _, name = label.partition(":")
            kinds.setdefault(kind, {})[name] = value
        dependencies = [*_source(self._checkout), *_files(kinds), *_tools(kinds.get("tool", {}))]
        # those who hold the key are the builder that a reader trusts
        builder = base64.b64decode(self._key.public_key.removeprefix(PREFIX))
        return {
            "_type": STATEMENT_TYPE,
            "subject": list(subjects),
            "predicateType": PROVENANCE_TYPE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {"target": target, "options": kinds.get("config", {})},
                    "internalParameters": {"key": key, "devices": kinds.get("device", {})},
                    "resolvedDependencies": dependencies,
                },
                "runDetails": {
                    "builder": {
                        "id": f"urn:buildsys:builder:{builder.hex()}",
                        "version": {"buildsys": __version__, "python": platform.python_version()},
                    },
                    "metadata": {
                        "invocationId": self._invocation,
                        "startedOn": started,
                        "finishedOn": utc_now(),
                    },
                    "byproducts": [record],
                },
            },
        }


def _source(checkout: Checkout | None) -> Iterator[Descriptor]:
    """Yield the git revision of the project, if it has one."""
    if checkout is None or not checkout.revision:
        return
    repository, _, folder = checkout.project.partition("//")
    source: Descriptor = {"name": "source", "digest": {"gitCommit": checkout.revision}}
    if _HOST.match(repository):  # else a folder of the machine
        source["uri"] = f"git+https://{repository}@{checkout.revision}"
    yield {**source, "annotations": {"folder": folder or ".", "uncommitted": bool(checkout.dirty)}}


def _files(kinds: Mapping[str, Mapping[str, str]]) -> Iterator[Descriptor]:
    """Yield the source files of a target."""
    for kind in _FILES:
        for name, value in kinds.get(kind, {}).items():
            digest = value.partition(" ")[0]
            path = PurePosixPath(name)
            if _DIGEST.fullmatch(digest) and not path.is_absolute() and ".." not in path.parts:
                yield {**described(name, blake3=digest), "annotations": {"kind": kind}}


def _tools(tools: Mapping[str, str]) -> Iterator[Descriptor]:
    """Yield the libraries of a build as package URLs."""
    for name, version in tools.items():
        if not name.endswith(FILES) and _VERSION.fullmatch(version):
            kind = "generic" if name == "python" else "pypi"
            name = name.rpartition("/")[2]  # without the name of the toolchain
            yield {"uri": f"pkg:{kind}/{quote(name)}@{quote(version)}"}
