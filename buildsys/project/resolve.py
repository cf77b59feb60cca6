"""Resolution of one manifest file into its models.

Layers, matrix, ``dynamic_axes`` and engine presets are expanded first, then everything is checked.
"""

from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from buildsys.errors import ManifestError
from buildsys.manifest.layers import (
    Errors,
    Presets,
    build_presets,
    expand_matrix,
    merge,
    name_dynamic_axes,
    read_layers,
    resolve_engines,
)
from buildsys.manifest.problem import expected, show_value, suggest
from buildsys.manifest.schema.project import ProjectSpec
from buildsys.manifest.schema_errors import schema_errors
from buildsys.manifest.value_tree import FieldPath, ValueNode, ValueOrigin, plain
from buildsys.manifest.view import ManifestView
from buildsys.manifest.workspace import Workspace
from buildsys.manifest.yaml_reader import read_nodes
from buildsys.project.checks import check_model
from buildsys.project.model import Engine, ModelSpec, model_fields
from buildsys.stages.table import GRAPH_SECTIONS, NETWORK_SECTIONS
from buildsys.system.backend_registry import package_files

Resolution = tuple[dict[str, Any], ValueNode]  # a model, and the origins of its values
_NOT_SHARED = ("model", "extends", "matrix")  # not allowed in project defaults


