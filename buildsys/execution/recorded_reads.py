"""Reads outside a stage's key, as further parts of it.

A stage cannot know in advance what user code reads, so a key holds what the last run read: like the
dependency files of a C compiler, ``read:`` parts name a file, a folder (with a slash) or a variable
(with a dollar sign), and hold a digest of its content and the line that reads it.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from buildsys.errors import StageError
from buildsys.store.file_digests import DigestCache, FileDigest
from buildsys.system.files import listing_digest, stamp
from buildsys.system.versions import ABSENT, in_a_family

READ = "read:"
ALL_VARIABLES = f"{READ}$*"
TOO_MANY = f"{READ}…"  # more than can be followed: never up to date
_MAX_PARTS = 5000  # an amount that a report and a check of freshness can bear
_SHOWN = 3
_SHOWN_LINES = 20  # lines of user code in a result
_WORDS = {"$*": "the whole environment", "…": "more files than can be followed"}
Reads = Mapping[str, str]  # label of a part -> file:line that reads it


class ReadValues:
    """Present values of recorded files, folders and variables."""

    def __init__(self, project: str, digests: DigestCache, unlisted: Collection[str]) -> None:
        """Prepare. ``unlisted`` are folders that the project's own runs write."""
        self._project = project
        self._digests = digests
        self._unlisted = frozenset(unlisted)

    def parts(self, reads: Reads, environment: Mapping[str, str]) -> dict[str, str]:
        """Digest reads. Raises: StageError: a file cannot be read."""
        parts = {}
        for label, where in reads.items():
            if label.startswith(READ):
                digest = self._digest(label.removeprefix(READ), environment)
                parts[label] = f"{digest} {where}".rstrip()
        return parts

    def declared(
        self, names: Iterable[str], environment: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, FileDigest | None], set[str]]:
        """Digest the reads declared by a manifest; return parts, files and folders.

        A folder stands for all files below it. Paths of files and folders are absolute.
        Raises: StageError: a file cannot be read.
        """
        parts: dict[str, str] = {}
        files: dict[str, FileDigest | None] = {}
        all_folders: set[str] = set()
        for name in names:
            if name.endswith("/"):
                folder, paths = self.path(name), []
                for place, folders, names_there in os.walk(folder):
                    folders[:] = (inner for inner in folders if inner != "__pycache__")
                    all_folders.add(place)
                    paths += [f"{place}/{file}" for file in names_there]
                digests = {path[len(folder) :]: self._file(path) for path in sorted(paths)}
                text = repr(list(digests.items()))
                parts[f"{READ}{name}"] = _digest_of(text) if digests else ABSENT
            else:
                paths = [] if name.startswith("$") else [self.path(name)]
                parts[f"{READ}{name}"] = self._digest(name, environment)
            files |= {path: self._regular(path) for path in paths}
        return parts, files, all_folders

    def path(self, name: str) -> str:
        """Return the absolute path of a file or folder."""
        return os.path.normpath(os.path.join(self._project, name))  # noqa: PTH118

    def name(self, path: str) -> str:
        """Return a path relative to the project, if it is inside."""
        for root in (self._project, os.path.realpath(self._project)):
            if path.startswith(f"{root}{os.sep}"):
                return path[len(root) + 1 :]
        return "." if path == self._project else path

    def _digest(self, name: str, environment: Mapping[str, str]) -> str:
        if name == "$*":
            from buildsys.workers.launch import split_environment

            return _digest_of(repr(sorted(split_environment(environment)[0])))
        if name.startswith("$"):
            value = environment.get(name[1:])
            # not the value itself: it may be a secret, and records are kept and shared
            return ABSENT if value is None else _digest_of(value)
        if name.endswith("/"):
            return listing_digest(self.path(name), self._unlisted) or ABSENT
        return self._file(self.path(name))

    def _file(self, path: str) -> str:
        if os.path.isdir(path):  # noqa: PTH112
            return _digest_of("a folder")
        digest = self._regular(path)
        if digest is None and os.path.exists(path):  # noqa: PTH110
            return _digest_of("not a readable file")
        return ABSENT if digest is None else digest.digest

    def _regular(self, path: str) -> FileDigest | None:
        # reading a pipe or a device might not end
        readable = os.path.isfile(path) and os.access(path, os.R_OK)  # noqa: PTH113
        return self._digests.digest(path) if readable else None


