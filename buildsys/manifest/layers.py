"""Layers of a manifest: extended files, engine presets, ``matrix`` and ``dynamic_axes``."""

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from buildsys.errors import ManifestError
from buildsys.manifest.problem import expected, show_value, suggest, suggest_file
from buildsys.manifest.schema.network import DATA_KINDS
from buildsys.manifest.schema.source import REFERENCE_KINDS, SOURCE_KINDS
from buildsys.manifest.value_tree import FieldPath, ValueNode, nearest, plain, replace_at
from buildsys.manifest.workspace import Workspace

MAX_MODELS = 1000

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.+-]+")
_LONGEST_LABEL = 256  # characters of a value in a name

_KINDS: Mapping[FieldPath, tuple[str, ...]] = {
    ("source",): SOURCE_KINDS,
    ("source", "reference"): REFERENCE_KINDS,
}
Presets = Mapping[str, "ValueNode | None"]  # None: broken and already reported
Errors = list[ManifestError]


def merge(base: ValueNode, override: ValueNode, path: FieldPath = ()) -> ValueNode:
    """Merge two maps member by member; anything else is replaced.

    A source or data of another kind replaces the whole map, and so do a weights file and the data
    of an evaluation.
    """
    if not isinstance(base.value, dict) or not isinstance(override.value, dict):
        return override
    if path == ("evaluate", "data"):
        return override
    is_input = len(path) == 3 and path[::2] == ("inputs", "data")
    is_data = is_input or (len(path) == 3 and path[:2] == ("calibration", "data"))
    kinds = set(_KINDS.get(path, DATA_KINDS if is_data else ()))
    chosen = kinds & override.value.keys()
    if chosen and chosen != kinds & base.value.keys():
        return override
    if path == ("source", "weights") and "file" in override.value:
        return override
    members = dict(base.value)
    for name, member in override.value.items():
        members[name] = merge(members[name], member, (*path, name)) if name in members else member
    return ValueNode(members, override.origin)


def read_layers(workspace: Workspace, file: Path, users: tuple[Path, ...] = ()) -> ValueNode:
    """Merge a file over its ``extends``; ``users`` are the files that led to this one.

    Raises: ManifestError: a file cannot be read or is not a map.
    """
    document = workspace.document(file)
    if not isinstance(document.value, dict):
        raise document.error(expected("a map of manifest fields", document.value))
    merged = ValueNode({}, document.origin)
    extends = document.get("extends")
    for name in (extends.entries() or [extends]) if extends else ():
        base = _base_file(workspace, name, file, (*users, file))
        layer = read_layers(workspace, base, (*users, file))
        merged = merge(merged, layer.without("model", "extends"))
    return merge(merged, document.without("extends"))


def _base_file(workspace: Workspace, node: ValueNode, file: Path, users: tuple[Path, ...]) -> Path:
    """Find an extended file. Raises: ManifestError."""
    name, hint = node.value, "paths are relative to this file"
    if not isinstance(name, str):
        raise node.error(expected("the path of a manifest", name))
    located = workspace.locate(name, file.parent)
    if isinstance(located, str):
        raise node.error(located, hint)
    path = Path(os.path.normpath(located))
    if not workspace.is_inside(path):
        raise node.error(f"path {show_value(name)} leaves the project", hint)
    if path in users:
        raise node.error(f"{path.name} extends itself", "break the cycle")
    if not workspace.exists(path) or path.is_dir():
        raise node.error(f"file {name} does not exist", suggest_file(path) or hint)
    return path


