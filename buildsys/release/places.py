"""Files at the URL of a release: folders and HTTP by the standard library, the rest by fsspec."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import urlopen

from buildsys.errors import EngineError
from buildsys.system.files import open_regular
from buildsys.system.printable import mask_secrets, mask_text

Open = Callable[[str], Any]  # a path below the URL -> a readable file, or FileNotFoundError
_HINT = "check the URL, its credentials and its permissions"


def open_place(url: str, timeout_s: float) -> Open:
    """Return the function that opens files below a URL or folder."""
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):

        def open_http(path: str) -> Any:
            below = parts._replace(path=f"{parts.path.rstrip('/')}/{quote(path)}")
            try:
                return urlopen(below.geturl(), timeout=timeout_s)  # noqa: S310 - http or https
            except HTTPError as error:
                if error.code in (404, 410):
                    raise FileNotFoundError(path) from None
                raise

        return open_http
    if "://" in url and parts.scheme != "file":
        from buildsys.store.remote_folder import connect  # needs fsspec

        return connect(url, timeout_s=timeout_s).open_to_read
    root = Path(unquote(parts.path) if "://" in url else url)
    return lambda path: open_regular(root / path)


def read_place(open_file: Open, url: str, path: str, limit: int) -> bytes:
    """Read a small file below a URL.

    Raises: EngineError: it is missing or larger than ``limit``, or the URL cannot be used.
    """
    shown = f"{mask_secrets(url).rstrip('/')}/{path}" if url else path
    try:
        with open_file(path) as reader:
            content = bytes(reader.read(limit + 1))
    except (FileNotFoundError, IsADirectoryError):
        raise EngineError(f"there is no {shown}", "check the URL and the name") from None
    except Exception as error:  # each protocol has its own
        raise EngineError(f"cannot read {shown}: {place_problem(error)}", _HINT) from error
    if len(content) > limit:
        raise EngineError(f"{shown} has more than {limit >> 20} MiB", "check the URL")
    return content


def place_problem(error: Exception) -> str:
    """Describe the error of a place on one line without secrets."""
    if isinstance(error, ImportError):
        return f"{error}; pip install 'buildsys[remote]'"
    return mask_text(" ".join(f"{type(error).__name__}: {error}".split()))
