"""The project on disk: its folders and its resolved, checked models."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from buildsys.errors import ManifestError, ManifestErrors, UsageError
from buildsys.manifest.manifest_cache import Entry, read_entries, write_entries
from buildsys.project.settings import read_settings
from buildsys.system.files import STATE_FOLDER as STATE_FOLDER
from buildsys.system.files import Stamp
from buildsys.system.printable import nearest
from buildsys.system.units import number_or_text, parse_duration, parse_size

if TYPE_CHECKING:
    from buildsys.manifest.schema.project import Executor
    from buildsys.manifest.value_tree import FieldPath, ValueNode
    from buildsys.project.resolve import Resolver

_STORE_LIMIT = "50GiB"
_SHARED = ("project", "engines")  # files in configs/
_DECLARED = re.compile(r"""^model:\s*["']?([^\s"'#]+)""", re.MULTILINE)


@dataclass(frozen=True)
class ResolvedModel:
    """One model, after extends, matrix, defaults and engine presets have been applied.

    Equal texts mean equal models.
    """

    name: str
    file: str
    text: str = field(repr=False)  # all fields as JSON
    _trace: Callable[[], ValueNode] = field(repr=False, compare=False)

    @cached_property
    def data(self) -> dict[str, Any]:
        """All fields as plain data."""
        data: dict[str, Any] = json.loads(self.text)
        return data

    @cached_property
    def origins(self) -> dict[str, str]:
        """Origin ``file:line`` of each dotted field, except schema defaults."""
        from buildsys.manifest.value_tree import leaves

        return {
            ".".join(map(str, path)): node.origin.line() for path, node in leaves(self._trace())
        }

    def error(self, path: FieldPath, problem: str, hint: str) -> ManifestError:
        """Return an error at a field of the manifest, which is read again."""
        from buildsys.manifest.value_tree import error_at

        return error_at(self._trace(), path, problem, hint)


class Signing(NamedTuple):
    """Keys for signing and checking, and the treatment of unsigned results."""

    key: Path | str | None  # a file, or its content
    trusted: tuple[str, ...]
    revoked: tuple[str, ...]
    unsigned: str


@dataclass(frozen=True)
class Project:
    """The folders and settings of a project, and its models by name."""

    root: Path
    configs: Path
    build: Path
    state: Path
    models: Mapping[str, ResolvedModel]
    # manifests that were left out, with their errors
    broken: Mapping[str, Sequence[ManifestError]] = field(default_factory=dict)
    code: tuple[str, ...] = ()  # folders to import user code from, besides src and `root`

    def require_all(self) -> None:
        """Raise the errors of broken manifests. Raises: ManifestErrors: there are some."""
        if self.broken:
            raise ManifestErrors(_distinct(chain.from_iterable(self.broken.values())))

    def shared_cache(self) -> dict[str, Any] | None:
        """Return url, mode and timeout_s of the shared cache, or None.

        A folder is relative to ``root``. BUILDSYS_REMOTE overrides it; empty means none.
        """
        settings = self._setting("cache") or {}
        url = os.environ.get("BUILDSYS_REMOTE", settings.get("remote"))
        if not url:
            return None
        if "://" not in url:
            url = str(self.root / url)
        cache = {"url": url, "mode": settings.get("mode", "read-only")}
        if "timeout" in settings:
            cache["timeout_s"] = parse_duration(settings["timeout"])
        return cache

    def signing(self) -> Signing:
        """Return the settings of signatures. BUILDSYS_SIGNING_KEY overrides the key."""
        settings = self._setting("cache") or {}
        key = os.environ.get("BUILDSYS_SIGNING_KEY") or settings.get("signing_key")
        if key and key.strip().startswith("-----BEGIN "):
            key = f"{key.strip()}\n"
        elif key:
            key = self.root / Path(key).expanduser()
        return Signing(
            key or None,
            tuple(settings.get("trusted_keys", ())),
            tuple(settings.get("revoked_keys", ())),
            settings.get("unsigned", "refuse"),
        )

    def store_limit(self) -> int | None:
        """Return the size limit of the store in bytes, or None.

        BUILDSYS_STORE_LIMIT or ``store.limit`` of project.yaml; 0 and null mean none.
        """
        chosen = os.environ.get("BUILDSYS_STORE_LIMIT", "").strip()
        if chosen:
            return parse_size(number_or_text(chosen)) or None
        settings = self._setting("store") or {}
        limit = settings.get("limit", _STORE_LIMIT)
        return None if limit is None else parse_size(limit)

    def timing_caches(self) -> Path:
        """Return the folder of TensorRT's timing caches.

        BUILDSYS_TIMING_CACHES or ``timing_caches`` of project.yaml, relative to ``root``; else a
        folder below ``state``.
        """
        chosen = os.environ.get("BUILDSYS_TIMING_CACHES") or self._setting("timing_caches")
        folder = self.root / Path(str(chosen)).expanduser()
        return folder if chosen else self.state / "timing_caches"

    def toolchains(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Return name -> interpreter and environment variables of every toolchain."""
        declared = self._setting("toolchains") or {}
        return {name: (entry["python"], entry.get("env") or {}) for name, entry in declared.items()}

    def executor(self, name: str) -> Executor:
        """Return the settings of an executor. Raises: UsageError: there is none."""
        from pydantic import TypeAdapter

        from buildsys.manifest.schema.project import Executor

        declared = self._setting("executors") or {}
        if name not in declared:
            near = nearest(name, declared) or [*declared]
            hint = f"executors: {', '.join(near)}" if near else "declare it in project.yaml"
            raise UsageError(f"there is no executor {name!r}", hint)
        spec: Executor = TypeAdapter(Executor).validate_json(json.dumps(declared[name]))
        return spec

    def _setting(self, name: str) -> Any:
        """Return a section of project.yaml, already checked by `load_project`."""
        file = self.configs / "project.yaml"
        try:
            content = file.read_bytes()
        except OSError:
            return None
        if name.encode() not in content:
            return None  # a run without these settings must not pay for importing yaml
        from buildsys.manifest.yaml_reader import read_yaml

        settings = read_yaml(file, content)
        return settings.get(name) if isinstance(settings, dict) else None


def load_project(
    root: Path,
    *,
    remember: bool = True,
    configs: Path | None = None,
    links_into: Path | None = None,
) -> Project:
    """Load the manifests below ``configs/models``, except files to extend (``_*``).

    BUILDSYS_CONFIGS and BUILDSYS_BUILD, absolute or relative to ``root``, move the two folders, as
    settings do; the argument ``configs`` takes precedence. Without ``remember`` the cache is not
    written. Files of the project may be links into ``links_into``. Broken manifests are left out,
    with their errors in ``broken``.

    Raises: ManifestErrors: one of the errors is in a file that all models share.
    ManifestError: the settings are wrong.
    """
    return load_models(empty_project(root, configs=configs), remember, links_into)


def load_models(project: Project, remember: bool = True, links_into: Path | None = None) -> Project:
    """Load the models of a project's folders, as ``load_project``. Raises: ManifestErrors."""
    load = _ProjectReader(project, remember, links_into)
    models = load.models()
    # a preset or default that is wrong is dropped from the models, so none of them can be trusted
    project = replace(project, models=models, broken=load.broken)
    if load.is_shared_file_broken:
        project.require_all()
    return project


def broken_manifests(project: Project, name: str) -> dict[str, Sequence[ManifestError]]:
    """Find the broken manifests that may declare a model of a typed name or pattern."""
    words = name.split(":")
    return {
        file: project.broken[file]
        for declared, file in names_of_broken(project).items()
        if any(fnmatchcase(declared, word) or fnmatchcase(word, declared) for word in words)
    }


def names_of_broken(project: Project) -> dict[str, str]:
    """List names, and patterns of names, that broken manifests may declare, with the file."""
    files = project.broken
    return {name: file for file in files for name in (file, *_declared_names(project.root / file))}


def _declared_names(file: Path) -> list[str]:
    """List the likely names of a broken manifest's models, with ``*`` for values of a matrix."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    names = [re.sub(r"\{[^}]*\}", "*", name) for name in [file.stem, *_DECLARED.findall(text)]]
    return [*names, *(f"{name}-*" for name in names if "matrix:" in text)]


def check_manifests(project: Project, files: Iterable[Path]) -> tuple[ManifestError, ...]:
    """List the errors of some manifests and of the shared files.

    A file that is not a manifest itself, but may be part of others, checks all of them.
    """
    load = _ProjectReader(project)
    load.models()
    names = {load.relative(str(file)) for file in files}
    shared, manifests = map(set, (load.shared_files(), load.manifests()))
    checked = {*names, *shared} if names <= {*shared, *manifests} else {*load.broken}
    return _distinct(error for file in checked for error in load.broken.get(file, ()))


def _distinct(errors: Iterable[ManifestError]) -> tuple[ManifestError, ...]:
    """Sort errors and drop repetitions: users of shared values repeat them."""
    distinct = {(error.file, error.key, error.problem): error for error in errors}
    return tuple(sorted(distinct.values(), key=lambda e: (str(e.file), e.line or 0, e.column or 0)))


def empty_project(root: Path, *, configs: Path | None = None) -> Project:
    """Return the folders of the project at ``root`` without reading them.

    Raises: ManifestError: its settings are wrong.
    """
    root = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would change paths in errors
    settings = read_settings(root)

    def folder(variable: str, default: Path) -> Path:
        return Path(os.path.normpath(root / (os.environ.get(variable) or default)))

    configs = configs or folder("BUILDSYS_CONFIGS", settings.configs)
    build = folder("BUILDSYS_BUILD", settings.build)
    return Project(root, configs, build, root / STATE_FOLDER, {}, code=settings.code)


@dataclass
class _ProjectReader:
    """One load of a project, from the cache or from manifests."""

    _project: Project
    _remember: bool = True
    _links_into: Path | None = None
    broken: dict[str, list[ManifestError]] = field(default_factory=dict)  # errors by file

    @property
    def is_shared_file_broken(self) -> bool:
        """True if nothing can be built."""
        folder = self.relative(f"{self._project.configs}/models")
        return not self.broken.keys().isdisjoint((*self.shared_files(), folder))

    def shared_files(self) -> list[str]:
        """Name the files that all models share."""
        return [self.relative(f"{self._project.configs}/{name}.yaml") for name in _SHARED]

    def models(self) -> dict[str, ResolvedModel]:
        """Resolve the models; manifests with a model of the same name are left out."""
        started_ns = time.time_ns()
        cache_file, configs = self._project.state / "manifests.json", self._project.configs
        valid = read_entries(cache_file, self._project.root, configs)
        entries: dict[str, Entry] = {}
        for file in (*self.shared_files(), *self.manifests()):
            if entry := valid.get(file) or self._resolve(file):
                entries[file] = entry
        settled = {
            file: entry
            for file, entry in entries.items()
            # a later change of a settled file cannot leave its stamp as it is
            if file in valid
            or all(stamp.is_settled(started_ns) for stamp in filter(None, entry.stamps.values()))
        }
        if self._remember and not settled.keys() <= valid.keys():
            write_entries(cache_file, configs, settled)
        models: dict[str, ResolvedModel] = {}
        for file, entry in entries.items():
            for name, text in entry.models:
                if name in models:
                    self._refuse_name(name, file, models[name].file)
                else:
                    trace = partial(_read_tree, self._project, file, name)
                    models[name] = ResolvedModel(name, file, text, trace)
        return {name: model for name, model in models.items() if model.file not in self.broken}

    @cached_property
    def _resolver(self) -> Resolver:
        # importing pydantic and yaml takes longer than a load from the cache
        from buildsys.manifest.workspace import Workspace
        from buildsys.project.resolve import Resolver

        return Resolver(
            Workspace(
                self._project.root, self._project.configs, self._links_into, self._project.code
            )
        )

    def _resolve(self, name: str) -> Entry | None:
        resolver, file = self._resolver, self._project.root / name
        accessed: dict[str, Stamp | None] = {}
        resolver.workspace.accessed = accessed
        is_shared = name in self.shared_files()
        models, errors = ([], resolver.shared_errors(file)) if is_shared else resolver.resolve(file)
        if errors:
            self.broken[name] = errors
            return None
        texts = [(data["model"], json.dumps(data, separators=(",", ":"))) for data, _ in models]
        return Entry(texts, accessed)

    def _refuse_name(self, name: str, file: str, other: str) -> None:
        """Report a model's name that another manifest has."""
        node = self._resolver.workspace.document(self._project.root / file)
        problem = f'model "{name}" is already declared in {other}'
        error = (node.get("model") or node).error(problem, "rename one of them")
        for broken in (file, other):
            self.broken.setdefault(broken, []).append(error)

    def manifests(self) -> list[str]:
        """List the manifests of the project."""
        folder = f"{self._project.configs}/models"
        try:
            # a Path takes thirty times as long, and there may be thousands
            files = sorted(_yaml_files(folder), key=lambda path: path.split(os.sep))  # noqa: PTH206
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            hint = "put one YAML file per model there"
            text, name = f"cannot read the folder: {reason}", self.relative(folder)
            self.broken[name] = [ManifestError(Path(name), (), text, hint)]
            return []
        return [self.relative(file) for file in files]

    def relative(self, path: str) -> str:
        """Return a path relative to the project, if inside."""
        return path.removeprefix(f"{self._project.root}{os.sep}")


def change_model(project: Project, model: ResolvedModel, change: str) -> ResolvedModel:
    """Resolve a model with a change of its manifest in YAML.

    Raises: ManifestErrors: it is not valid.
    """
    from buildsys.manifest.workspace import Workspace
    from buildsys.project.resolve import Resolver

    resolver = Resolver(Workspace(project.root, project.configs, code=project.code))
    models, errors = resolver.resolve(project.root / model.file, change)
    data = next((data for data, _ in models if data["model"] == model.name), None)
    if errors or data is None:
        raise ManifestErrors(tuple(errors))
    return replace(model, text=json.dumps(data, separators=(",", ":")))


def _read_tree(project: Project, file: str, name: str) -> ValueNode:
    """Read a model again, with the origins of its values."""
    from buildsys.manifest.workspace import Workspace
    from buildsys.project.resolve import Resolver

    workspace = Workspace(project.root, project.configs, code=project.code)
    models, errors = Resolver(workspace).resolve(project.root / file)
    if errors:
        raise ManifestErrors(tuple(errors))
    return next(tree for data, tree in models if data["model"] == name)


def _yaml_files(folder: str) -> Iterator[str]:
    """Yield the manifests below a folder, except hidden and ``_`` files."""
    for entry in os.scandir(folder):
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _yaml_files(entry.path)
        elif entry.name.endswith((".yaml", ".yml")):
            yield entry.path
