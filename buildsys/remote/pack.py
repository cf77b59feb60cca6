"""The files of a project in the shared store, and the builds that its gates compare with."""

import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from glob import has_magic
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.errors import StageError
from buildsys.execution.baselines import baseline_digests
from buildsys.execution.build_cache import store_folder
from buildsys.history.database import copy_history, history_file
from buildsys.plan.action import Action
from buildsys.project.load import Project
from buildsys.report.result_files import adapter
from buildsys.store.ledger import ActionRecord, Ledger, OutputFile
from buildsys.store.object_store import Store, object_name
from buildsys.store.publish import disk_errors
from buildsys.store.record_file import check_tree, output_file
from buildsys.store.shared_cache import Depot
from buildsys.store.state_db import ReadOnlyStateDb, StateDb
from buildsys.system.files import MAX_RESULT_BYTES, is_below, path_of, source_files
from buildsys.system.git import run_git
from buildsys.system.typed_dict import TypedDict
from buildsys.system.user_modules import MODULE, locate

_ENVIRONMENT = "pyvenv.cfg"  # in the folder of a virtual environment
_OTHER_FOLDERS = (".git", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache")


class _Pack(TypedDict):
    """The files of a project, with digest, size and if they can be executed; its links."""

    files: dict[str, tuple[str, int, bool]]
    links: dict[str, str]


def pack_project(depot: Depot, project: Project, named: Collection[str] = ()) -> OutputFile:
    """Store the project's files; return their list.

    ``named`` are files and folders in manifests, which travel even if git ignores them.
    Raises: StageError: the store or a file cannot be used, or a named one is outside.
    """
    files: dict[str, tuple[str, int, bool]] = {}
    links: dict[str, str] = {}
    root, own = project.root, (project.build, project.state)
    patterns = {name for name in named if has_magic(name)}
    places = {*named, *(file for name in patterns for file in source_files(f"{root}", name))}
    real = root.resolve()
    for name in sorted(places):
        if not (root / name).resolve().is_relative_to(real):
            problem = f"{name} is outside of the project, and a remote job gets nothing else"
            raise StageError(problem, "copy it into the project, or build on this machine")
    names = (*_listed(root), *map(os.path.normpath, places))
    for path in sorted({path for name in names for path in _expand(root / name)}):
        if any(folder in path.parents for folder in own):
            continue
        name = path.relative_to(root).as_posix()
        try:
            if path.is_symlink():
                links[name] = str(path.readlink())
            elif path.is_file():  # else it was deleted, but is still in the index of git
                files[name] = (*depot.put(path), os.access(path, os.X_OK))
        except OSError as error:
            problem = f"cannot read {path}: {error.strerror}"
            raise StageError(problem, "correct its permissions, or let git ignore it") from error
    return depot.put_bytes(json.dumps({"files": files, "links": links}).encode())


def named_files(project: Project, actions: Iterable[Action]) -> set[str]:
    """Collect the files in manifests, and the folders elsewhere that their code may be from."""
    root, named = str(project.root), set[str]()
    for action in actions:
        for name in (*action.sources, *action.weights, *action.reads):
            if name.endswith(MODULE):  # what Python itself finds is the other machine's
                place = locate(name, root, project.code)
                named |= {os.path.relpath(place.file, root)} if place and place.root else set()
            elif not name.startswith("$"):
                named.add(name)
        if any(name.endswith((".py", MODULE)) for name in action.sources):
            named |= {name for name in project.code if not is_below(path_of(root, name), root)}
    return named


def unpack_project(depot: Depot, pack: OutputFile, folder: Path) -> None:
    """Write the files of a project into a new folder. Raises: StageError."""
    content: _Pack = _read(depot, pack, _Pack)
    files, links = content["files"], content["links"]
    try:
        check_tree({**files, **links})  # nothing is written through a link
        objects = {name: output_file([*file[:2]]) for name, file in files.items()}
    except ValueError as error:
        raise _damaged(depot, pack) from error
    with disk_errors(f"write the project into {folder}"):
        for name, file in objects.items():
            depot.get(file, folder / name)
            if files[name][2]:
                (folder / name).chmod(0o755)
        for name, target in links.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(target)


def _read(depot: Depot, pack: OutputFile, kind: Any) -> Any:
    """Read a JSON document of a type. Raises: StageError: it is damaged."""
    try:
        return adapter(kind).validate_python(json.loads(depot.content(pack, MAX_RESULT_BYTES)))
    except (ValueError, RecursionError) as error:
        raise _damaged(depot, pack) from error


def _damaged(depot: Depot, pack: OutputFile) -> StageError:
    problem = f"{object_name(pack.digest)} of {depot} is not what a build packs"
    return StageError(problem, "start the build again, with one version of buildsys")


def put_history(depot: Depot, project: Project) -> OutputFile | None:
    """Store a copy of the history, None without one. Raises: StageError."""
    file = history_file(project.state)
    if not file.is_file():
        return None
    with TemporaryDirectory(dir=project.state) as folder:
        return depot.put(copy_history(file, Path(folder)))


def put_earlier_builds(depot: Depot, project: Project, gates: Collection[str]) -> OutputFile | None:
    """Store the records that gates compare with, and their engines; None without any.

    Raises: StageError: the store cannot be used.
    """
    store = Store(store_folder(project.state))
    with closing(ReadOnlyStateDb(project.state / "state.db")) as db:
        ledger = Ledger(db)
        records = [r for gate in gates for r in ledger.records(gate, limit=3)[::-1]]
        engines = baseline_digests(ledger, gates)
    for path in filter(Path.is_file, map(store.object_path, engines)):
        depot.put(path)
    return depot.put_bytes(json.dumps([*map(asdict, records)]).encode()) if records else None


def unpack_earlier_builds(depot: Depot, pack: OutputFile, project: Project) -> None:
    """Add the records of ``put_earlier_builds`` to a new project. Raises: StageError."""
    store = Store(store_folder(project.state))
    with closing(StateDb(project.state / "state.db")) as db:
        records: list[ActionRecord] = _read(depot, pack, list[ActionRecord])
        ledger = Ledger(db)
        for record in records:
            ledger.add(record)
        for digest in baseline_digests(ledger, {record.target for record in records}):
            with suppress(StageError):  # damaged: the gate says that it is gone
                if (size := depot.size(digest)) is not None:
                    engine = OutputFile(digest, size)
                    store.add(engine, depot.chunks(engine))


def _listed(root: Path) -> list[str]:
    """List what git tracks or does not ignore; without git, the whole folder."""
    try:
        done = run_git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    except OSError:
        return [""]
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    return [""] if done.returncode else names


def _expand(path: Path) -> Iterator[Path]:
    """Yield a file, or those in a folder: a submodule, a folder of data, the project itself."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for entry in path.iterdir():
        if entry.name not in _OTHER_FOLDERS and not (entry / _ENVIRONMENT).exists():
            yield from _expand(entry)
