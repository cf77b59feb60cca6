"""The project on disk: its folders, and every model of every manifest, resolved and checked."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildsys.errors import ManifestError, ManifestErrors
from buildsys.manifest.manifest_cache import Cache, Entry, merged_states, read_cache, write_cache
from buildsys.system.files import Stamp

if TYPE_CHECKING:
    from buildsys.manifest.resolve import Resolver
    from buildsys.manifest.workspace import Workspace

STATE_FOLDER = ".buildsys"


@dataclass(frozen=True)
class ResolvedModel:
    """One model after extends, matrix, defaults and engine profiles.

    ``text`` is ``data`` as JSON: two models with the same text are the same. ``origins`` maps a dotted field to the
    ``file:line`` that set it, and has nothing for defaults of the schema.
    """

    name: str
    file: str
    text: str
    origins: Mapping[str, str] = field(repr=False, compare=False)

    @cached_property
    def data(self) -> dict[str, Any]:
        """Every field, complete and plain."""
        data: dict[str, Any] = json.loads(self.text)
        return data


@dataclass(frozen=True)
class Project:
    """A project: its folders and its models by name."""

    root: Path
    configs: Path
    build: Path
    state: Path
    models: Mapping[str, ResolvedModel]


def load_project(
    root: Path,
    *,
    remember: bool = True,
    configs: Path | None = None,
    links_into: Path | None = None,
) -> Project:
    """Load every manifest below ``configs/models``; files that start with ``_`` are only there to be extended.

    BUILDSYS_CONFIGS and BUILDSYS_BUILD, absolute or relative to ``root``, move the two folders; ``configs`` goes first.
    Without ``remember`` nothing is written. Files of the project may be links into ``links_into``.

    Raises: ManifestErrors: everything that is wrong in any file.
    """
    project = empty_project(root, configs=configs)
    load = _Load(project, remember, links_into)
    models = load.models()
    if load.errors:
        raise ManifestErrors(tuple(sorted(_distinct(load.errors), key=_place)))
    return replace(project, models=models)


def empty_project(root: Path, *, configs: Path | None = None) -> Project:
    """Return the folders of the project at ``root``, without looking into any."""
    root = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would change what errors show
    configs = configs or _folder(root, "BUILDSYS_CONFIGS", "configs")
    return Project(root, configs, _folder(root, "BUILDSYS_BUILD", "build"), root / STATE_FOLDER, {})


class _Load:
    """One load: takes from the cache what is valid, resolves the rest and keeps it."""

    def __init__(self, project: Project, remember: bool, links_into: Path | None) -> None:
        self._project = project
        self._remember = remember
        self._links_into = links_into
        self._started_ns = time.time_ns()
        self.errors: list[ManifestError] = []

    def models(self) -> dict[str, ResolvedModel]:
        root, configs = self._project.root, self._project.configs
        cache_file = self._project.state / "manifests.json"
        files = [f"{configs}/project.yaml", f"{configs}/engines.yaml", *self._manifests()]
        cache = read_cache(cache_file, str(configs))
        valid = cache.valid(root)
        entries = {}
        for file in files:
            name = self._shown(file)
            entries[name] = valid.get(name) or self._resolve(Path(file), cache)
        changed = entries.keys() != valid.keys() or any(
            valid[name] is not entry for name, entry in entries.items()
        )
        if changed and self._remember:
            kept = self._kept(entries, valid, cache)
            if kept.entries.keys() != cache.entries.keys() or kept.states != cache.states:
                write_cache(cache_file, str(configs), kept)
        return self._by_name({name: entry for name, entry in entries.items() if entry is not None})

    @cached_property
    def _resolver(self) -> tuple[Resolver, Workspace]:
        # pydantic and yaml take longer to import than everything else here
        from buildsys.manifest.resolve import Resolver
        from buildsys.manifest.workspace import Workspace

        workspace = Workspace(self._project.root, self._project.configs, self._links_into)
        return Resolver(workspace), workspace

    def _resolve(self, file: Path, cache: Cache) -> Entry | None:
        resolver, workspace = self._resolver
        if not workspace.digests:
            workspace.digests.update(cache.digests)
        shared = file in (resolver.project_file, resolver.engines_file)
        with workspace.noting() as noted:
            found, errors = ([], resolver.shared(file)) if shared else resolver.resolve(file)
        self.errors += errors
        return (
            None
            if errors
            else Entry([(model.name, _to_json(model.data)) for model in found], sorted(noted))
        )

    def _kept(
        self, entries: Mapping[str, Entry | None], valid: Mapping[str, Entry], cache: Cache
    ) -> Cache:
        """Return the cache of the next load: what is right and rests on files that have settled."""
        seen = self._resolver[1].states if "_resolver" in self.__dict__ else {}
        digests = self._resolver[1].digests if "_resolver" in self.__dict__ else cache.digests

        def lasts(name: str, entry: Entry) -> bool:
            old = valid.get(name) is entry
            if (
                old
            ):  # a file that changed since the look at the cache was seen again by another entry
                return all(
                    path not in seen or seen[path] == cache.states[path] for path in entry.depends
                )
            return all(self._is_settled(seen[path]) for path in entry.depends)

        kept = {
            name: entry
            for name, entry in entries.items()
            if entry is not None and lasts(name, entry)
        }
        states = merged_states(
            seen, cache.states, paths=(path for entry in kept.values() for path in entry.depends)
        )
        return Cache(
            kept,
            states,
            {path: known for path, known in digests.items() if self._is_settled(known[0])},
        )

    def _is_settled(self, found: Stamp | None) -> bool:
        return found is None or found.is_settled(self._started_ns)

    def _by_name(self, entries: Mapping[str, Entry]) -> dict[str, ResolvedModel]:
        models: dict[str, ResolvedModel] = {}
        for file, entry in entries.items():
            for name, text in entry.models:
                if name in models:
                    self.errors.append(self._duplicate(file, name, models[name].file))
                models.setdefault(
                    name, ResolvedModel(name, file, text, _Origins(self._project, file, name))
                )
        return models

    def _duplicate(self, file: str, name: str, other: str) -> ManifestError:
        from buildsys.manifest.problem import Problem
        from buildsys.manifest.value_tree import ValueOrigin

        workspace = self._resolver[1]
        workspace.document(
            self._project.root / file
        )  # positions are looked up in what has been read
        text = f'the model "{name}" is in {other} already'
        problem = Problem(ValueOrigin(Path(file), ("model",)), text, "rename one of them")
        return workspace.errors([problem])[0]

    def _manifests(self) -> list[str]:
        folder = f"{self._project.configs}/models"
        try:
            return sorted(_yaml_files(folder), key=_parts)
        except OSError as error:
            hint = "put one YAML file per model there"
            text = f"the folder cannot be read: {(error.strerror or str(error)).lower()}"
            self.errors.append(ManifestError(Path(self._shown(folder)), (), text, hint))
            return []

    def _shown(self, path: str) -> str:
        return path.removeprefix(f"{self._project.root}{os.sep}")  # as text: there may be thousands


class _Origins(Mapping[str, str]):
    """The origins of one model, found by resolving its manifest again when the first one is asked for."""

    def __init__(self, project: Project, file: str, name: str) -> None:
        self._trace: Callable[[], dict[str, str]] = lambda: _trace_origins(project, file, name)

    @cached_property
    def _found(self) -> dict[str, str]:
        return self._trace()

    def __getitem__(self, key: str) -> str:
        return self._found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _trace_origins(project: Project, file: str, name: str) -> dict[str, str]:
    from buildsys.manifest.resolve import Resolver, origins_of
    from buildsys.manifest.workspace import Workspace

    workspace = Workspace(project.root, project.configs)
    models, errors = Resolver(workspace).resolve(project.root / file)
    if errors:
        raise ManifestErrors(tuple(errors))
    return next((origins_of(model.tree, workspace) for model in models if model.name == name), {})


def _to_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"))


def _folder(root: Path, variable: str, default: str) -> Path:
    return Path(os.path.normpath(root / (os.environ.get(variable) or default)))


def _parts(path: str) -> list[str]:
    return path.split(os.sep)  # noqa: PTH206 - Path takes thirty times as long


def _yaml_files(folder: str) -> Iterator[str]:
    """Yield the manifests below a folder, without hidden files and those to be extended."""
    for entry in os.scandir(folder):
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _yaml_files(entry.path)
        elif entry.name.endswith((".yaml", ".yml")):
            yield entry.path


def _distinct(errors: list[ManifestError]) -> list[ManifestError]:
    """Return errors without those that say the same of the same place, as every user of a shared value does."""
    return list({(error.file, error.key, error.problem): error for error in errors}.values())


def _place(error: ManifestError) -> tuple[str, int, int]:
    return str(error.file), error.line or 0, error.column or 0
