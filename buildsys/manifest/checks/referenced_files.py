"""The project's own files that a manifest names: they exist, lie in the project and hold what is asked of them."""

from __future__ import annotations

import ast
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from buildsys.manifest.checks.model import View
from buildsys.manifest.problem import Problem, show_value, suggest, suggest_file
from buildsys.manifest.value_tree import Key, Node
from buildsys.manifest.workspace import Workspace


class Reference(NamedTuple):
    """A file that a manifest names; ``callable`` is looked for in it, ``sha256`` compared."""

    key: Key
    path: str
    callable: str = ""
    sha256: str = ""
    folder: bool = False


def check_references(tree: Node, file: Path, workspace: Workspace) -> Iterator[Problem]:
    """Yield what is wrong with the files that a merged model names."""
    view = View(tree, file)
    for reference in _references(view):
        for text, hint in _file_problems(reference, workspace):
            key = (
                (*reference.key[:-1], "sha256")
                if reference.sha256 and "SHA-256" in text
                else reference.key
            )
            yield view.problem(key, text, hint)


def locate(root: Path, path: str, links_into: Path) -> Path | str:
    """Return the absolute path of a project file, or the sentence that says why it is none.

    It may be a link to another place in the project, or in ``links_into``.
    """
    if not path.strip() or "\0" in path:
        return f"{show_value(path)} is not a path"
    if Path(path).is_absolute():
        return f"{show_value(path)} is absolute; paths are relative to the project"
    try:
        real = (root / path).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        return f"{show_value(path)} cannot be followed: {error}"
    if not any(real.is_relative_to(folder.resolve()) for folder in (root, links_into)):
        return f"{show_value(path)} leaves the project"
    return root / path


def _references(view: View) -> Iterator[Reference]:
    if isinstance(path := view.get("source", "python"), str):
        yield _python_reference(("source", "python"), path)
    if isinstance(path := view.get("source", "onnx"), str):
        yield Reference(("source", "onnx"), path)
    if isinstance(path := view.get("source", "weights", "file"), str):
        sha256 = view.get("source", "weights", "sha256")
        yield Reference(
            ("source", "weights", "file"), path, sha256=sha256 if isinstance(sha256, str) else ""
        )
    yield from _data_references(view, ("inputs",))
    yield from _entry_references(view, ("calibration", "data"))
    yield from _surgery_references(view)
    for index in range(len(view.list("engines"))):
        if isinstance(path := view.get("engines", index, "network"), str):
            yield _python_reference(("engines", index, "network"), path)
    for index in range(len(view.list("ops"))):
        yield from _operator_references(view, index)
    for section in ("symbolics", "translations"):
        for index, entry in enumerate(view.list(section)):
            if isinstance(entry, dict):
                yield from _registered(section, index, entry)


def _operator_references(view: View, index: int) -> Iterator[Reference]:
    """Yield the files that implement one custom operator."""
    key: Key = ("ops", index, "function")
    for callable_key in (key, *((*key, backend) for backend in view.map(*key))):
        if isinstance(path := view.get(*callable_key), str):
            yield _python_reference(callable_key, path)
    for number, path in enumerate(view.list("ops", index, "library", "sources")):
        if isinstance(path, str):
            yield Reference(("ops", index, "library", "sources", number), path)
    for kind, field in (("library", "file"), ("plugin", "python"), ("plugin", "library")):
        if isinstance(path := view.get("ops", index, kind, field), str):
            yield Reference(("ops", index, kind, field), path)


def _registered(section: str, index: int, entry: dict[str, Any]) -> Iterator[Reference]:
    """Yield the file of a function or module that teaches an exporter an operator."""
    if isinstance(path := entry.get("function"), str):
        yield _python_reference((section, index, "function"), path)
    if isinstance(path := entry.get("module"), str):
        yield Reference((section, index, "module"), path)


