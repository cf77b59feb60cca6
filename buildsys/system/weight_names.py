"""Names of weights: files on the Hugging Face Hub, and indices of several files."""

import json
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from buildsys.system.files import read_limited

HUB = "hf://"  # hf://OWNER/NAME@COMMIT/FILE
_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_NAME = re.compile(rf"hf://({_PART}/{_PART})@([0-9a-f]{{40}})(?:/([\w.+-][\w.+/-]*)?)?")
INDEX_SUFFIX = ".safetensors.index.json"
_INDEX = re.compile(r".*(\.safetensors|\.bin)\.index\.json")
_MAX_BYTES = 16 << 20  # 200,000 tensors


def local_path(name: str) -> str:
    """Return the path of a file:// URL, others as they are. Raises: ValueError: of another host."""
    if not name.startswith("file:"):
        return name
    url = urlsplit(name)
    if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
        raise ValueError(name)
    return unquote(url.path)


def folder_hint(path: Path) -> str:
    """Say how to use a distributed checkpoint, a folder; "" for others."""
    if not (path / ".metadata").is_file():
        return ""
    command = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"
    return f"write one file of this distributed checkpoint: {command} {path.name} FILE.pth"


def is_url(name: str) -> bool:
    """Check for a file that is downloaded; not from the Hub, whose library does that."""
    return "://" in name and not name.startswith(HUB)


def file_name(url: str) -> str:
    """Return the name of the file at a URL, "" if it names none."""
    name = urlsplit(url).path.rpartition("/")[2]
    return "" if name in (".", "..") or not urlsplit(url).netloc else name


class HubName(NamedTuple):
    """A file of a repository, or with an empty path the repository, at one commit."""

    repository: str
    commit: str
    path: str


def parse_hub_name(name: str) -> HubName | None:
    """Parse a name; None if it is invalid. A branch may move: only commits count."""
    match = _NAME.fullmatch(name)
    if match is None or ".." in (match[3] or "").split("/"):
        return None
    return HubName(match[1], match[2], match[3] or "")


def is_index(name: str) -> bool:
    """Check for the name of an index."""
    return _INDEX.fullmatch(name) is not None


def read_index(path: Path) -> dict[str, set[str]]:
    """Read the names of the shards with those of their tensors.

    Raises: OSError: the file cannot be read. ValueError: it is not an index.
    """
    content = json.loads(read_limited(path, _MAX_BYTES))
    table = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not table:
        raise ValueError("it has no weight_map")
    shards: dict[str, set[str]] = {}
    suffix = Path(path.name.removesuffix(".index.json")).suffix
    for tensor, name in table.items():
        # another folder would not be in the key, or outside the project
        if not isinstance(name, str) or not name.endswith(suffix) or "/" in name:
            raise ValueError(f"the weight_map has {name!r:.100}, not a {suffix} file next to it")
        shards.setdefault(name, set()).add(tensor)
    return shards


def shards_of(path: Path) -> list[Path]:
    """List the shards of an index in order, none of other files."""
    if not is_index(path.name):
        return []
    try:
        return [path.with_name(name) for name in read_index(path)]
    except (OSError, ValueError, RecursionError):
        return []  # the stage reports it
