"""Files of the Hugging Face Hub, at a commit, through its own cache."""

from __future__ import annotations

import os
import re
from pathlib import Path

from buildsys.errors import StageError
from buildsys.models.user_code import first_line
from buildsys.system.files import sha256_of
from buildsys.system.weight_names import HUB, parse_hub_name

_SHA256 = re.compile(r"[0-9a-f]{64}")


def locate(name: str, project: Path) -> Path:
    """Locate the path of a project's file, or of a downloaded file of the Hub.

    Raises: StageError: the Hub does not have it, or cannot be reached.
    """
    if not name.startswith(HUB):
        return project / name
    file = _download(name)
    if file is None:
        raise StageError(f"the Hub has no file {name}", "check the name and the commit")
    return file


def is_present(name: str, project: Path) -> bool:
    """Check for a file of the project or the Hub, which is downloaded.

    Raises: StageError: the Hub cannot be reached.
    """
    if name.startswith(HUB):
        return _download(name) is not None
    return (project / name).is_file()


def pinned(repository: str, revision: str, path: str) -> str:
    """Return the name of a file at the commit of a branch or tag; the file is downloaded.

    Raises: StageError: the Hub does not have it, or cannot be reached.
    """
    description = f"{path} of {repository} at {revision}"
    file = _fetch(repository, path, revision, description)
    if file is None:
        raise StageError(f"the Hub has no {description}", "check the name and the revision")
    commit = file.parents[path.count("/")].name  # the cache has a folder per commit
    return f"{HUB}{repository}@{commit}/{path}"


def _download(name: str) -> Path | None:
    """Return the path in the cache, None if the repository has no such file."""
    parts = parse_hub_name(name)
    if parts is None:
        raise StageError(f"{name} is not a file of the Hub", "write hf://OWNER/NAME@COMMIT/FILE")
    return _fetch(parts.repository, parts.path, parts.commit, name)


def _fetch(repository: str, path: str, revision: str, shown: str) -> Path | None:
    """Return the path in the cache, None if the repository has no such file."""
    try:
        from huggingface_hub import constants, errors, hf_hub_download
    except ImportError as error:
        raise StageError(
            f"{shown} needs huggingface_hub, which is not installed", "pip install huggingface_hub"
        ) from error
    endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    try:
        file = Path(hf_hub_download(repository, path, revision=revision, endpoint=endpoint))
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise StageError(
            f"{endpoint} has no repository or revision for {shown}, or does not show it to you",
            "check the name; for a private or gated repository, `hf auth login`",
        ) from error
    except errors.EntryNotFoundError as error:
        if not isinstance(error, errors.LocalEntryNotFoundError):
            return None
        raise _unreachable(shown, endpoint, error.__cause__ or error) from error
    except Exception as error:  # also the HTTP library's
        raise _unreachable(shown, endpoint, error) from error
    digest = file.resolve().name  # large files are stored under their SHA-256
    if _SHA256.fullmatch(digest) and sha256_of(file) != digest:
        raise StageError(f"the cached file {file} of {shown} is damaged", "delete it")
    return file


def _unreachable(shown: str, endpoint: str, reason: BaseException) -> StageError:
    return StageError(
        f"{shown} is not in the cache, and {endpoint} did not give it"
        f" ({type(reason).__name__}: {first_line(reason):.200})",
        "go online, or run `hf download` elsewhere and copy its cache to here",
    )
