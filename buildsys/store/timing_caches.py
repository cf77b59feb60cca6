"""TensorRT timing caches: measured tactic times, reused by later builds.

    FOLDER/LIBRARY-VERSION_GPU_….timing_cache   a JSON line of conditions, TensorRT's bytes

Files are checked at every read and replaced atomically. A build gets a private copy; of two builds
at the same time, the one with more timings stays. A cache only saves time: any problem with it
costs a warning and a slower build.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from buildsys.system.files import read_limited, replace_file

SCHEMA = "buildsys/timing-cache/1"
SUFFIX = ".timing_cache"
_MAX_BYTES = 1 << 30
Conditions = Mapping[str, str]  # library, GPU, driver and builder settings that timings hold for


@dataclass
class SharedTimingCache:
    """The timing cache of a folder for one set of conditions."""

    folder: Path
    conditions: Conditions
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def path(self) -> Path:
        """The shared file: a readable part and a digest of the conditions."""
        content = json.dumps(dict(self.conditions), sort_keys=True).encode()
        names = [self.conditions[n] for n in ("library", "gpu", "cuda") if self.conditions.get(n)]
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(names))[:120]
        return self.folder / f"{readable}_{hashlib.sha256(content).hexdigest()[:8]}{SUFFIX}"

    def checkout(self, private: Path) -> bytes | None:
        """Copy the shared cache to a private file and return it."""
        content = self._read()
        if content is not None:
            private.write_bytes(content)
            with suppress(OSError):  # only the time of its last use
                os.utime(self.path)
        return content

    def merge_back(self, private: Path, original: bytes | None) -> dict[str, Any]:
        """Share the private file of a finished build; return its figures."""
        if not private.is_file() or private.stat().st_size == 0:
            return {}
        built = private.read_bytes()
        current = self._read()
        if current is None or current == original or len(current) < len(built):
            header = {"schema": SCHEMA, "sha256": _digest(built), "made_for": self.conditions}
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                content = json.dumps(header, default=dict).encode() + b"\n" + built
                replace_file(self.path, content)
            except OSError as error:
                self.warnings.append(
                    f"the timing cache of this build cannot be kept in {self.folder}: "
                    f"{error.strerror or error}; the next build times its tactics again"
                )
        # a cache that shrank was started again by the builder
        used = original if original is not None and len(built) >= len(original) else None
        figures = {
            "digest": _digest(built),
            "bytes": len(built),
            "added_bytes": len(built) - len(used or b""),
        }
        return figures if used is None else {**figures, "lent": _digest(used)}

    def _read(self) -> bytes | None:
        """Read the shared cache; a damaged or foreign one is a warning, and will be replaced."""
        try:
            stored = read_limited(self.path, _MAX_BYTES)
            line, _, content = stored.partition(b"\n")
            header = json.loads(line)
            expected = {"schema": SCHEMA, "sha256": _digest(content)}
            if header != {**expected, "made_for": dict(self.conditions)}:
                raise ValueError("it is damaged, or for another GPU or library")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            problem = error.strerror if isinstance(error, OSError) else error
            self.warnings.append(
                f"the timing cache {self.path} is unusable: {problem}; a new one is started"
            )
            return None
        return content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
