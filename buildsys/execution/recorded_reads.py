"""Files, folders and variables that a stage read outside its key, as further parts of the key.

A stage cannot know in advance what user code reads, so a key holds what the last run read: like the
dependency files of a C compiler, ``read:`` parts name a file, a folder (with a slash) or a variable
(with a dollar sign), and hold a digest of its content and the line that reads it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from buildsys.store.file_digests import DigestCache
from buildsys.system.files import stamp
from buildsys.system.versions import ABSENT

READ = "read:"
ALL_VARIABLES = f"{READ}$*"
TOO_MANY = f"{READ}…"  # more than can be followed: never up to date
MAX_READS = 5000
_SHOWN = 3
Reads = Mapping[str, str]  # label of a part -> file:line that reads it


class ReadValues:
    """Present values of what stages read."""

    def __init__(self, project: str, digests: DigestCache, unlisted: Collection[str]) -> None:
        """Prepare. ``unlisted`` are folders that the project's own runs write."""
        self._project = project
        self._digests = digests
        self._unlisted = frozenset(unlisted)

    def parts(self, reads: Reads, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the parts of reads. Raises: StageError: a file cannot be read."""
        parts = {}
        for label, where in reads.items():
            if label.startswith(READ):
                digest = self._digest(label.removeprefix(READ), environment)
                parts[label] = f"{digest} {where}".rstrip()
        return parts

    def declared(self, names: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
        """Return the parts of what a manifest declares; a folder counts with all its files."""
        parts = {}
        for name in names:
            if name.endswith("/"):
                folder = self.path(name)
                files = [f"{at}/{each}" for at, _, each_of in os.walk(folder) for each in each_of]
                found = {path: self._file(path) for path in sorted(files)}
                text = repr([(path[len(folder) :], digest) for path, digest in found.items()])
                parts[f"{READ}{name}"] = _digest_of(text) if os.path.isdir(folder) else ABSENT  # noqa: PTH112
            else:
                parts[f"{READ}{name}"] = self._digest(name, environment)
        return parts

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
            from buildsys.workers.client.environment import split_environment

            return _digest_of(repr(sorted(split_environment(environment)[0])))
        if name.startswith("$"):
            value = environment.get(name[1:])
            # not the value itself: it may be a secret, and records are kept and shared
            return ABSENT if value is None else _digest_of(value)
        if name.endswith("/"):
            try:
                names = os.listdir(self.path(name))  # noqa: PTH208
            except (OSError, ValueError):
                return ABSENT
            folder = self.path(name)
            shown = (n for n in names if n[:1] != "." and n != "__pycache__")
            return _digest_of(
                repr(sorted(n for n in shown if f"{folder}/{n}" not in self._unlisted))
            )
        return self._file(self.path(name))

    def _file(self, path: str) -> str:
        try:
            found = os.stat(path)  # noqa: PTH116
        except (OSError, ValueError):
            return ABSENT
        if stat.S_ISDIR(found.st_mode):
            return _digest_of("a folder")
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device might not end
            return _digest_of("not a regular file")
        digest = self._digests.digest(path)
        return ABSENT if digest is None else digest.digest


def observed(
    reads: Sequence[Sequence[Any]],
    covered: Collection[str],
    parts: Mapping[str, str],
    values: ReadValues,
    distributions: Callable[[str], Iterable[str]],
) -> tuple[dict[str, str], str]:
    """Return the reads outside a key, and a file changed since it was read, if any.

    ``reads`` are those of the recorder, ``covered`` the files in the key; ``distributions`` returns
    the labels for the distributions of a module.
    """
    found: dict[str, str] = {}
    if len(reads) > MAX_READS:
        return {TOO_MANY: str(reads[0][2])}, ""
    known = {*covered, *map(os.path.realpath, covered)}
    folders = tuple(path for path in covered if path.endswith("/"))
    everything = any(kind == "variable" and name == "*" for kind, name, *_ in reads)
    for kind, name, where, before, written in reads:
        if kind == "variable":
            if f"env:{name}" in parts or f"{READ}${name}" in parts:
                continue
            if everything and _differs_between_terminals(name):
                continue  # copied along with all others
            found[f"{READ}${name}"] = where
        elif kind == "module":
            found.update((label, where) for label in distributions(name) if label not in parts)
        elif kind == "listing":
            folder = f"{values.name(name).rstrip('/')}/"
            if not name.startswith(folders) and f"{name}/" not in folders:
                found[f"{READ}{folder}"] = where
        elif name not in known and not name.startswith(folders):
            if os.path.realpath(name) in known:
                continue
            now = stamp(name)
            if written:
                if now is None:  # a temporary file of the stage
                    continue
            elif (None if before is None else tuple(before)) != now:
                return {}, values.name(name)
            found[f"{READ}{values.name(name)}"] = where
    return found, ""


def is_followed(label: str) -> bool:
    """Return True for a read that a record may name: it comes from another machine."""
    return label.startswith(("tool:", READ)) and "\0" not in label and label != TOO_MANY


def undeclared(reads: Reads, parts: Mapping[str, str]) -> dict[str, str]:
    """Return the reads to report: what exists, and variables."""
    return {
        label: where
        for label, where in reads.items()
        if label.startswith(READ)
        and (
            label.startswith(f"{READ}$")
            or label == TOO_MANY
            or parts.get(label, "").partition(" ")[0] != ABSENT
        )
    }


def describe(reads: Reads, *, strict: bool) -> Iterator[str]:
    """Yield one sentence per line of user code that reads something outside the key."""
    lines: dict[str, list[str]] = {}
    for label, where in sorted(reads.items(), key=lambda item: (item[1], item[0])):
        lines.setdefault(where, []).append(label.removeprefix(READ))
    for where, names in lines.items():
        shown = ", ".join(map(_in_words, names[:_SHOWN]))
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        text = f"{where or 'user code'} reads {shown}{more} outside the key"
        declare = ", ".join(f'"{name}"' for name in names[:_SHOWN] if _is_declarable(name))
        hint = f"; declare it with reads: [{declare}]" if declare else ""
        yield text if strict else f"{text}: a change will rerun this target{hint}"


def remedy(reads: Reads) -> str:
    """Return the manifest lines that declare reads."""
    names = [label.removeprefix(READ) for label in reads]
    inside = [f'"{name}"' for name in sorted(names) if _is_declarable(name)]
    if inside:
        return f"declare it in the manifest: reads: [{', '.join(inside[:20])}]"
    if ALL_VARIABLES in reads:
        return "read single variables, and declare them in the manifest under reads"
    return "move the files into the project, and declare them in the manifest under reads"


def _is_declarable(name: str) -> bool:
    return name not in ("$*", "…") and not name.startswith("/")


def _in_words(name: str) -> str:
    if name == "$*":
        return "the whole environment"
    if name == "…":
        return f"more than {MAX_READS} files"
    return name


def _differs_between_terminals(name: str) -> bool:
    from buildsys.workers.client.environment import split_environment

    return bool(split_environment({name: ""})[1])


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]