def build_presets(document: ValueNode, errors: Errors) -> dict[str, ValueNode | None]:
    """Merge every preset of engines.yaml over its base; add to ``errors``."""
    presets: dict[str, ValueNode | None] = dict.fromkeys(document.value)
    waiting = dict(document.value)
    while waiting:
        uses = {name: node.get("use") for name, node in waiting.items()}
        ready = [name for name, use in uses.items() if use is None or use.value not in waiting]
        for name in ready:
            node = waiting.pop(name)
            if not isinstance(node.value, dict):
                errors.append(node.error(expected("a map of engine fields", node.value)))
            elif preset := _resolve_entry(node, presets, errors):
                presets[name] = preset.with_member("name", ValueNode(name, node.origin))
        if not ready:
            text = f"the engine presets {', '.join(waiting)} use each other"
            errors += [use.error(text, "break the cycle") for use in uses.values() if use]
            break
    return presets


def resolve_engines(tree: ValueNode, presets: Presets | None, errors: Errors) -> ValueNode:
    """Write out every entry of ``engines``; add to ``errors``.

    Entries with a broken preset are dropped, as it has been reported; ``presets`` is None if
    engines.yaml cannot be read.
    """
    engines = tree.get("engines")
    if engines is None or not isinstance(engines.value, list):
        return tree
    entries = [_resolve_entry(entry, presets, errors) for entry in engines.value]
    complete = ValueNode([entry for entry in entries if entry is not None], engines.origin)
    return tree.with_member("engines", complete)


def _resolve_entry(entry: ValueNode, presets: Presets | None, errors: Errors) -> ValueNode | None:
    use = entry if isinstance(entry.value, str) else entry.get("use")
    if use is None and isinstance(entry.value, dict):
        return entry
    if use is None or not isinstance(use.value, str):
        what = "the name of an engine preset"
        what += " or a map of engine fields" if use is None else ""
        errors.append((use or entry).error(expected(what, (use or entry).value)))
    elif presets is not None and use.value not in presets:
        text = f"unknown engine preset {show_value(use.value)}"
        errors.append(use.error(text, suggest(use.value, presets, what="presets")))
    elif presets is not None and (preset := presets[use.value]) is not None:
        preset = preset.with_member("name", ValueNode(use.value, use.origin))
        return preset if use is entry else merge(preset, entry.without("use"))
    return None


def expand_matrix(tree: ValueNode) -> list[ValueNode]:
    """Make one tree per combination; without a matrix, the tree itself.

    The last axis varies fastest. Placeholders in the name, such as ``net-op{export.opset}``, are
    replaced by values; to any other name, ``-VALUE`` is appended per axis.
    Raises: ManifestError: an impossible matrix or name.
    """
    matrix = tree.get("matrix")
    if matrix is None:
        return [_rename(tree, [])]
    axes, trees = _axes(matrix), []
    for values in itertools.product(*axes.values()):
        variant = tree.without("matrix")
        for path, value in zip(axes, values, strict=True):
            existing, missing = nearest(variant, path)
            new = value if missing else merge(existing, value, path)
            try:
                variant = replace_at(variant, path, new)
            except LookupError as error:
                text = f"unknown field {'.'.join(map(str, path))}"
                raise value.error(text, f"{error.args[0]} does not exist") from None
        trees.append(_rename(variant, values))
    names = [node.value for variant in trees if (node := variant.get("model"))]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        text = f"two combinations are both named {show_value(duplicate)}"
        raise matrix.error(text, "put placeholders such as {export.opset} into the name")
    return trees


def _axes(matrix: ValueNode) -> dict[FieldPath, list[ValueNode]]:
    """Read the values of each field. Raises: ManifestError."""
    if not isinstance(matrix.value, dict):
        raise matrix.error(expected("a map of field paths to lists", matrix.value))
    axes: dict[FieldPath, list[ValueNode]] = {}
    for name, values in matrix.items():
        path: FieldPath = tuple(name.split("."))
        if path[0] in ("model", "extends", "matrix"):
            raise values.error(f"a matrix cannot vary {path[0]}", "remove it", of_key=True)
        if not values.entries():
            raise values.error(expected("a list of values", values.value))
        axes[path] = values.value
    count = math.prod(map(len, axes.values()))
    if count > MAX_MODELS:
        text = f"the matrix has {count} combinations, more than {MAX_MODELS}"
        raise matrix.error(text, "split it into several manifests")
    return axes