def reads_outside(
    reads: Sequence[Sequence[Any]],
    covered: Collection[str],
    parts: Mapping[str, str],
    values: ReadValues,
    distributions: Callable[[str], Iterable[str]],
) -> tuple[dict[str, str], str]:
    """Select the reads outside a key, and one changed name or "".

    ``reads`` are those of the recorder, ``covered`` the paths in the key; ``distributions`` returns
    the labels for the distributions of a module.
    """
    # not needed with nothing to do
    from buildsys.workers.job import MAX_READS
    from buildsys.workers.launch import split_environment

    outside: dict[str, str] = {}
    resolved = cache(lambda: {os.path.realpath(path) for path in covered})
    all_variables = ["variable", "*"] in (list(read[:2]) for read in reads)
    for kind, name, where, before, written in reads:
        if kind == "variable":
            if f"env:{name}" in parts or f"{READ}${name}" in parts:
                continue
            if (all_variables or not where) and split_environment({name: ""})[1]:
                continue  # copied along with all others, or of no interest to a library
            if not where and in_a_family(name):
                continue
            outside[f"{READ}${name}"] = where
        elif kind == "module":
            outside.update((label, where) for label in distributions(name) if label not in parts)
        elif name not in covered and os.path.realpath(name) not in resolved():
            is_file = kind == "file"
            now = stamp(name) if is_file else listing_digest(name)
            if written and is_file and now is None:  # a temporary file of the stage
                continue
            if not written and now != (tuple(before) if is_file and before else before):
                return {}, values.name(name)
            relative = values.name(name)
            outside[f"{READ}{relative}" if is_file else f"{READ}{relative.rstrip('/')}/"] = where
    if len(reads) > MAX_READS or len(outside) > _MAX_PARTS:
        return {TOO_MANY: next(filter(None, outside.values()), "")}, ""
    return outside, ""


def is_followed(label: str) -> bool:
    """Check for a read to follow. A record may come from another machine."""
    return label.startswith(("tool:", READ)) and "\0" not in label and label != TOO_MANY


def undeclared(reads: Reads, parts: Mapping[str, str]) -> dict[str, str]:
    """Select the reads to report: existing files, and variables of user code."""
    return {
        label: where
        for label, where in reads.items()
        if label.startswith(READ)
        and (
            (label.startswith(f"{READ}$") and where)
            or label == TOO_MANY
            or parts.get(label, "").partition(" ")[0] != ABSENT
        )
    }


def forbidden(reads: Reads) -> StageError:
    """Make the error for reads forbidden by ``strict_reads``."""
    texts = list(describe(reads, strict=True))
    more = f" (and {len(texts) - 1} more lines)" if len(texts) > 1 else ""
    hint = "read single files and variables, inside the project, and declare them under reads"
    if declaration := _declaration(sorted(label.removeprefix(READ) for label in reads)):
        hint = f"declare it in the manifest: {declaration}"
    return StageError(f"{texts[0]}, which strict_reads forbids{more}", hint)


def warnings_of(reads: Reads) -> list[str]:
    """Warn of reads outside the key."""
    return list(describe(reads, strict=False))[:_SHOWN_LINES]


def describe(reads: Reads, *, strict: bool) -> Iterator[str]:
    """Yield a sentence per line of user code reading outside the key."""
    lines: dict[str, list[str]] = {}
    for label, where in sorted(reads.items(), key=lambda item: (item[1], item[0])):
        lines.setdefault(where, []).append(label.removeprefix(READ))
    for where, names in lines.items():
        listed = ", ".join(_WORDS.get(name, name) for name in names[:_SHOWN])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        text = f"{where or 'user code'} reads {listed}{more} outside the key"
        declaration = _declaration(names[:_SHOWN])
        hint = f"; declare it with {declaration}" if declaration else ""
        yield text if strict else f"{text}: a change will rerun this target{hint}"


def _declaration(names: Iterable[str]) -> str:
    declarable = [f'"{name}"' for name in names if name not in _WORDS and name[:1] != "/"]
    return f"reads: [{', '.join(declarable)}]" if declarable else ""


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]
