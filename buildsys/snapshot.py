"""What an action depends on at one moment: the key of that moment, and whether it still holds later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from buildsys import toolchain
from buildsys.graph.action import Action
from buildsys.graph.key import action_key, content_parts, declared_parts
from buildsys.graph.sources import Memo, SourceTree
from buildsys.store.digest import DigestMemo, FileDigest

_PACKAGE = "buildsys"
_CODE_ROOT = str(Path(__file__).resolve().parent.parent)


@dataclass(frozen=True)
class Snapshot:
    """The parts of an action's key and the files that they were read from."""

    target: str
    parts: Mapping[str, str]
    files: Mapping[str, FileDigest | None]  # label of the part -> what was found
    missing: tuple[str, ...]  # inputs that must exist and do not

    @cached_property
    def key(self) -> str:
        """The action key of this moment."""
        return action_key(self.target, self.parts)


class Surveyor:
    """Takes snapshots. Files are looked at every time; libraries, devices and our own code once per process."""

    def __init__(self, project: Path, build: Path, memo: DigestMemo, imports: Memo, actions: Iterable[Action]) -> None:
        self._project = str(project)
        self._build = str(build)
        self._memo = memo
        self._imports = imports
        self._stages = {action.code for action in actions}
        self._facts: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, str]] = {}

    def snapshot(self, action: Action) -> Snapshot:
        """Return the snapshot of this moment. Raises: StageError: a file cannot be read."""
        files: dict[str, FileDigest | None] = {}
        parts = declared_parts(action)
        parts |= self._libraries_and_devices(action)
        parts |= content_parts("code", self._code[action.code])
        missing = self._add_inputs(action, parts, files)
        if action.sources:
            parts |= content_parts("source", self._user_tree(files).closure(action.sources))
        return Snapshot(action.target, parts, files, missing)

    def changed_content(self, action: Action, before: Snapshot, now: Snapshot) -> str:
        """Return the name of a file whose content is not what ``before`` says, or an empty string."""
        for label in sorted(before.files.keys() | now.files.keys()):
            if _digest(before.files.get(label)) != _digest(now.files.get(label)):
                return label.partition(":")[2]
        pinned = self._code[action.code]
        code = _code_digests(self._code_tree(), action.code)
        return next((name for name, digest in code.items() if digest != pinned.get(name)), "")

    def _add_inputs(
        self, action: Action, parts: dict[str, str], files: dict[str, FileDigest | None]
    ) -> tuple[str, ...]:
        paths = {ref.path: f"{self._build}/{ref.path}" for ref in action.inputs.values()}
        found = self._memo.digests(paths.values())
        digests = {name: found[path] for name, path in paths.items()}
        files.update({f"input:{name}": digest for name, digest in digests.items()})
        parts |= content_parts("input", {name: _digest(digest) for name, digest in digests.items()})
        return tuple(ref.path for ref in action.inputs.values() if not ref.optional and digests[ref.path] is None)

    def _libraries_and_devices(self, action: Action) -> dict[str, str]:
        wanted = (action.tools, action.devices)
        if wanted not in self._facts:
            tools = toolchain.tool_versions(action.tools)
            devices = toolchain.device_facts(action.devices)
            self._facts[wanted] = {
                **toolchain.python_facts(),
                **{f"tool:{name}": version for name, version in tools.items()},
                **{f"device:{name}": value for name, value in devices.items()},
            }
        return self._facts[wanted]

    def _user_tree(self, files: dict[str, FileDigest | None]) -> SourceTree:
        prefix = len(self._project) + 1

        def look(path: str) -> str | None:
            files[f"source:{path[prefix:]}"] = found = self._memo.digest(path)
            return _digest(found)

        return SourceTree(self._project, look, self._imports)

    @cached_property
    def _code(self) -> dict[tuple[str, ...], dict[str, str | None]]:
        """Digests of the code of all stages, taken together before a worker can have loaded any of it."""
        tree = self._code_tree()
        return {modules: _code_digests(tree, modules) for modules in self._stages}

    def _code_tree(self) -> SourceTree:
        def look(path: str) -> str | None:
            return _digest(self._memo.digest(path))

        return SourceTree(_CODE_ROOT, look, self._imports, package=_PACKAGE)


def _code_digests(tree: SourceTree, modules: tuple[str, ...]) -> dict[str, str | None]:
    found = tree.closure(_module_path(name) for name in modules if name.partition(".")[0] == _PACKAGE)
    return {path.removesuffix(".py").replace("/", "."): digest for path, digest in found.items()}


def _module_path(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if Path(_CODE_ROOT, path).is_dir() else f"{path}.py"


def _digest(found: FileDigest | None) -> str | None:
    return None if found is None else found.digest
