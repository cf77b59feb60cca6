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
from buildsys.system.suggestions import nearest

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

    ``engine`` is an engine file or its folder, with its ``engine.json``. It is checked by
    ``can_run`` first; ``digest``, ``project``, ``trusted_keys`` and ``revoked_keys`` are for that
    check, and plugins in Python are loaded from the engine's folder or below ``project``.
    ``options`` replace recorded options that do not change results: ``intra_op_threads`` (0: one
    per core), ``inter_op_threads``, ``spinning`` and ``session_config`` of ONNX Runtime,
    ``cuda_graphs`` of TensorRT, ``runtime_cache`` of TensorRT-RTX, ``threads``, ``streams``,
    ``pin_threads`` and ``config`` of OpenVINO, ``threads`` of ExecuTorch,
    ``compute_units`` of Core ML.
    ``concurrency`` limits the calls that run at the same time, and with them the memory: calls of
    TensorRT each need an execution context. More calls wait. Without it there is no limit.

    Raises: EngineError: the engine cannot run here, or an argument is wrong; one sentence with the
    remedy.
    """
    if concurrency is not None and (not isinstance(concurrency, int) or concurrency < 1):
        raise EngineError(f"concurrency is {concurrency!r}", "pass a number from 1 on, or None")
    result = can_run(
        engine,
        digest=digest,
        project=project,
        trusted_keys=trusted_keys,
        revoked_keys=revoked_keys,
    )
    if not result:
        first, *others = result.reasons
        more = f" (and {len(others)} more, which can_run lists)" if others else ""
        raise EngineError(f"{engine} cannot run here: {first.problem}{more}", first.remedy)
    file = engine_file(engine)
    record = read_record(file)
    if isinstance(record, Reason):  # removed since the check
        raise EngineError(f"{engine} cannot run here: {record.problem}", record.remedy)
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
    """Replace recorded options."""
    if not isinstance(replaced, Mapping):
        raise StageError(f"options is {replaced!r}", "pass a mapping of options by name")
    for name, value in replaced.items():
        if name not in changeable:
            similar = nearest(name, changeable, count=1)
            hint = f"did you mean {similar[0]}?" if similar else ""
            names = ", ".join(changeable) or "none"
            problem = f"{record.backend} has no option {name!r} for running, it has {names}"
            raise StageError(problem, hint)
        if not _fits(value, type(changeable[name])):
            words = {
                int: "a number from 0 on",
                bool: "True or False",
                dict: "a dict of strings",
                str: "a string",
            }
            expected = words[type(changeable[name])]
            raise StageError(f"the option {name} is {value!r:.100}", f"pass {expected}")
    recorded = {**record.map("portability"), **record.map("settings")}
    for name, value in recorded.items():
        if name in changeable and not _fits(value, type(changeable[name])):
            raise StageError(f"{RECORD_NAME} has the option {name} as {value!r:.100}", REPLACE)
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
        if not is_file_name(name):
            raise StageError(
                f"engine.json refers to {name!r} for {op}, but the folder has no such file",
                "copy the engine's whole folder again",
            )
        path = engine.with_name(name)
        if not path.is_file():  # can_run has found it in the project
            file = Path(files.get(op, name))
            if file.is_absolute() or ".." in file.parts:
                raise StageError(f"{RECORD_NAME} refers to {str(file)!r:.100} for {op}", REPLACE)
            path = root / file
        yield OperatorUse(op, kind, path, root)
