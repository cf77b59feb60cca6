"""From one manifest file to its models: extends, project defaults, matrix, axes, engines, then every check."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from buildsys.errors import ManifestError
from buildsys.manifest.checks.model import check_model, unused_dims
from buildsys.manifest.checks.referenced_files import check_references
from buildsys.manifest.dynamic_axes import name_dynamic_axes
from buildsys.manifest.engine_profiles import Profiles, build_profiles, resolve_engines
from buildsys.manifest.matrix import expand_matrix
from buildsys.manifest.problem import Problem, show_value, suggest, suggest_file
from buildsys.manifest.schema.model import CacheSpec, Engine, ModelSpec, Name, ToolchainSpec
from buildsys.manifest.schema_errors import schema_problems
from buildsys.manifest.toolchains import toolchain_problems, unknown_toolchains, used_toolchains
from buildsys.manifest.value_ranges import default_high
from buildsys.manifest.value_tree import Node, Origin, leaves, merge, plain
from buildsys.manifest.workspace import Workspace

MAX_LAYERS = 100  # files that one manifest extends, directly or not

Fault = Problem | ManifestError
_NOT_SHARED = ("model", "extends", "matrix")  # project defaults must not set them
_NOT_INHERITED = ("model", "extends")


@dataclass(frozen=True)
class Resolution:
    """One model of a manifest: its resolved data, and the tree that knows who set what."""

    name: str
    data: dict[str, Any]
    tree: Node


class Resolver:
    """Resolve manifests one by one over what they share: project.yaml and engines.yaml."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.project_file = workspace.configs / "project.yaml"
        self.engines_file = workspace.configs / "engines.yaml"
        self._toolchains: Node | None = None  # where project.yaml is broken
        self._defaults, self._project_errors = self._read_defaults()
        self._profiles, self._engine_errors = self._read_profiles()
        self._layers_left = MAX_LAYERS

    def shared(self, file: Path) -> list[ManifestError]:
        """Note a shared file and return what is wrong with it."""
        self._workspace.exists(file)
        return (
            self._project_errors
            if file == self.project_file
            else self._engine_errors + self._misfits()
        )

    def resolve(self, file: Path) -> tuple[list[Resolution], list[ManifestError]]:
        """Return the models of one manifest and everything that is wrong with them."""
        for shared in (self.project_file, self.engines_file):
            self._workspace.exists(shared)
        try:
            tree, problems = self._layers(file)
        except ManifestError as error:
            return [], [error]
        trees, misfits = expand_matrix(tree)
        problems += misfits
        resolutions = []
        for variant in trees:
            resolution, found = self._finish(variant, self._workspace.shown(file))
            problems += found
            resolutions += [resolution] if resolution else []
        return resolutions, self._workspace.errors(problems)

    def _finish(self, tree: Node, file: Path) -> tuple[Resolution | None, list[Fault]]:
        problems: list[Fault]
        tree, problems = self._normal_form(tree)
        tree = _without_shared_dims(tree, file)
        data: dict[str, Any] = {}
        try:
            data = ModelSpec.model_validate(plain(tree)).model_dump(mode="json", by_alias=True)
        except ValidationError as error:
            problems += schema_problems(error, tree, ModelSpec)
        taken = {fault.origin for fault in problems if isinstance(fault, Problem)}
        checks = [*check_model(tree, file), *check_references(tree, file, self._workspace)]
        for engine in _members(tree.get("engines")):
            checks += unknown_toolchains(engine, self._toolchains)
        problems += [problem for problem in checks if problem.origin not in taken]
        if problems:
            return None, problems
        toolchains = used_toolchains(
            data["engines"], plain(self._toolchains) if self._toolchains else {}
        )
        shared = {"toolchains": toolchains} if toolchains else {}
        return Resolution(
            data["model"], {**_complete(data, tree), **shared}, self._with_shared(tree, toolchains)
        ), []

    def _with_shared(self, tree: Node, toolchains: Mapping[str, Any]) -> Node:
        """Return the tree with the toolchains, so that who set what is known of them too."""
        if not toolchains or self._toolchains is None:
            return tree
        kept = {name: node for name, node in self._toolchains.items() if name in toolchains}
        return tree.with_member("toolchains", Node(kept, self._toolchains.origin))

    def _normal_form(self, tree: Node) -> tuple[Node, list[Fault]]:
        """Return the tree with the two short forms of a manifest, dynamic_axes and engine names, written out."""
        tree, axes = name_dynamic_axes(tree)
        tree, engines = resolve_engines(tree, self._profiles)
        return tree, [*axes, *engines]

    def _layers(self, file: Path) -> tuple[Node, list[Fault]]:
        problems: list[Fault] = []
        self._layers_left = MAX_LAYERS
        own = self._extended(file, (), problems)
        return merge(self._defaults, own), problems

    def _extended(self, file: Path, users: tuple[Path, ...], problems: list[Fault]) -> Node:
        """Return a file's map over those that it extends."""
        document = self._workspace.document(file)
        if not isinstance(document.value, dict):
            text = f"found {show_value(document.value)}; a manifest is a map of fields"
            raise self._workspace.errors([Problem(document.origin, text)])[0]
        under = Node({}, document.origin)
        for base in self._bases(document, file, (*users, file), problems):
            try:
                layer = self._extended(base, (*users, file), problems)
            except ManifestError as error:
                problems.append(error)
                continue
            under = merge(under, layer.without(*_NOT_INHERITED))
        return merge(under, document.without("extends"))

    def _bases(
        self, document: Node, file: Path, users: tuple[Path, ...], problems: list[Fault]
    ) -> Iterator[Path]:
        named = document.get("extends")
        if named is None:
            return
        for node in named.value if isinstance(named.value, list) else [named]:
            base = self._base(node, file, users)
            if isinstance(base, Problem):
                problems.append(base)
            else:
                yield base

    def _base(self, node: Node, file: Path, users: tuple[Path, ...]) -> Path | Problem:
        if not isinstance(node.value, str) or not node.value.strip() or "\0" in node.value:
            return Problem(
                node.origin, f"found {show_value(node.value)}; the path of a manifest is wanted"
            )
        path = Path(os.path.normpath(file.parent / node.value))
        inside = (self._workspace.root, self._workspace.configs)
        if Path(node.value).is_absolute() or not any(_is_inside(path, folder) for folder in inside):
            return Problem(node.origin, f"{show_value(node.value)} leaves the project")
        if path in users:
            names = " → ".join(user.name for user in (*users[users.index(path) :], path))
            return Problem(node.origin, f"the manifest extends itself: {names}")
        self._layers_left -= 1
        if self._layers_left < 0:
            return Problem(node.origin, f"the manifest extends more than {MAX_LAYERS} files")
        if not self._workspace.exists(path):
            hint = suggest_file(path) or "paths are relative to this file"
            return Problem(node.origin, f"no file {node.value} beside {file.name}", hint)
        if path.is_dir():
            return Problem(
                node.origin,
                f"{show_value(node.value)} is a folder; the path of a manifest is wanted",
            )
        return path

    def _read_defaults(self) -> tuple[Node, list[ManifestError]]:
        empty = Node({}, Origin(self._workspace.shown(self.project_file), ()))
        if not self._workspace.exists(self.project_file):
            self._toolchains = empty
            return empty, []
        try:
            document = self._workspace.document(self.project_file)
        except ManifestError as error:
            return empty, [error]
        problems = list(_project_problems(document))
        if not problems:
            self._toolchains = document.get("toolchains") or Node({}, document.origin)
        defaults = document.get("defaults")
        if defaults is None or not isinstance(defaults.value, dict):
            return empty, self._workspace.errors(problems)
        return defaults.without(*_NOT_SHARED), self._workspace.errors(problems)

    def _read_profiles(self) -> tuple[Profiles | None, list[ManifestError]]:
        if not self._workspace.exists(self.engines_file):
            return {}, []
        try:
            document = self._workspace.document(self.engines_file)
        except ManifestError as error:
            return None, [error]
        profiles, problems = build_profiles(document)
        return profiles, self._workspace.errors(problems)

    def _misfits(self) -> list[ManifestError]:
        """Return what is wrong with each profile by itself; costs a validator of its own."""
        problems: list[Problem] = []
        for profile in filter(None, (self._profiles or {}).values()):
            problems += [
                *_misfits_of(profile, Engine),
                *unknown_toolchains(profile, self._toolchains),
            ]
        return self._workspace.errors(problems)


