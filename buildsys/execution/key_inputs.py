"""What an action depends on at one moment: the key of that moment, and whether it still holds later."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from buildsys.execution.action_key import ABSENT, action_key, content_parts, declared_parts
from buildsys.plan.action import Action, ToolchainRef
from buildsys.plan.dependencies.python_imports import Import
from buildsys.plan.dependencies.source_tree import Folders, Reach, SourceTree
from buildsys.store.file_digests import DigestCache, FileDigest
from buildsys.system import devices, distributions, versions
from buildsys.system.files import sha256_of
from buildsys.system.interpreters.toolchain import Toolchain, locate_toolchain
from buildsys.system.text_cache import TextCache

_PACKAGE = "buildsys"
_CODE_ROOT = str(Path(__file__).resolve().parents[2])
# stages name what they use of these; what else they require does not count
_KNOWN_LIBRARIES = (
    "ml-dtypes",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "torch",
    "torchvision",
)


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

    def __init__(self, project: Path, build: Path, memo: DigestCache, imports: TextCache) -> None:
        self._project = str(project)
        self._build = str(build)
        self._memo = memo
        self._contents = imports
        self._folders = Folders()
        self._facts: dict[tuple[object, ...], dict[str, str]] = {}
        self._providers: dict[tuple[ToolchainRef | None, str], distributions.Provider] = {}
        self._code: dict[tuple[str, ...], dict[str, str | None]] = {}

    def snapshot(self, action: Action) -> Snapshot:
        """Return the snapshot of this moment. Raises: StageError: a file cannot be read."""
        files: dict[str, FileDigest | None] = {}
        parts = declared_parts(action)
        parts |= self._surroundings(action)
        parts |= content_parts("code", self._code_of(action.code))
        missing = self._add_inputs(action, parts, files)
        self._add_weights(action, parts, files)
        if action.sources:
            self._add_sources(action, parts, files)
        return Snapshot(action.target, parts, files, missing)

    def changed_content(self, action: Action, before: Snapshot, now: Snapshot) -> str:
        """Return the name of a file whose content is not what ``before`` says, or an empty string."""
        for label in sorted(before.files.keys() | now.files.keys()):
            if _digest(before.files.get(label)) != _digest(now.files.get(label)):
                return label.partition(":")[2]
        pinned = self._code_of(action.code)
        found = self._memo.digests(
            map(_file_of, pinned)
        )  # as long as these are the same, they import the same
        return next(
            (name for name, digest in pinned.items() if _digest(found[_file_of(name)]) != digest),
            "",
        )

    def _add_inputs(
        self, action: Action, parts: dict[str, str], files: dict[str, FileDigest | None]
    ) -> tuple[str, ...]:
        paths = {ref.path: f"{self._build}/{ref.path}" for ref in action.inputs.values()}
        found = self._memo.digests(paths.values())
        digests = {name: found[path] for name, path in paths.items()}
        files.update({f"input:{name}": digest for name, digest in digests.items()})
        parts |= content_parts("input", {name: _digest(digest) for name, digest in digests.items()})
        return tuple(
            ref.path
            for ref in action.inputs.values()
            if not ref.optional and digests[ref.path] is None
        )

    def _add_weights(
        self, action: Action, parts: dict[str, str], files: dict[str, FileDigest | None]
    ) -> None:
        for name, wanted in action.weights.items():
            path = f"{self._project}/{name}"
            files[f"weights:{name}"] = found = self._memo.digest(path)
            parts[f"weights:{name}"] = ABSENT if found is None else found.digest
            # a sha256 that the file has adds nothing to its digest; with another one the stage fails
            for label in [label for label in parts if label.endswith("source.weights.sha256")]:
                met = wanted is None or (
                    found is not None and self._sha256(path, found.digest) == wanted
                )
                if met:
                    del parts[label]
                else:
                    parts[label] = f"{wanted}, which the file does not have"

    def _sha256(self, path: str, digest: str) -> str:
        known = self._contents.get(name := f"sha256/1:{digest}")
        if known is None:
            known = sha256_of(Path(path))
            if _digest(self._memo.digest(path)) != digest:
                return ""
            self._contents.set(name, known)
        return known

    def _add_sources(
        self, action: Action, parts: dict[str, str], files: dict[str, FileDigest | None]
    ) -> None:
        reach = self._tree(self._project, files).reach(action.sources)
        parts |= content_parts("source", reach.files)
        modules: dict[str, list[Import]] = {}
        for item in reach.outside:
            modules.setdefault(item.module.partition(".")[0], []).append(item)
        variables = list(reach.variables)
        for module, imports in modules.items():
            versions, root = self._provider(module, action.runs_in)
            parts |= {f"tool:{name}": version for name, version in versions.items()}
            if root is not None and root != self._project:
                outside = self._outside(root, module, imports, files)
                parts |= content_parts("source", outside.files)
                variables += outside.variables
        # not the value itself: it may be a secret, and records are kept and shared
        seen = {**os.environ, **dict(action.toolchain.env if action.toolchain else ())}
        read = {name: seen.get(name) for name in variables}
        parts |= {
            f"env:{name}": "unset" if value is None else _hidden(value)
            for name, value in read.items()
        }

    def _outside(
        self, root: str, module: str, imports: list[Import], files: dict[str, FileDigest | None]
    ) -> Reach:
        """Return what a module depends on that lies in a folder of its own: on PYTHONPATH, or installed editable."""
        return self._tree(root, files, package=module).reach((), imports)

    def _provider(self, module: str, runs_in: ToolchainRef | None) -> distributions.Provider:
        """Return what stands behind a module in the interpreter that runs the stage."""
        wanted = runs_in, module
        if wanted not in self._providers:
            elsewhere = self._located(runs_in)
            path = None if elsewhere is None else versions.module_path(elsewhere, self._contents)
            found = distributions.distributions_of(
                [module], self._contents, known=_KNOWN_LIBRARIES, path=path
            )
            self._providers[wanted] = distributions.Provider(
                versions.tool_versions(found, elsewhere, self._contents),
                distributions.source_root(module, path),
            )
        return self._providers[wanted]

    def _surroundings(self, action: Action) -> dict[str, str]:
        wanted = (
            action.tools,
            action.peer_tools,
            action.toolchain,
            action.devices,
            action.environment,
        )
        if wanted not in self._facts:
            tools = versions.tool_versions(
                action.tools, self._located(action.runs_in), self._contents
            )
            device_facts = devices.device_facts(action.devices)
            variables = versions.environment_facts(action.environment, os.environ)
            self._facts[wanted] = {
                **{f"tool:{name}": version for name, version in tools.items()},
                **{f"device:{name}": value for name, value in device_facts.items()},
                **{f"env:{name}": value for name, value in variables.items()},
                **(self._toolchain_parts(action, action.toolchain) if action.toolchain else {}),
            }
        return self._facts[wanted]

    def _toolchain_parts(self, action: Action, named: ToolchainRef) -> dict[str, str]:
        """Return what a toolchain adds; where it works beside our own interpreter, both may have the same names."""
        tools = versions.tool_versions(action.peer_tools, self._located(named), self._contents)
        beside = f"{named.name}/" if action.peer_tools else ""
        return {
            **{
                f"tool:{beside if name in action.tools else ''}{name}": version
                for name, version in tools.items()
            },
            **{f"env:{beside}{name}": value for name, value in named.env},
        }

    def _located(self, named: ToolchainRef | None) -> Toolchain | None:
        return None if named is None else locate_toolchain(*named, Path(self._project), os.environ)

    def _tree(
        self, root: str, files: dict[str, FileDigest | None], *, package: str = ""
    ) -> SourceTree:
        prefix = len(root) + 1

        def look(path: str) -> str | None:
            files[f"source:{path[prefix:]}"] = found = self._memo.digest(path)
            return _digest(found)

        return SourceTree(root, look, self._contents, package=package, folders=self._folders)

    def _code_of(self, modules: tuple[str, ...]) -> dict[str, str | None]:
        """Return the digests of modules of ours and of all that they import, by name."""
        if modules not in self._code:
            names = self._imported(modules)
            self._code[modules] = {
                name: _digest(self._first_code.get(_file_of(name))) for name in names
            }
        return self._code[modules]

    def _imported(self, modules: tuple[str, ...]) -> list[str]:
        """Return the names of modules of ours and of all that they import, which all of our code decides."""
        own = [name for name in modules if name.partition(".")[0] == _PACKAGE]
        asked = f"closure/1:{self._code_digest}:{' '.join(own)}"
        known = self._contents.get(asked)
        if known is None:
            tree = SourceTree(
                _CODE_ROOT,
                lambda path: _digest(self._first_code.get(path)),
                self._contents,
                package=_PACKAGE,
            )
            found = tree.closure(map(_module_path, own))
            known = json.dumps([path.removesuffix(".py").replace("/", ".") for path in found])
            self._contents.set(asked, known)
        names: list[str] = json.loads(known)
        return names

    @cached_property
    def _first_code(self) -> dict[str, FileDigest | None]:
        """Our own code as it was at the first look, all of it, before a worker can have loaded any."""
        return self._memo.digests(sorted(own_code()))

    @cached_property
    def _code_digest(self) -> str:
        prefix = len(_CODE_ROOT) + 1
        code = [(path[prefix:], _digest(found)) for path, found in self._first_code.items()]
        return hashlib.sha256(json.dumps(code).encode()).hexdigest()


def own_code(folder: str = "") -> Iterator[str]:
    """Yield the paths of all modules of this package, or of one of its folders."""
    for entry in os.scandir(folder or f"{_CODE_ROOT}/{_PACKAGE}"):
        if entry.name.endswith(".py"):
            yield entry.path
        elif entry.is_dir():
            yield from own_code(entry.path)


def _file_of(name: str) -> str:
    return f"{_CODE_ROOT}/{name.replace('.', '/')}.py"


def _module_path(module: str) -> str:
    path = module.replace(".", "/")
    return f"{path}/__init__.py" if Path(_CODE_ROOT, path).is_dir() else f"{path}.py"


def _hidden(value: str) -> str:
    return f"set, digest {hashlib.sha256(value.encode(errors='surrogateescape')).hexdigest()[:16]}"


def _digest(found: FileDigest | None) -> str | None:
    return None if found is None else found.digest
