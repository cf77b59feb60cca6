"""Compatibility of a built engine with this machine, checked before deserialization.

``can_run("engines/resnet50/engine.engine")`` returns a result that is false if the engine cannot
run; its text gives the reasons and remedies. Standard library only.
"""

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from buildsys.errors import EngineError
from buildsys.system.backend_registry import (
    Reason,
    Record,
    describe_backend,
    find_package,
    other_backends,
    our_backends,
)
from buildsys.system.compatibility import (
    built_version,
    engine_notes,
    machine_reasons,
    plugin_reasons,
)
from buildsys.system.engine_files import RECORD_NAME, find_damage, read_record, signer_of
from buildsys.system.signatures import TrustedKeys, key_name

SCHEMA = "buildsys/doctor/1"
_ENGINE = "engine.engine"  # the usual name


@dataclass(frozen=True)
class CompatibilityResult:
    """The result of a check; true if the engine can run."""

    engine: str  # the path as given
    built: str  # a summary: library, version, precision, GPU
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()  # worth knowing, but no obstacle
    signed_by: str = ""  # the trusted key, if signatures were checked

    def __bool__(self) -> bool:
        """Tell whether the engine can run."""
        return not self.reasons

    def __str__(self) -> str:
        """Format the result with one line per reason."""
        head = f"{self.engine}: {self.built}" if self.built else self.engine
        signed = f", and is signed by {key_name(self.signed_by)}" if self.signed_by else ""
        lines = [head, f"it can run here{signed}" if self else "it cannot run here:"]
        lines += [f"  - {reason}" for reason in self.reasons]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Convert the result to a JSON document."""
        facts = {"schema": SCHEMA, "engine": self.engine, "built": self.built, "runs": bool(self)}
        reasons = [asdict(reason) for reason in self.reasons]
        signed = {"signed_by": self.signed_by} if self.signed_by else {}
        return {**facts, **signed, "reasons": reasons, "notes": list(self.notes)}


def engine_file(engine: str | os.PathLike[str]) -> Path:
    """Find the engine file of a path to it or to its folder."""
    path = Path(engine)
    if not path.is_dir():
        return path
    for backends in (our_backends, other_backends):  # the others take longer
        for name in (_ENGINE, *(describe_backend(backend).engine_file for backend in backends())):
            if (path / name).is_file():
                return path / name
    return path / _ENGINE


def can_run(
    engine: str | os.PathLike[str],
    *,
    digest: bool = True,
    project: str | os.PathLike[str] | None = None,
    trusted_keys: Iterable[str] | None = None,
    revoked_keys: Iterable[str] = (),
) -> CompatibilityResult:
    """Check an engine's compatibility with this machine without deserializing it.

    ``engine`` is an engine file or its folder, with its ``engine.json``. With ``digest`` the files
    are compared with their recorded SHA-256 (about 1 GB/s). Files of plugins that are not yet
    registered are looked for in the engine's folder and below ``project``.
    With ``trusted_keys``, one of them must have signed the engine, and digests are always compared;
    ``revoked_keys`` are not trusted whatever ``trusted_keys`` says. Nothing is loaded before that.
    Never raises for a bad engine: that is a result.

    Raises: EngineError: a key is not a public key.
    """
    keys = _keys(trusted_keys, revoked_keys)
    try:
        path, name = Path(engine), str(engine)
    except TypeError:
        remedy = "pass the path of the engine file or its folder"
        return CompatibilityResult(
            repr(engine), "", (Reason("file", f"{engine!r} is not a path", remedy),)
        )
    try:
        path = engine_file(engine)
        if not path.is_file():
            # the record may say that no engine could be built
            recorded = read_record(path) if path.with_name(RECORD_NAME).is_file() else None
            remedy = "build it, or pass the path of the engine file or its folder"
            there = f"in the folder {name}" if Path(engine).is_dir() else name
            missing = Reason("file", f"there is no engine file {there}", remedy)
            reason = recorded if isinstance(recorded, Reason) else missing
            return CompatibilityResult(name, "", (reason,))
        record = read_record(path)
        if isinstance(record, Reason):
            return CompatibilityResult(name, "", (record,))
        signer = ""
        if keys is not None:
            signer, problems = check_signature(path, keys)
            if problems:  # nothing in the record can be relied on
                return CompatibilityResult(name, "", problems)
            digest = False  # compared already
        reasons = (
            *find_damage(path, record, digest=digest),
            *machine_reasons(record),
            *plugin_reasons(record, path, None if project is None else Path(project)),
        )
        notes = tuple(engine_notes(record))
        return CompatibilityResult(name, _describe(record), reasons, notes, signer)
    except OSError as error:
        return CompatibilityResult(name, "", (_unreadable(path, error),))


def check_signature(
    engine: str | os.PathLike[str], keys: TrustedKeys
) -> tuple[str, tuple[Reason, ...]]:
    """Check an engine's signature; return its trusted signer, or reasons against it."""
    path = engine_file(engine)
    try:
        record = read_record(path)
        if isinstance(record, Reason):
            return "", (record,)
        signer = signer_of(record, keys)
        if isinstance(signer, Reason):
            return "", (signer,)
        damage = tuple(find_damage(path, record, digest=True))
    except OSError as error:
        return "", (_unreadable(path, error),)
    return ("", damage) if damage else (signer, ())


def _unreadable(path: Path, error: OSError) -> Reason:
    problem = f"{error.filename or path} cannot be read: {error.strerror or error}"
    return Reason("file", problem, "")


def _keys(trusted: Iterable[str] | None, revoked: Iterable[str]) -> TrustedKeys | None:
    """Check keys; None without a check. Raises: EngineError: one is malformed."""
    try:
        keys = TrustedKeys.of(() if trusted is None else trusted, revoked)
    except (ValueError, TypeError) as error:
        hint = "pass a list of keys, ed25519: and 44 characters, of `buildsys cache keygen`"
        raise EngineError(f"wrong keys: {error}", hint) from None
    if trusted is None and keys.revoked:
        raise EngineError("revoked_keys has no effect without trusted_keys", "pass trusted_keys")
    return None if trusted is None else keys


def _describe(record: Record) -> str:
    """Describe an engine's model, library, precision, device and date."""
    built, figures = record.map("built_with"), record.figures
    model = ":".join(str(figures[name]) for name in ("model", "variant") if figures.get(name))
    library = f"{_title(record.backend)} {built_version(record)}".rstrip()
    precision = str(record.map("settings").get("precision") or "")
    capability = f" ({built['compute_capability']})" if built.get("compute_capability") else ""
    device = built.get("gpu") or built.get("cpu") or "an unknown device"
    when = str(figures.get("started") or "")[:10]
    where = f"built on {device}{capability} {when}".rstrip()
    return ", ".join(filter(None, (model, library, precision, where)))


def _title(backend: str) -> str:
    return describe_backend(backend).title if find_package(backend) else backend