class Resolver:
    """Resolve manifests one by one with shared project.yaml and engines.yaml."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.project_file = workspace.configs / "project.yaml"
        self.engines_file = workspace.configs / "engines.yaml"
        self._toolchains: ValueNode | None = None  # None: project.yaml is broken
        self._presets: Presets | None = None  # None: engines.yaml is broken
        self._defaults = ValueNode({}, ValueOrigin(workspace.relative(self.project_file), ()))
        self._project_errors: Errors = []
        self._engine_errors: Errors = []
        try:
            self._read_project(self._read(self.project_file, "a map of settings"))
        except ManifestError as error:
            self._project_errors = [error]
        try:
            presets = self._read(self.engines_file, "a map of engine presets")
            self._presets = build_presets(presets, self._engine_errors)
        except ManifestError as error:
            self._engine_errors = [error]

    def shared_errors(self, file: Path) -> Errors:
        """Record a shared file and return its errors."""
        self.workspace.exists(file)
        if file == self.project_file:
            return self._project_errors
        errors = [*self._engine_errors]
        for preset in filter(None, (self._presets or {}).values()):
            errors += _validate(preset, Engine)
            errors += self._entry_errors(preset)
        return errors

    def resolve(self, file: Path, change: str = "") -> tuple[list[Resolution], Errors]:
        """Resolve the models of one manifest; return them and all of its errors.

        ``change`` is YAML to merge over the manifest.
        """
        for shared in (self.project_file, self.engines_file):
            self.workspace.exists(shared)
        try:
            tree = merge(self._defaults, read_layers(self.workspace, file))
            if change:
                tree = merge(tree, read_nodes(Path("change"), change.encode()))
            variants = expand_matrix(tree)
        except ManifestError as error:
            return [], [error]
        name = self.workspace.relative(file)
        resolved = [self._resolve_model(variant, name) for variant in variants]
        models = [model for model, _ in resolved if model]
        return models, [error for _, errors in resolved for error in errors]

    def _resolve_model(self, tree: ValueNode, file: Path) -> tuple[Resolution | None, Errors]:
        errors: Errors = []
        tree = name_dynamic_axes(_without_inherited_sections(tree, file), errors)
        tree = resolve_engines(tree, self._presets, errors)
        fields: dict[str, Any] = {}
        refused: list[FieldPath] = []
        written = plain(tree)
        try:
            fields = model_fields(written, self.workspace)
        except ValidationError as error:
            field_errors, refused = schema_errors(error, tree, ModelSpec)
            errors += field_errors
        reported = {(error.file, error.key) for error in errors}
        view = ManifestView(tree, written, file, self.workspace, refused)
        checks = [*check_model(view)]
        sections = (section for name in ("engines", "commands") if (section := tree.get(name)))
        for entry in chain.from_iterable(section.entries() for section in sections):
            checks += self._entry_errors(entry)
        for check in checks:
            parts = ((check.file, check.key[:depth]) for depth in range(1, len(check.key) + 1))
            if reported.isdisjoint(parts):
                errors.append(check)
        return (None, errors) if errors else ((fields, self._with_toolchains(tree, fields)), [])

    def _with_toolchains(self, tree: ValueNode, fields: dict[str, Any]) -> ValueNode:
        """Add the toolchains that a model uses to its fields, and their origins to the tree."""
        names = {entry["toolchain"] for entry in (*fields["engines"], *fields["commands"])}
        declared = self._toolchains.items() if self._toolchains else ()
        used = ValueNode({name: node for name, node in declared if name in names}, tree.origin)
        if not used.value:
            return tree
        fields["toolchains"] = {
            name: {"python": entry["python"], "env": entry.get("env") or {}}
            for name, entry in plain(used).items()
        }
        return tree.with_member("toolchains", used)

    def _entry_errors(self, entry: ValueNode) -> Errors:
        """Check an engine's or command's toolchain, and record its backend's package."""
        backend, name = entry.get("backend"), entry.get("toolchain")
        if backend is not None and isinstance(backend.value, str):
            for file in package_files(backend.value):
                self.workspace.exists(file)
        names = [declared for declared, _ in self._toolchains.items()] if self._toolchains else []
        if self._toolchains is None or name is None or name.value in (None, *names):
            return []
        hint = suggest(str(name.value), names, what="toolchains")
        hint = hint or f"declare it in {self.workspace.relative(self.project_file)}"
        return [name.error(f"unknown toolchain {show_value(name.value)}", hint)]

    def _read(self, file: Path, what: str) -> ValueNode:
        """Read a shared file, empty if it does not exist. Raises: ManifestError."""
        if not self.workspace.exists(file):
            return ValueNode({}, ValueOrigin(self.workspace.relative(file), ()))
        document = self.workspace.document(file)
        if not isinstance(document.value, dict):
            raise document.error(expected(what, document.value))
        return document

    def _read_project(self, document: ValueNode) -> None:
        """Read the defaults and toolchains of project.yaml, and its errors."""
        defaults, toolchains = (document.get(name) for name in ("defaults", "toolchains"))
        self._project_errors = _validate(document, ProjectSpec)
        if defaults is not None and isinstance(defaults.value, dict):
            for name in _NOT_SHARED:
                if misplaced := defaults.get(name):
                    text = f"{name} cannot be a default of all models"
                    error = misplaced.error(text, "move it to a manifest", of_key=True)
                    self._project_errors.append(error)
            self._defaults = defaults.without(*_NOT_SHARED)
        if not self._project_errors:
            self._toolchains = toolchains or self._defaults.without(*self._defaults.value)


def _validate(node: ValueNode, spec: Any) -> Errors:
    """Validate a part without the rest of a manifest."""
    try:
        _validator(spec).validate_python(plain(node))
    except ValidationError as error:
        return schema_errors(error, node, spec)[0]
    return []


@cache  # building one takes 15 ms, and engines.yaml has many presets
def _validator(spec: Any) -> TypeAdapter[Any]:
    return TypeAdapter(spec)


def _without_inherited_sections(tree: ValueNode, file: Path) -> ValueNode:
    """Drop sections of shared files that are about another kind of model.

    The checks refuse such sections in ``file``, the model's own manifest.
    """
    source, commands = tree.get("source"), tree.get("commands")
    sections: tuple[str, ...] = ()
    if source is not None and source.value is not None:
        sections = GRAPH_SECTIONS if source.get("tensorrt") is not None else ()
    elif commands is not None and commands.entries():
        sections = (*NETWORK_SECTIONS, "dynamic_axes")
    nodes = ((name, tree.get(name)) for name in sections)
    return tree.without(*(name for name, node in nodes if node and node.origin.file != file))
