"""Action keys: digests of labelled parts (options, files, libraries, code)."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from buildsys.execution.baselines import GateBaselines
from buildsys.execution.key_parts import (
    FILES,
    TOOL,
    EnvironmentParts,
    Parts,
    encode,
    flatten_options,
    lacking,
    variables_of,
)
from buildsys.execution.recorded_reads import Reads, ReadValues, reads_outside, undeclared
from buildsys.plan.action import NO_NEEDS, Action, FileRef
from buildsys.plan.dependencies import Import, SourceTree
from buildsys.store.file_digests import DigestCache, FileDigest
from buildsys.system.files import (
    MAX_RESULT_BYTES,
    TextCache,
    path_of,
    read_limited,
    sha256_of,
    short_digest,
)
from buildsys.system.weight_names import is_index, shards_of

SCHEMA = "buildsys/action/3"  # bump when the meaning of any part changes
NEEDS = "needs:machine"  # what this machine lacks; nothing if it meets all needs
ABSENT = "absent"  # the value of a missing file or distribution
_PACKAGE = "buildsys"
_CODE_ROOT = str(Path(__file__).resolve().parents[2])
Files = dict[str, FileDigest | None]


@dataclass(frozen=True)
class ActionKey:
    """The key of an action at one moment, with its files."""

    target: str
    make_parts: Callable[[], Mapping[str, str]] = field(repr=False, compare=False)
    files: Mapping[str, FileDigest | None]  # label of a part -> file, None if missing
    missing: tuple[str, ...]  # required inputs that do not exist
    # what the last run read outside the other parts: label of its part -> file:line
    reads: Reads = field(default_factory=dict)
    covered: frozenset[str] = frozenset()  # absolute paths of files and of declared folders

    @cached_property
    def parts(self) -> Mapping[str, str]:
        """Values and content digests by readable label.

        Labels are ``config:export.opset``, ``tool:torch``, ``device:gpu.name`` or
        ``input:resnet50/export/model.onnx``. They are made on first use, as a query needs none for
        a target that was never built.
        """
        return self.make_parts()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the target and all parts."""
        content = [SCHEMA, self.target, sorted(self.parts.items())]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    @cached_property
    def undeclared(self) -> Reads:
        """The reads to report or, with ``strict_reads``, to refuse."""
        return undeclared(self.reads, self.parts)

    def without_reads(self) -> "ActionKey":
        """Remove the reads: the key as it is before the first run."""
        if not self.reads:
            return self  # with the digest, if that is known
        parts = {label: value for label, value in self.parts.items() if label not in self.reads}
        return replace(self, make_parts=lambda: parts, reads={})


