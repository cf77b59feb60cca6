"""Loading of a built engine after the check of ``can_run``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.backends.interface import OperatorUse, Options, load_backend
from buildsys.deploy.can_run import can_run, engine_file
from buildsys.deploy.engine import Engine
from buildsys.errors import EngineError, StageError
from buildsys.system.backend_registry import Reason, Record
from buildsys.system.engine_files import RECORD_NAME, REPLACE, is_file_name, read_record

_MAX_THREADS = 1 << 16


def load_engine(
    engine: str | os.PathLike[str],
    *,
    digest: bool = True,
    project: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    trusted_keys: Iterable[str] | None = None,
    revoked_keys: Iterable[str] = (),
) -> Engine:
    """Load a built engine to run it in this process.

    ``engine`` is an engine file or its folder. It is checked by ``can_run`` first, with ``digest``,
    ``project``, ``trusted_keys`` and ``revoked_keys``; plugins in Python are loaded from its folder
    or below ``project``. ``options`` replace recorded options that do not change results, such as
    ``intra_op_threads`` (0: one per core). ``concurrency`` limits the calls that run at the same
    time, and with them the memory; more calls wait.

    Raises: EngineError: the engine cannot run here, or an argument is wrong; one sentence with the
    remedy.
    """
    if concurrency is not None and (not isinstance(concurrency, int) or concurrency < 1):
        raise EngineError(f"concurrency is {concurrency!r}", "pass a number from 1 on, or None")
    result = can_run(
        engine, digest=digest, project=project, trusted_keys=trusted_keys, revoked_keys=revoked_keys
    )
    file = engine_file(engine)
    record = read_record(file)
    reasons = result.reasons or ((record,) if isinstance(record, Reason) else ())
    if reasons or isinstance(record, Reason):
        first, *others = reasons
        more = f" (and {len(others)} more, which can_run lists)" if others else ""
        raise EngineError(f"{engine} cannot run here: {first.problem}{more}", first.remedy)
    names = [str(record.figures.get(name) or "") for name in ("model", "variant")]
    title = ":".join(filter(None, names)) or file.name
    try:
        backend = load_backend(record.backend, to_run=True)
        chosen = _options(record, backend.RUN_OPTIONS, options or {})
        session = backend.load(file, chosen, tuple(_operators(record, file, project)))
        try:
            return Engine(title, file, record, result.notes, session, concurrency)
        except StageError:  # an input or output of a type that cannot be used
            session.close()
            raise
    except StageError as error:
        raise EngineError(f"{title} cannot be loaded: {error.problem}", error.hint) from error
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        wrong = f"{type(error).__name__}: {' '.join(str(error).split()):.200}"
        problem = f"{title} cannot be loaded: {RECORD_NAME} has a wrong value ({wrong})"
        raise EngineError(problem, REPLACE) from error


def _options(record: Record, changeable: Options, replaced: Mapping[str, Any]) -> Options:
    """Replace recorded options. Raises: StageError: an unknown one, or a wrong value."""
    if not isinstance(replaced, Mapping):
        raise StageError(f"options is {replaced!r}", "pass a mapping of options by name")
    if unknown := next((name for name in replaced if name not in changeable), None):
        hint = f"pass one of {', '.join(changeable) or 'none'}"
        raise StageError(f"{record.backend} has no option {unknown!r} for running", hint)
    recorded = {**record.map("portability"), **record.map("settings")}
    for options, title, hint in (
        (recorded, f"{RECORD_NAME} has a wrong value: ", REPLACE),
        (replaced, "", ""),
    ):
        for name, value in options.items():
            if name in changeable and not _fits(value, type(changeable[name])):
                problem = f"{title}the option {name} is {value!r:.100}"
                raise StageError(problem, hint or f"pass a value such as {changeable[name]!r}")
    return {**changeable, **recorded, **replaced}


def _fits(value: object, kind: type) -> bool:
    """Check the type and range of an option."""
    if kind is dict and isinstance(value, dict):
        return all(isinstance(word, str) for item in value.items() for word in item)
    if kind is int:
        return type(value) is int and 0 <= value <= _MAX_THREADS
    return type(value) is kind


def _operators(
    record: Record, engine: Path, project: str | os.PathLike[str] | None
) -> Iterator[OperatorUse]:
    """Yield the libraries and plugins of the recorded custom operators."""
    root = engine.parent if project is None else Path(project)
    files = {
        str(plugin["operator"]): str(plugin["file"])
        for plugin in record.figures.get("plugins") or ()
        if isinstance(plugin, Mapping) and {"operator", "file"} <= plugin.keys()
    }
    for op, use in record.map("operators").items():
        kind, _, name = str(use).partition(" ")
        if kind == "plugin" and not name:  # the backend's own library has it
            yield OperatorUse(op, kind, None, root)
            continue
        path = engine.with_name(name) if is_file_name(name) else None
        if path is not None and not path.is_file():  # can_run has found it in the project
            file = Path(files.get(op, name))
            path = None if file.is_absolute() or ".." in file.parts else root / file
        if path is None:
            problem = f"{RECORD_NAME} refers to {files.get(op, name)!r:.100} for {op}"
            raise StageError(f"{problem}, which is not in the engine's folder", REPLACE)
        yield OperatorUse(op, kind, path, root)
