"""The doctor's one question: can this engine run here, and if not, why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from buildsys.system.compatibility.engine_header import Header, read_header
from buildsys.system.compatibility.engine_record import RECORD_NAME, Record, damage, read_record
from buildsys.system.compatibility.plugins import plugin_obstacles, plugin_remarks
from buildsys.system.compatibility.rules import TITLES, built_version, obstacles, remarks
from buildsys.system.compatibility.verdict import Reason, Verdict

_ENGINES = ("engine.engine", "engine.onnx")


def check(
    engine: str | os.PathLike[str],
    *,
    digest: bool = True,
    project: str | os.PathLike[str] | None = None,
) -> Verdict:
    """Tell whether an engine can run on this machine, before anything of it is deserialized.

    ``engine`` is an engine file, or the folder that it lies in with its ``engine.json``. All reasons are told at
    once. With ``digest`` the whole file is read and compared with its recorded SHA-256 (about 1 GB/s). Files of plugins
    that are not registered yet are looked for beside the engine and below ``project``.
    Never raises for a bad engine: that is an answer.
    """
    path = _engine_in(Path(engine))
    try:
        return _check(path, str(engine), digest, None if project is None else Path(project))
    except OSError as error:
        told = error.strerror or str(error)
        return Verdict(
            str(engine),
            "",
            (Reason("file", f"{error.filename or path} cannot be read: {told}", ""),),
        )


def _check(path: Path, asked: str, digest: bool, project: Path | None) -> Verdict:
    if not path.is_file():
        return Verdict(asked, "", (_absent(path),))
    header, record = read_header(path), read_record(path)
    if isinstance(record, Reason):
        return Verdict(asked, _of_header(path, header), tuple(_unrecorded(path, header, record)))
    reasons = [*damage(path, record, header, digest=digest), *obstacles(record)]
    reasons += plugin_obstacles(record, path, project)
    return Verdict(
        asked, _of_record(record), tuple(reasons), (*remarks(record), *plugin_remarks(record))
    )


def _absent(path: Path) -> Reason:
    """Return why there is no engine: its record may say that none could be built."""
    told = read_record(path) if path.with_name(RECORD_NAME).is_file() else None
    if isinstance(told, Reason):
        return told
    remedy = "build it, or give the path of the engine file or of its folder"
    return Reason("file", f"there is no engine file {path}", remedy)


def _engine_in(path: Path) -> Path:
    if not path.is_dir():
        return path
    return next((path / name for name in _ENGINES if (path / name).is_file()), path / _ENGINES[0])


def _unrecorded(path: Path, header: Header, why: Reason) -> Iterator[Reason]:
    """Yield what the file alone tells: never enough to say that it runs."""
    size = path.stat().st_size
    yield Reason(
        why.kind, f"{why.problem}, so nothing is known of it but {_told(header, size)}", why.remedy
    )
    if header.truncated:
        whole = f": it has {size} of {header.whole_bytes} bytes" if header.whole_bytes else ""
        yield Reason("truncated", f"{path.name} is truncated{whole}", "copy it again, or build it")
    if header.backend:
        known = {"toolchain": {header.backend: header.version}} if header.version else {}
        found = obstacles(Record(header.backend, known))
        yield from (reason for reason in found if reason.kind in ("library", "version", "gpu"))


def _told(header: Header, size: int) -> str:
    if not header.backend:
        return f"that its {size} bytes do not begin like an engine"
    release = f" {header.version}" if header.version else ""
    return f"what its own bytes say: an engine of {TITLES[header.backend]}{release}, {size} bytes"


def _of_header(path: Path, header: Header) -> str:
    if not header.backend:
        return f"no engine that is known ({path.stat().st_size} bytes)"
    return f"{TITLES[header.backend]} {header.version}".rstrip()


def _of_record(record: Record) -> str:
    """Return what an engine is, in a few words."""
    built = record.built_with
    model = ":".join(
        str(record.figures[name]) for name in ("model", "variant") if record.figures.get(name)
    )
    library = f"{TITLES.get(record.backend, record.backend)} {built_version(record)}".rstrip()
    precision = str(record.map("settings").get("precision") or "")
    capability = f" ({built['compute_capability']})" if built.get("compute_capability") else ""
    device = built.get("gpu") or built.get("cpu")
    where = f"built on {device}{capability}" if device else "built"
    when = str(record.figures.get("started") or "")[:10]
    return ", ".join(
        part for part in (model, library, precision, f"{where} {when}".strip()) if part
    )