class KeyBuilder:
    """Builds action keys; gates' need ``baselines``.

    Files are examined at every call; libraries, devices and our own code once per instance, with
    the first key whose parts are used. ``texts`` caches facts about file contents.
    """

    def __init__(
        self,
        project: Path,
        build: Path,
        digests: DigestCache,
        texts: TextCache,
        baselines: GateBaselines | None = None,
        code: Sequence[str] = (),
    ) -> None:
        """Prepare. ``code`` names folders to import user code from."""
        self._code_roots = code
        self._baselines = baselines
        self._project = str(project)
        self._build = str(build)
        self._digests = digests
        self._texts = texts
        self._values = ReadValues(str(project), digests, {str(build)})
        self._environment = EnvironmentParts(str(project), texts)
        self._code: dict[tuple[str, ...], dict[str, str]] = {}

    def build(
        self, action: Action, reads: Reads | None = None, *, from_repository: bool = False
    ) -> ActionKey:
        """Build the present key of an action. ``reads`` are those of its last run.

        ``from_repository`` leaves out the libraries, devices and variables that its stage lists,
        and our own code: reading them takes seconds where nothing is known yet.
        Raises: StageError: a file cannot be read.
        """
        files: Files = {}
        covered: set[str] = set()
        parts: Parts = {}
        refs = [*action.inputs.values()]
        paths = {ref.path: f"{self._build}/{ref.path}" for ref in refs}
        folders = [ref for ref in refs if ref.folder]
        listed = [name for ref in folders for name in listed_files(ref, Path(self._build))]
        paths |= {name: f"{self._build}/{name}" for name in listed}
        digests = self._digests.digests(paths.values())
        for name, path in paths.items():
            files[f"input:{name}"] = digest = digests[path]
            parts[f"input:{name}"] = ABSENT if digest is None else digest.digest
        required = (*(ref.path for ref in refs if not ref.optional), *listed)
        missing = tuple(name for name in required if digests[paths[name]] is None)
        wrong_sha256 = ""
        for name, sha256 in action.weights.items():
            shards = [name, *self._shards(name)]
            for shard in shards:
                path = path_of(self._project, shard)
                files[f"weights:{shard}"] = digest = self._digests.digest(path)
                parts[f"weights:{shard}"] = ABSENT if digest is None else digest.digest
                covered.add(path)
            contents = [parts[f"weights:{shard}"] for shard in shards]
            if sha256 and self._sha256(shards, contents) != sha256:
                wrong_sha256 = f"{sha256}, which the file does not have"
        covered.update(paths.values())
        if action.sources:
            self._add_sources(action, parts, files, covered)
        for package in action.packages:
            self._add_package(action, package, parts, files, covered)
        if action.reads:
            declared, read, folders_read = self._values.declared(action.reads, variables_of(action))
            parts |= declared
            files |= {f"read:{path}": digest for path, digest in read.items()}
            covered.update(read, folders_read)

        def make_parts() -> Parts:
            made = declared_parts(action)
            if not from_repository:
                made |= self._environment.of_action(action)
                if action.needs != NO_NEEDS and (lacks := lacking(action.needs)):
                    made[NEEDS] = lacks
                made |= self._code_parts(action.code)
            for label in [name for name in made if name.endswith("source.weights.sha256")]:
                # a matching sha256 adds nothing to the digest; with another one the stage fails
                if wrong_sha256:
                    made[label] = wrong_sha256
                elif action.weights:
                    del made[label]
            if from_repository:
                return made | parts
            tools = (label for label in parts if label.startswith(TOOL))
            imported = [label.removeprefix(TOOL) for label in tools if not label.endswith(FILES)]
            made |= parts | self._environment.identities(imported, action.runs_in)
            return made | (self._baselines.parts(action, made) if self._baselines else {})

        key = ActionKey(action.target, make_parts, files, missing, covered=frozenset(covered))
        return self.with_reads(action, key, reads) if reads else key

    def with_reads(self, action: Action, key: ActionKey, reads: Reads) -> ActionKey:
        """Replace the reads of ``key``, with their present values."""
        if not reads and not key.reads:
            return key
        key = key.without_reads()
        new = {label: where for label, where in reads.items() if label not in key.parts}
        parts = self._values.parts(new, variables_of(action))
        labels = (label for label in new if label.startswith(TOOL) and not label.endswith(FILES))
        if tools := [label.removeprefix(TOOL) for label in labels]:
            parts |= self._environment.of_distributions(tools, action.runs_in)
        whole = {**key.parts, **parts}
        lines = {label: new.get(label, "") for label in parts}
        return replace(key, make_parts=lambda: whole, reads=lines)

    def after_run(
        self, action: Action, key: ActionKey, reads: Sequence[Sequence[Any]]
    ) -> tuple[ActionKey, str]:
        """Add the reads of a run to ``key``; return it with any changed one.

        ``reads`` come from the worker.
        """
        key = key.without_reads()
        outside, changed = reads_outside(
            reads,
            key.covered,
            key.parts,
            self._values,
            lambda module: self._environment.of_module(action.runs_in, module)[0],
        )
        return self.with_reads(action, key, outside) if outside else key, changed

    def changed_file(self, action: Action, before: ActionKey, now: ActionKey) -> str:
        """Find a file or module changed since ``before``; "" if there is none."""
        for label in sorted(before.files.keys() | now.files.keys()):
            if _digest(before.files.get(label)) != _digest(now.files.get(label)):
                return label.partition(":")[2]
        # the modules need not be followed again: with equal contents they import the same
        pinned = self._code_parts(action.code)
        names = [label.partition(":")[2] for label in pinned]
        digests = self._digests.digests(map(_module_file, names))
        present = content_parts("code", {n: _digest(digests[_module_file(n)]) for n in names})
        changed = (label for label, value in pinned.items() if present[label] != value)
        return next(changed, "").partition(":")[2]

    def _shards(self, name: str) -> list[str]:
        """List the other files of weights with an index."""
        path = path_of(self._project, name)
        if not is_index(name) or (digest := self._digests.digest(path)) is None:
            return []
        text = self._texts.get(cached := f"shards/1:{digest.digest}")
        if text is None:
            text = json.dumps([shard.name for shard in shards_of(Path(path))])
            self._texts.set(cached, text)
        return [str(Path(name).with_name(shard)) for shard in json.loads(text)]

    def _sha256(self, names: Sequence[str], digests: Sequence[str]) -> str:
        """Digest concatenated files; "" if one is missing."""
        sha256 = self._texts.get(cached := f"sha256/1:{' '.join(digests)}")
        if sha256 is None and ABSENT not in digests:
            paths = [path_of(self._project, name) for name in names]
            sha256 = sha256_of(*map(Path, paths))
            if [_digest(self._digests.digest(path)) for path in paths] != [*digests]:
                return ""  # written meanwhile
            self._texts.set(cached, sha256)
        return sha256 or ""

    def _add_sources(self, action: Action, parts: Parts, files: Files, covered: set[str]) -> None:
        tree = self._tree(self._project, files, covered)
        inside = tree.dependencies(action.sources)
        parts |= content_parts("source", inside.files)
        modules: dict[str, list[Import]] = {}
        for item in inside.outside:
            modules.setdefault(item.module.partition(".")[0], []).append(item)
        variables = list(inside.variables)
        for module, imports in modules.items():
            tools, root = self._environment.of_module(action.runs_in, module)
            parts |= tools
            if root is not None and root != self._project:  # on PYTHONPATH, or installed editable
                variables += self._add_imports(root, imports, parts, files, covered)
        environment = variables_of(action)
        for name in variables:
            value = environment.get(name)
            if value is None:
                parts[f"env:{name}"] = "unset"
            else:  # not the value itself: it may be a secret, and records are kept and shared
                digest = short_digest(value.encode(errors="surrogateescape"))
                parts[f"env:{name}"] = f"set, digest {digest}"

    def _add_package(
        self, action: Action, module: str, parts: Parts, files: Files, covered: set[str]
    ) -> None:
        top = module.partition(".")[0]
        tools, root = self._environment.of_package(action, top)
        parts |= tools
        if root is not None:  # on PYTHONPATH, or installed editable
            self._add_imports(root, [Import(0, module)], parts, files, covered)

    def _add_imports(
        self, root: str, imports: list[Import], parts: Parts, files: Files, covered: set[str]
    ) -> list[str]:
        """Add imported files of a package elsewhere; return the variables that they read."""
        package = imports[0].module.partition(".")[0]
        # the project may have a package of this name
        own = tuple(f"source:{package}{end}" for end in ("/", "."))
        prefix = "…/" if any(label.startswith(own) for label in parts) else ""
        tree = self._tree(root, files, covered, package=package, prefix=prefix)
        dependencies = tree.dependencies((), imports)
        parts |= content_parts("source", dependencies.files)
        return dependencies.variables

    def _tree(
        self, root: str, files: Files, covered: set[str], *, package: str = "", prefix: str = ""
    ) -> SourceTree:
        def look(path: str) -> str | None:
            covered.add(path)
            files[f"source:{tree.name(path)}"] = digest = self._digests.digest(path)
            return _digest(digest)

        code = () if package else self._code_roots
        tree = SourceTree(root, look, self._texts, code=code, package=package, prefix=prefix)
        return tree

    def _code_parts(self, modules: tuple[str, ...]) -> Mapping[str, str]:
        """Digest our ``modules`` and their imports; all keys share their texts."""
        if not modules:
            return {}
        if modules not in self._code:
            own = [name for name in modules if name.partition(".")[0] == _PACKAGE]
            loaded, digest = self._loaded_code
            cached = f"closure/1:{digest}:{' '.join(own)}"
            text = self._texts.get(cached)
            if text is None:
                paths = [name.replace(".", "/") for name in own]
                sources = [
                    f"{path}/__init__.py" if Path(_CODE_ROOT, path).is_dir() else f"{path}.py"
                    for path in paths
                ]
                files = self._code_tree.dependencies(sources).files
                text = json.dumps([file.removesuffix(".py").replace("/", ".") for file in files])
                self._texts.set(cached, text)
            names: list[str] = json.loads(text)
            digests = {name: _digest(loaded.get(_module_file(name))) for name in names}
            self._code[modules] = content_parts("code", digests)
        return self._code[modules]

    @cached_property
    def _code_tree(self) -> SourceTree:
        """The imports among our own modules, which most stages share."""
        loaded, _ = self._loaded_code
        return SourceTree(
            _CODE_ROOT, lambda path: _digest(loaded.get(path)), self._texts, package=_PACKAGE
        )

    @cached_property
    def _loaded_code(self) -> tuple[Files, str]:
        """Our own modules and their digest, taken before any worker starts."""
        files, prefix = self._digests.digests(sorted(own_code())), len(_CODE_ROOT) + 1
        code = [(path[prefix:], _digest(digest)) for path, digest in files.items()]
        return files, hashlib.sha256(json.dumps(code).encode()).hexdigest()


