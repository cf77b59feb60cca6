"""A timing cache for one build: a private copy on its way in, merged back under a lock on its way out.

A cache only saves time. Whatever is wrong with it costs a warning and a slower build, never a build; only a pinned one
is asked for by the manifest, and an error where it is not to be had.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.errors import StageError
from buildsys.store.timing_caches.files import (
    BY_DIGEST,
    SUFFIX,
    BrokenCacheError,
    Conditions,
    TimingCacheData,
    read_by_digest,
    read_shared,
    set_aside,
    shared_files,
    store_by_digest,
    write_shared,
)

# writes one file with the timings of all; returns what to tell of those that it could not use
Merge = Callable[[Sequence[Path], Path], "Sequence[str] | None"]
_LOCK_WAIT_S, _POLL_S = 60.0, 0.02
_SHOWN_DIGITS = 16
_REFUSED = re.compile(
    r"^the timing cache \S+ is (not used|broken)"
)  # as backends.trt.timing_cache words it


@dataclass
class SharedTimingCache:
    """The timing caches of a folder, for builds under the same conditions."""

    folder: Path
    made_for: Conditions
    merge: Merge
    warnings: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """Return the shared file of these conditions."""
        return self.folder / f"{file_stem(self.made_for)}{SUFFIX}"

    def checkout(self, private: Path) -> TimingCacheData | None:
        """Write what is known to a private file; return it, None where nothing is known yet."""
        try:
            content = self._read()
            if content is not None:
                private.write_bytes(content.data)
                with suppress(OSError):  # only tells when it was used last
                    os.utime(self.path)
        except OSError as error:
            private.unlink(missing_ok=True)
            self._warn(
                f"the timing cache {self.path} cannot be read: {error.strerror}; the build goes on without it"
            )
            return None
        return content

    def merge_back(
        self, private: Path, lent: TimingCacheData | None, messages: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Merge what a build has made of its private file; return the figures of its result.

        A shared cache that the builder has refused, as its ``messages`` tell, is set aside.
        """
        if not private.is_file() or private.stat().st_size == 0:
            return {}
        made, refused = TimingCacheData.of(private.read_bytes()), _refusal(messages)
        try:
            with self._locked():
                if refused and lent is not None and self._read() == lent:
                    self._put_aside(self.path, "is of no use to the builder")
                self._merge_in(made, lent, private.parent)
            store_by_digest(self.folder, made)
        except OSError as error:
            problem = f"the timing cache of this build cannot be kept in {self.folder}: {error.strerror or error}"
            self._warn(f"{problem}; the next build times its tactics again")
        used = (
            lent if lent and not refused and len(made.data) >= len(lent.data) else None
        )  # a smaller one is new
        added = len(made.data) - (len(used.data) if used else 0)
        given = {"lent": used.sha256} if used else {}
        return {"digest": made.sha256, "bytes": len(made.data), "added_bytes": added, **given}

    def _merge_in(self, made: TimingCacheData, lent: TimingCacheData | None, scratch: Path) -> None:
        current = self._read()
        if current is not None and current.sha256 == made.sha256:
            return
        grown = made if current is None or current == lent else self._merged(current, made, scratch)
        write_shared(self.path, grown, self.made_for)

    def _merged(
        self, current: TimingCacheData, made: TimingCacheData, scratch: Path
    ) -> TimingCacheData:
        """Return the timings of both: another build has added to the shared file meanwhile."""
        with TemporaryDirectory(dir=scratch) as folder:
            files = [Path(folder, "shared"), Path(folder, "made")]
            for file, content in zip(files, (current, made), strict=True):
                file.write_bytes(content.data)
            merged = Path(folder, "merged")
            try:
                self.warnings += self.merge(files, merged) or ()
                return TimingCacheData.of(merged.read_bytes())
            except (StageError, FileNotFoundError) as error:
                self._put_aside(self.path, f"cannot be merged ({error})")
                return made

    def _read(self) -> TimingCacheData | None:
        try:
            return read_shared(self.path, self.made_for)
        except BrokenCacheError as error:
            self._put_aside(self.path, f"is of no use: {error}")
            return None

    def _put_aside(self, path: Path, why: str) -> None:
        aside = set_aside(path)
        self._warn(
            f"the timing cache {path.name} {why}; it was renamed to {aside.name}, and a new one is begun"
        )

    def _warn(self, text: str) -> None:
        self.warnings.append(text)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(
            self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
        try:
            _wait_for(handle, self.path)
            yield
        finally:
            os.close(handle)


def checkout_pinned(folder: Path, sha256: str, private: Path, engine: str) -> TimingCacheData:
    """Write the pinned cache to a private file and return it.

    Raises: StageError: it is nowhere, with the places that were looked at.
    """
    content, looked = _find(folder, sha256)
    if content is None:
        raise StageError(
            f"the timing cache that {engine} pins, {sha256}, is nowhere to be found: looked for {' and '.join(looked)}",
            "copy it there from where it was made (timing_cache.digest of an engine.json), or pin another one",
        )
    private.write_bytes(content.data)
    return content


def pinned_figures(
    folder: Path, private: Path, lent: TimingCacheData, messages: Sequence[str]
) -> dict[str, Any]:
    """Return what a build has done with the cache that it pins: timings that it lacked were misses.

    What it then had is kept as well, so that it can be pinned in its turn.
    Raises: StageError: the builder has not taken the cache at all.
    """
    refused = _refusal(messages)
    if refused:
        raise StageError(
            f"the pinned timing cache {lent.sha256[:_SHOWN_DIGITS]}… is not for this builder: {refused}",
            "pin one that was made on such a GPU with this version of TensorRT",
        )
    told = [
        text
        for text in messages
        if re.search(r"timing cache", text, re.I) and re.search(r"\bmiss", text, re.I)
    ]
    figures: dict[str, Any] = {
        "digest": lent.sha256,
        "pinned": True,
        "bytes": len(lent.data),
        "misses": len(told),
    }
    made = (
        TimingCacheData.of(private.read_bytes())
        if private.is_file() and private.stat().st_size
        else lent
    )
    added = len(made.data) - len(lent.data)
    if added > 0:
        try:
            store_by_digest(folder, made)
        except OSError:
            return {**figures, "added_bytes": added}
        return {**figures, "added_bytes": added, "grown_digest": made.sha256}
    return {**figures, "added_bytes": 0}


def _refusal(messages: Sequence[str]) -> str:
    return next((text for text in messages if _REFUSED.search(text)), "")


def pinned_cache_warning(figures: Mapping[str, Any]) -> str:
    """Return what to tell of a pinned cache that lacked timings, "" where it had all."""
    if not figures.get("pinned") or not (figures.get("misses") or figures.get("added_bytes")):
        return ""
    digest = str(figures["digest"])[:_SHOWN_DIGITS]
    problem = f"the pinned timing cache {digest}… lacked timings (it grew by {figures['added_bytes']} bytes)"
    again = (
        f"; with all of them it is {figures['grown_digest']}" if figures.get("grown_digest") else ""
    )
    return f"{problem}, so some tactics were timed anew and may differ from those of its first build{again}"


def file_stem(made_for: Conditions) -> str:
    """Return the name of a shared file: readable as far as it goes, and the digest of all conditions."""
    digest = hashlib.sha256(json.dumps(dict(made_for), sort_keys=True).encode()).hexdigest()[:8]
    readable = "_".join(
        str(made_for[name]) for name in ("library", "gpu", "cuda") if made_for.get(name)
    )
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', readable)[:120]}_{digest}"


def _find(folder: Path, sha256: str) -> tuple[TimingCacheData | None, list[str]]:
    looked = [f"{folder / BY_DIGEST / sha256}"]
    try:
        kept = read_by_digest(folder, sha256)
    except BrokenCacheError as error:
        with suppress(OSError):  # of a folder that cannot be written it is told just as well
            set_aside(folder / BY_DIGEST / sha256)
        kept, looked = None, [f"{looked[0]} (of no use: {error})"]
    except OSError as error:
        kept, looked = None, [f"{looked[0]} ({error.strerror})"]
    if kept is not None:
        return kept, looked
    shared = shared_files(folder)
    looked.append(f"{len(shared)} shared cache{'s' * (len(shared) != 1)} in {folder}")
    return next((found for path in shared if (found := _if_it_is(path, sha256))), None), looked


def _if_it_is(path: Path, sha256: str) -> TimingCacheData | None:
    try:
        content = read_shared(path)
    except (BrokenCacheError, OSError):
        return None
    return content if content is not None and content.sha256 == sha256 else None


def _wait_for(handle: int, path: Path) -> None:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise OSError(
                    None, f"another process has held {path.name} for {_LOCK_WAIT_S:.0f} s"
                ) from None
            time.sleep(_POLL_S)
