"""Names of files on the Hugging Face Hub: hf://OWNER/NAME@COMMIT/FILE."""

from __future__ import annotations

import re
from typing import NamedTuple

HUB = "hf://"
_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_NAME = re.compile(rf"hf://({_PART}/{_PART})@([0-9a-f]{{40}})(?:/([\w.+-][\w.+/-]*)?)?")


class HubName(NamedTuple):
    """A file of a repository, or with an empty path the repository, at one commit."""

    repository: str
    commit: str
    path: str


def parse_hub_name(name: str) -> HubName | None:
    """Return the parts of a name, None if it is invalid.

    A branch may move: only commits count.
    """
    match = _NAME.fullmatch(name)
    if match is None or ".." in (match[3] or "").split("/"):
        return None
    return HubName(match[1], match[2], match[3] or "")