def listed_files(ref: FileRef, build: Path) -> list[str]:
    """List a folder's files, as paths in the build folder.

    A listing may come from another machine: names outside of the folder are left out.
    """
    try:
        names = json.loads(read_limited(build / ref.path, MAX_RESULT_BYTES))
        paths = [PurePosixPath(name) for name in names]
    except (OSError, ValueError, TypeError):  # missing, or damaged: its digest is in the key
        return []
    inside = (path for path in paths if path.parts and ".." not in path.parts)
    return [f"{ref.folder}/{path}" for path in inside if not path.is_absolute()]


def declared_parts(action: Action) -> dict[str, str]:
    """List the parts for an action's options and file roles."""
    parts = flatten_options(action.options, "config:")
    for name, files in (("inputs", action.inputs), ("outputs", action.outputs)):
        parts[name] = encode({role: ref.path for role, ref in sorted(files.items())})
    return parts


def content_parts(kind: str, digests: Mapping[str, str | None]) -> dict[str, str]:
    """Label one part per file as ``kind:NAME``."""
    return {f"{kind}:{name}": ABSENT if d is None else d for name, d in digests.items()}


def own_code(folder: str = "") -> Iterator[str]:
    """Yield the paths of our modules, or of those in a folder."""
    for entry in os.scandir(folder or f"{_CODE_ROOT}/{_PACKAGE}"):
        if entry.name.endswith(".py"):
            yield entry.path
        elif entry.name != "__pycache__" and entry.is_dir():
            yield from own_code(entry.path)


def _module_file(name: str) -> str:
    return f"{_CODE_ROOT}/{name.replace('.', '/')}.py"


def _digest(file: FileDigest | None) -> str | None:
    return None if file is None else file.digest
