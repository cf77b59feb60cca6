"""Weights at addresses: https, and what fsspec reaches, such as s3:// and gs://.

They are downloaded once, into a folder named by the digest of what is expected there.
"""

import fcntl
import hashlib
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from buildsys.errors import StageError
from buildsys.models.user_code import first_line, import_library
from buildsys.system.files import STATE_FOLDER
from buildsys.system.weight_names import file_name

_TIMEOUT_S = 60
_CHUNK_BYTES = 1 << 20


def download(url: str, project: Path, sha256: str | None) -> Path:
    """Download a file, unless it is here. Raises: StageError: it cannot be downloaded."""
    folder = _folder(project, url, sha256)
    file, partial = folder / file_name(url), folder.with_suffix(".partial")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.is_file():
            return file
        try:
            with _open(url) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
        except StageError:
            raise
        except Exception as error:  # each protocol has its own
            problem = f"cannot download {url} ({type(error).__name__}: {first_line(error):.200})"
            hint = "check the address, the network and your access to it"
            if isinstance(error, ImportError):
                hint = "install what fsspec needs for it, such as s3fs or gcsfs"
            raise StageError(problem, hint, is_external=True) from error
        folder.mkdir(exist_ok=True)  # another process may have removed it
        return partial.rename(file)


def settle(url: str, project: Path, expected: str | None, sha256: str) -> None:
    """Keep files of an unexpected digest for a manifest that names it."""
    folder = _folder(project, url, sha256)
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # another process did it
        _folder(project, url, expected).rename(folder)


def _folder(project: Path, url: str, sha256: str | None) -> Path:
    name = sha256 or f"unknown-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    return project / STATE_FOLDER / "downloads" / name


def _open(url: str) -> Any:
    if urlsplit(url).scheme in ("http", "https"):
        return urlopen(url, timeout=_TIMEOUT_S)  # noqa: S310
    return import_library("fsspec", Path.cwd()).open(url, "rb")