def _rename(tree: ValueNode, values: Sequence[ValueNode]) -> ValueNode:
    """Name a combination. Raises: ManifestError: a placeholder is not set."""
    model = tree.get("model")
    if model is None or not isinstance(model.value, str):
        return tree

    def fill(match: re.Match[str]) -> str:
        node, missing = nearest(tree, tuple(match[1].split(".")))
        if missing:
            text = f"the name uses {{{match[1]}}}, which is not set"
            raise model.error(text, "set the field, or use another one")
        return _label(plain(node))

    name: str = _PLACEHOLDER.sub(fill, model.value)
    if name == model.value:
        name = "-".join([name, *(_label(plain(value)) for value in values)])
    return tree.with_member("model", ValueNode(name, model.origin))


def _label(value: Any) -> str:
    """Write a value as a part of a model's name."""
    if value in ("", [], {}):
        return "empty"
    if isinstance(value, (dict, list)):
        members = value.values() if isinstance(value, dict) else value
        return "-".join(map(_label, members))
    is_word = value is None or isinstance(value, bool)
    word = show_value(value) if is_word else str(value)
    return _NOT_IN_NAMES.sub("-", word[:_LONGEST_LABEL])


def name_dynamic_axes(tree: ValueNode, errors: Errors) -> ValueNode:
    """Move the ``dynamic_axes`` of torch.onnx.export into named sizes; add to ``errors``.

    A list of axes, ``{input0: [0]}``, gets the names torch would make: input0_dynamic_axes_1, ….
    """
    axes = tree.get("dynamic_axes")
    if axes is None:
        return tree
    tree = tree.without("dynamic_axes")
    if not isinstance(axes.value, dict):
        errors.append(axes.error(expected("a map of tensor names", axes.value)))
    sections = [(name, section) for name in ("inputs", "outputs") if (section := tree.get(name))]
    tensors = {tensor: name for name, section in sections for tensor, _ in section.items()}
    for tensor, named in axes.items():
        if tensor not in tensors:
            text, hint = f'unknown input or output "{tensor}"', suggest(tensor, tensors)
            errors.append(named.error(text, hint, of_key=True))
            continue
        path = (tensors[tensor], tensor, "shape")
        shape, missing = nearest(tree, path)
        if missing or not isinstance(shape.value, list):
            continue  # an output gets its axes from the graph; an input without shape is an error
        sizes, stem = list(shape.value), re.sub(r"\W", "_", tensor)
        names = list(named.items()) or [(named.value, named)]
        if isinstance(named.value, list):
            names = [
                (axis.value, ValueNode(f"{stem}_dynamic_axes_{number}", axis.origin))
                for number, axis in enumerate(named.value, start=1)
            ]
        for axis, name in names:
            index = int(axis) if re.fullmatch(r"-?[0-9]{1,9}", str(axis)) else len(sizes)
            if not -len(sizes) <= index < len(sizes) or not isinstance(name.value, str):
                text = f"cannot name axis {show_value(axis)} of {tensor} {show_value(name.value)}"
                hint = f"write {{AXIS: NAME}} or [AXIS, …], from 0 to {len(sizes) - 1}"
                errors.append(name.error(text, hint))
                continue
            size = sizes[index]
            is_named_by_user = isinstance(named.value, dict) or size is not shape.value[index]
            if not isinstance(size.value, str):
                sizes[index] = name
            elif size.value != name.value and is_named_by_user:
                text = f"axis {axis} of {tensor} is {name.value} here"
                text += f", and {size.value} at {size.origin.line()}"
                errors.append(name.error(text, "give the axis one name"))
        tree = replace_at(tree, path, ValueNode(sizes, shape.origin))
    return tree
