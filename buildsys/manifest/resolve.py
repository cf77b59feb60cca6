"""Resolution of one manifest file into its models.

Layers, matrix, ``dynamic_axes`` and engine presets are expanded first, then everything is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from buildsys.errors import ManifestError
from buildsys.manifest.checks.engines import toolchain_problems, unknown_toolchain
from buildsys.manifest.checks.model import check_model, unused_dims
from buildsys.manifest.checks.referenced_files import file_problems
from buildsys.manifest.checks.view import ManifestView
from buildsys.manifest.expansion import expand_matrix, name_dynamic_axes
from buildsys.manifest.graph_sections import without_inherited, without_inherited_engines
from buildsys.manifest.layers import Layers, Presets, build_presets, merge, resolve_engines
from buildsys.manifest.model_fields import model_fields
from buildsys.manifest.problem import Problem, expected, problem_at
from buildsys.manifest.schema.engines import Engine
from buildsys.manifest.schema.model import ModelSpec
from buildsys.manifest.schema.project import ProjectSpec
from buildsys.manifest.schema_errors import known_fields, schema_problems
from buildsys.manifest.value_tree import FieldPath, ValueNode, ValueOrigin, plain, text_size
from buildsys.manifest.workspace import Workspace
from buildsys.system.backend_registry import package_files

Resolution = tuple[dict[str, Any], ValueNode]  # a model, and the origins of its values
MAX_CHARACTERS, MAX_MODEL_CHARACTERS = 64 << 20, 4 << 20  # of the models of one file, and of one
_NOT_SHARED = ("model", "extends", "matrix")  # not allowed in project defaults


class Resolver:
    """Resolve manifests one by one with shared project.yaml and engines.yaml."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.project_file = workspace.configs / "project.yaml"
        self.engines_file = workspace.configs / "engines.yaml"
        self._toolchains: ValueNode | None = None  # None: project.yaml is broken
        self._defaults, self._project_errors = self._read_project()
        self._presets, self._engine_errors = self._read_presets()

    def shared(self, file: Path) -> list[ManifestError]:
        """Record a shared file and return its errors."""
        self.workspace.exists(file)
        if file == self.project_file:
            return self._project_errors
        problems: list[Problem] = []
        for preset in filter(None, (self._presets or {}).values()):
            problems += _validate(preset, Engine)
            problems += unknown_toolchain(preset, self._toolchains)
            self._record_package(preset)
        return self._engine_errors + self.workspace.errors(problems)

    def resolve(self, file: Path) -> tuple[list[Resolution], list[ManifestError]]:
        """Return the models of one manifest and all of its errors."""
        for shared in (self.project_file, self.engines_file):
            self.workspace.exists(shared)
        layers = Layers(self.workspace)
        try:
            tree = merge(self._defaults, layers.read(file))
        except ManifestError as error:
            return [], [error]
        variants, matrix_problems = expand_matrix(tree)
        problems = [*layers.problems, *matrix_problems]
        resolutions = []
        size = 0
        for variant in variants:
            size += text_size(variant, MAX_CHARACTERS)
            if size > MAX_CHARACTERS:
                text = "the models of this manifest have more than"
                text += f" {MAX_CHARACTERS >> 20} million characters"
                problems.append(Problem(tree.origin, text, "shorten its texts or its matrix"))
                break
            # a broken layer may set any field that is missing
            names = known_fields(ModelSpec, ()) if layers.problems else ()
            unknown = [(name,) for name in names if variant.get(name) is None]
            resolution, found = self._resolve_model(variant, self.workspace.shown(file), unknown)
            problems += found
            resolutions += [resolution] if resolution else []
        return resolutions, self.workspace.errors(problems)

    def _resolve_model(
        self, tree: ValueNode, file: Path, unknown: Sequence[FieldPath]
    ) -> tuple[Resolution | None, list[Problem]]:
        if ("source",) not in unknown:
            tree = without_inherited(tree, file)
        tree, axes_problems = name_dynamic_axes(tree)
        tree, engine_problems = resolve_engines(tree, self._presets)
        tree = without_inherited_engines(tree, file)
        if text_size(tree, MAX_MODEL_CHARACTERS) > MAX_MODEL_CHARACTERS:
            text = f"the model has more than {MAX_MODEL_CHARACTERS >> 20} million characters with"
            text += " its engine presets"
            return None, [Problem(tree.origin, text, "shorten its texts or its list of engines")]
        tree = _without_shared_dims(tree, file)
        problems = [*axes_problems, *engine_problems]
        data: dict[str, Any] = {}
        refused, written = [*unknown], plain(tree)
        try:
            data = model_fields(written)
        except ValidationError as error:
            found, refused = schema_problems(error, tree, ModelSpec, unknown)
            problems += found
        reported = {problem.origin for problem in problems}
        reported |= {problem_at(tree, path, "").origin for path in refused}
        view = ManifestView(tree, file, refused, None if refused else written)
        checks = [*check_model(view), *file_problems(view, self.workspace)]
        for section in ("engines", "commands"):
            entries = tree.get(section)
            for entry in entries.value if entries and isinstance(entries.value, list) else []:
                checks += unknown_toolchain(entry, self._toolchains)
                self._record_package(entry)
        for problem in checks:
            file, path = problem.origin
            parents = (ValueOrigin(file, path[:depth]) for depth in range(1, len(path) + 1))
            if reported.isdisjoint(parents):
                problems.append(problem)
        if problems or not data:  # no data: the missing fields of a broken layer
            return None, problems
        used = {entry["toolchain"] for entry in (*data["engines"], *data["commands"])}
        declared = self._toolchains.items() if self._toolchains else ()
        if kept := {name: node for name, node in declared if name in used}:
            toolchains = ValueNode(kept, tree.origin)
            tree = tree.with_member("toolchains", toolchains)  # keeps their origins
            data["toolchains"] = {
                name: {"python": entry["python"], "env": entry.get("env") or {}}
                for name, entry in plain(toolchains).items()
            }
        return (data, tree), []

    def _record_package(self, engine: ValueNode) -> None:
        """Record the files that decide the fields of another team's backend."""
        backend = engine.get("backend")
        if backend is not None and isinstance(backend.value, str):
            for file in package_files(backend.value):
                self.workspace.exists(file)

    def _read_project(self) -> tuple[ValueNode, list[ManifestError]]:
        """Return the defaults of project.yaml and its errors; remember its toolchains."""
        empty = ValueNode({}, ValueOrigin(self.workspace.shown(self.project_file), ()))
        if not self.workspace.exists(self.project_file):
            self._toolchains = empty
            return empty, []
        try:
            document = self.workspace.document(self.project_file)
        except ManifestError as error:
            return empty, [error]
        problems = _project_problems(document)
        problems += toolchain_problems(document.get("toolchains") or empty)
        defaults = document.get("defaults") or empty
        for name in _NOT_SHARED:
            if misplaced := defaults.get(name):
                text = f"{name} cannot be a default of all models"
                hint = "move it to a manifest"
                problems.append(Problem(misplaced.origin, text, hint, of_key=True))
        if not problems:
            self._toolchains = document.get("toolchains") or empty
        defaults = defaults.without(*_NOT_SHARED) if isinstance(defaults.value, dict) else empty
        return defaults, self.workspace.errors(problems)

    def _read_presets(self) -> tuple[Presets | None, list[ManifestError]]:
        if not self.workspace.exists(self.engines_file):
            return {}, []
        try:
            document = self.workspace.document(self.engines_file)
        except ManifestError as error:
            return None, [error]
        presets, problems = build_presets(document)
        return presets, self.workspace.errors(problems)


def _project_problems(document: ValueNode) -> list[Problem]:
    if not isinstance(document.value, dict):
        return [Problem(document.origin, expected("a map of settings", document.value))]
    return _validate(document, ProjectSpec)


def _validate(node: ValueNode, spec: Any) -> list[Problem]:
    """Validate a part without the rest of a manifest."""
    try:
        _validator(spec).validate_python(plain(node))
    except ValidationError as error:
        return schema_problems(error, node, spec)[0]
    return []


@cache  # building one takes 15 ms, and engines.yaml has many presets
def _validator(spec: Any) -> TypeAdapter[Any]:
    return TypeAdapter(spec)


def _without_shared_dims(tree: ValueNode, file: Path) -> ValueNode:
    """Drop unused dimensions declared by shared files."""
    dims = tree.get("dims")
    if dims is None or not isinstance(dims.value, dict):
        return tree
    shared = {name for name, node in dims.items() if node.origin.file != file}
    if shared:
        shared.intersection_update(unused_dims(ManifestView(tree, file)))
    return tree.with_member("dims", dims.without(*shared)) if shared else tree
