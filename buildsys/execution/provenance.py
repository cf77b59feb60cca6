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
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
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
    """Signs what one run builds.

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

    @cached_property
    def is_usable(self) -> bool:
        """Read key and checkout, before a long build; warn of an unusable key."""
        try:
            _ = self._key.public_key, self._checkout
        except StageError as error:
            text = f"cannot sign results: {error}"
            self._notify(f"{text}; engines stay unsigned, and nothing is shared")
            return False
        return True

    @cached_property
    def _checkout(self) -> Checkout | None:
        with suppress(BuildsysError, OSError):  # without git, or outside of a repository
            return self._read_checkout()
        return None

    def sign_record(self, record: ActionRecord) -> ActionRecord | None:
        """Sign a record; None with an unusable key."""
        if not self.is_usable:
            return None
        subjects = [described(n, blake3=file.digest) for n, file in record.files.items()]
        content = described(RECORD, sha256=hashlib.sha256(signed_bytes(record)).hexdigest())
        names = record.target, record.key, record.parts, record.started
        return replace(record, signature=self._envelope(self._statement(*names, subjects, content)))

    def sign_engine(self, action: Action, key: ActionKey, tree: Path, started: str) -> None:
        """Add the envelope to the new ``engine.json`` in ``tree``."""
        from buildsys.workers.result_file import format_figures  # not needed by most runs

        result = tree / action.outputs[RESULT].path
        if action.stage != ENGINE or not self.is_usable or not result.is_file():
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
                    "resolvedDependencies": [*_dependencies(self._checkout, kinds)],
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


def _dependencies(
    checkout: Checkout | None, kinds: Mapping[str, Mapping[str, str]]
) -> Iterator[Descriptor]:
    """Yield the git revision of the project, source files, and libraries as package URLs."""
    if checkout is not None and checkout.revision:
        repository, _, folder = checkout.project.partition("//")
        source: Descriptor = {"name": "source", "digest": {"gitCommit": checkout.revision}}
        if _HOST.match(repository):  # else a folder of the machine
            source["uri"] = f"git+https://{repository}@{checkout.revision}"
        state = {"folder": folder or ".", "uncommitted": bool(checkout.dirty)}
        yield {**source, "annotations": state}
    for kind in _FILES:
        for name, value in kinds.get(kind, {}).items():
            digest, path = value.partition(" ")[0], PurePosixPath(name)
            if _DIGEST.fullmatch(digest) and not path.is_absolute() and ".." not in path.parts:
                yield {**described(name, blake3=digest), "annotations": {"kind": kind}}
    for name, version in kinds.get("tool", {}).items():
        if not name.endswith(FILES) and _VERSION.fullmatch(version):
            index = "generic" if name == "python" else "pypi"
            distribution = name.rpartition("/")[2]  # without the name of the toolchain
            yield {"uri": f"pkg:{index}/{quote(distribution)}@{quote(version)}"}