def _surgery_references(view: View) -> Iterator[Reference]:
    for number in range(len(view.list("surgery"))):
        for field in (("function",), ("replace", "function"), ("reference", "python")):
            if isinstance(path := view.get("surgery", number, *field), str):
                yield _python_reference(("surgery", number, *field), path)
        if isinstance(path := view.get("surgery", number, "reference", "npz"), str):
            yield Reference(("surgery", number, "reference", "npz"), path)
        yield from _data_references(view, ("surgery", number, "inputs"))


def _data_references(view: View, inputs: Key) -> Iterator[Reference]:
    for name in view.map(*inputs):
        yield from _values_references(view, (*inputs, name, "data"))


def _entry_references(view: View, data: Key) -> Iterator[Reference]:
    for name in view.map(*data):
        yield from _values_references(view, (*data, name))


def _values_references(view: View, data: Key) -> Iterator[Reference]:
    """Yield the files that the values of one input come from."""
    if isinstance(path := view.get(*data, "npz"), str):
        yield Reference((*data, "npz"), path)
    if isinstance(path := view.get(*data, "python"), str):
        yield _python_reference((*data, "python"), path)
    if isinstance(path := view.get(*data, "images"), str):
        yield Reference((*data, "images"), path, folder=True)


def _python_reference(key: Key, value: str) -> Reference:
    path, _, name = value.rpartition(":")
    return Reference(key, path or value, callable=name if path else "")


def _file_problems(reference: Reference, workspace: Workspace) -> Iterator[tuple[str, str]]:
    path = locate(workspace.root, reference.path, workspace.links_into)
    if isinstance(path, str):
        yield path, ""
        return
    if reference.folder:
        if not workspace.exists(path) or not path.is_dir():
            yield (
                f"no folder {reference.path}",
                suggest_file(path) or "paths are relative to the project",
            )
    elif not workspace.exists(path):
        yield f"no file {reference.path}", suggest_file(path) or "paths are relative to the project"
    elif not stat.S_ISREG(path.stat().st_mode):
        yield f"{reference.path} is not a regular file", ""
    else:
        try:
            yield from _content_problems(reference, path, workspace)
        except OSError as error:
            yield f"{reference.path} cannot be read: {(error.strerror or str(error)).lower()}", ""


def _content_problems(
    reference: Reference, path: Path, workspace: Workspace
) -> Iterator[tuple[str, str]]:
    if reference.callable:
        yield from _callable_problems(reference, path.read_bytes())
    if reference.sha256 and (digest := workspace.sha256(path)) != reference.sha256:
        yield (
            f"the SHA-256 digest of {reference.path} is {digest}",
            "another file, or a damaged download",
        )


def _callable_problems(reference: Reference, source: bytes) -> Iterator[tuple[str, str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # an invalid escape in the user's file is not ours to report
            names = _Names()
            names.visit(ast.parse(source))
    except SyntaxError as error:
        yield f"{reference.path}:{error.lineno or 1}: {error.msg}", ""
        return
    except (ValueError, RecursionError, MemoryError) as error:
        yield f"{reference.path} cannot be parsed: {error}", ""
        return
    name = reference.callable.partition(".")[0]
    if name not in names.found and not names.open:
        yield (
            f"{reference.path} defines no {name}",
            suggest(name, sorted(names.found), what="it defines"),
        )


class _Names(ast.NodeVisitor):
    """The names that a module binds at its top level, also below if, try and with."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.open = False  # a star import or a module __getattr__: any name may be there

    def visit_FunctionDef(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> None:
        """Take the name and leave the body."""
        self.found.add(node.name)
        self.open |= node.name == "__getattr__"

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815
    visit_ClassDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Leave the body: its names are its own."""

    def visit_Name(self, node: ast.Name) -> None:
        """Take what is assigned."""
        if isinstance(node.ctx, ast.Store):
            self.found.add(node.id)

    def visit_alias(self, node: ast.alias) -> None:
        """Take what is imported."""
        self.open |= node.name == "*"
        self.found.add(node.asname or node.name.partition(".")[0])
