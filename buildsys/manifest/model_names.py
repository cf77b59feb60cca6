"""Names of models in unresolved manifests.

A query of one model among a thousand must not resolve the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from buildsys.errors import ManifestError
from buildsys.manifest.workspace import Workspace

# Blank lines, comments and the start of the document, then the first field. Text outside ASCII is
# left to the YAML reader: some of it breaks lines.
_FIRST_FIELD = re.compile(
    rb"(?:(?:---)?[ \t]*(?:#[\t -~]*)?\r?\n)*"
    rb"model:[ \t]+([A-Za-z0-9][A-Za-z0-9_.+{}-]*)[ \t]*(?:#[\t -~]*)?\r?\n"
)
_HEAD_BYTES = 4096


def may_declare(file: str, names: Collection[str], workspace: Workspace) -> bool:
    """Return False if a manifest is unreadable or declares no named model.

    Placeholders in the declared name are filled in later, and a matrix, also of an extended file,
    appends its values.
    """
    if found := _FIRST_FIELD.match(_head(file)):
        declared = found[1].decode()
    else:
        try:
            node = workspace.document(Path(file)).get("model")
        except ManifestError:
            return False
        if node is None or not isinstance(node.value, str):
            return False
        declared = node.value
    fixed, placeholder, _ = declared.partition("{")
    if placeholder:
        return any(name.startswith(fixed) for name in names)
    return any(name == declared or name.startswith(f"{declared}-") for name in names)


def _head(file: str) -> bytes:
    """Return the beginning of a file, empty if unreadable."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would block
    except OSError:
        return b""
    try:
        return os.read(descriptor, _HEAD_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