def _misfits_of(node: Node, spec: Any) -> Iterator[Problem]:
    """Yield what is wrong with a part that is validated by itself."""
    validator: TypeAdapter[Any] = TypeAdapter(spec)
    try:
        validator.validate_python(plain(node))
    except ValidationError as error:
        yield from schema_problems(error, node, spec)


def _members(node: Node | None) -> list[Node]:
    return node.value if node is not None and isinstance(node.value, list) else []


def _project_problems(document: Node) -> Iterator[Problem]:
    if not isinstance(document.value, dict):
        yield Problem(
            document.origin,
            f"found {show_value(document.value)}; a map with the field defaults is wanted",
        )
    for name, node in document.items():
        if name == "cache":
            yield from _misfits_of(node, CacheSpec)
        elif name == "toolchains":
            yield from _misfits_of(node, dict[Name, ToolchainSpec])
            yield from toolchain_problems(node)
        elif name != "defaults":
            known = ("defaults", "cache", "toolchains")
            yield Problem(
                node.origin, "unknown field", suggest(name, known, what="known fields"), of_key=True
            )
        elif not isinstance(node.value, dict):
            yield Problem(
                node.origin, f"found {show_value(node.value)}; a map of manifest sections is wanted"
            )
        else:
            for section in _NOT_SHARED:
                if section in node.value:
                    text = f"{section} cannot be a default of all models"
                    yield Problem(node.value[section].origin, text, of_key=True)


def _without_shared_dims(tree: Node, file: Path) -> Node:
    """Drop the dimensions that a shared file declares and this model does not use."""
    dims = tree.get("dims")
    if dims is None or not isinstance(dims.value, dict):
        return tree
    shared = [name for name in unused_dims(tree) if dims.value[name].origin.file != file]
    return tree.with_member("dims", dims.without(*shared))


def _complete(data: dict[str, Any], tree: Node) -> dict[str, Any]:
    """Fill in the defaults that depend on another field."""
    for name, tensor in data["inputs"].items():
        if tensor["data"] is None or tensor["data"].get("random") != "integers":
            continue
        if tree.value["inputs"].value[name].value["data"].get("high") is None:
            tensor["data"]["high"] = default_high(tensor["dtype"])
    for engine in data["engines"]:
        if engine["tolerance"] is not None:
            given = {
                field: limit for field, limit in engine["tolerance"].items() if limit is not None
            }
            engine["tolerance"] = {**data["verify"][engine["precision"]], **given}
    return data


def origins_of(tree: Node, workspace: Workspace) -> dict[str, str]:
    """Return dotted field -> ``file:line`` for every value that a file set."""
    return {".".join(map(str, key)): workspace.line(node) for key, node in leaves(tree)}


def _is_inside(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False
