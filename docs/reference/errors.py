"""Page of error messages with their remedies, from the source code."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

from buildsys import errors

_INTRODUCTION = """\
# Errors by message

Messages and their remedies, generated from the source code. `…` stands for a name, a path, a number
or the message of a library. Search for a few words of your message. Messages without a remedy of
their own are at the end of each section. A failed [target](../glossary.md) has its whole output in
the log that the message names.

An operator that an exporter or a backend does not support has further
[remedies](../remedies/README.md), which the message prints with the YAML to add.

"""
_PARTS = {  # packages, in the order of the pipeline
    "manifest": "Manifests",
    "cli": "Commands",
    "plan": "Planning",
    "models": "Models, weights and inputs",
    "onnx_graphs": "ONNX files",
    "stages": "Stages",
    "backends": "Engines",
    "evaluation": "Accuracy on data",
    "deploy": "Running engines",
    "project": "Projects",
    "execution": "Builds",
    "workers": "Workers",
    "history": "History",
    "report": "Reports",
    "store": "Store and shared cache",
    "remote": "Other machines",
    "release": "Releases",
    "upgrade": "Upgrades",
    "bisect": "Bisection",
    "reduce": "Smallest failing graphs",
    "system": "System",
}
# functions and classes with the message at another position than the first
_ARGUMENTS = {"Problem": 1, "problem": 1, "problem_at": 2, "ManifestError": 2}
_NAMES = {*_ARGUMENTS, "InvalidDodoFile", "InvalidCommand", "unknown_name"}
_PHRASES = {"suggest": "did you mean …?", "suggest_file": "did you mean …?"}
_ANY = "…"
_COMPUTED = "The message ends with the remedy for the case."
_CLASS = re.compile(r"^ *class (\w+)\(([^)]*)\)", re.MULTILINE)  # parsing takes a second
_VARIANTS = 4  # of one message or remedy


class Message(NamedTuple):
    """A message without the values in it, and its remedy."""

    text: str
    remedy: str


def page() -> str:
    """Return the page in Markdown."""
    package = Path(errors.__file__).parent
    found: dict[str, set[Message]] = {}
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).parts[0]
        found.setdefault(name, set()).update(messages(file.read_text(encoding="utf-8")))
    unlisted = {name for name, texts in found.items() if texts} - set(_PARTS)
    assert not unlisted, f"add {unlisted} to _PARTS"
    parts = [_INTRODUCTION]
    for name, title in _PARTS.items():
        texts = sorted(found.get(name, ()), key=_sort_key)
        parts += [f"## {title}\n\n"] * bool(texts)
        parts += [f"`` {one.text} ``\n:   {one.remedy}\n\n" for one in texts if one.remedy]
        parts += [f"- `` {one.text} ``\n" for one in texts if not one.remedy] + ["\n"]
    return "".join(parts)


def _sort_key(message: Message) -> tuple[str, str]:
    return message.text.lstrip("… :'`\"([").lower(), message.remedy


@cache
def messages(source: str) -> tuple[Message, ...]:
    """List the messages of errors in a module."""
    return tuple(_messages(source))


def _messages(source: str) -> Iterator[Message]:
    if not any(name in source for name in _NAMES | _error_classes()):
        return  # parsing takes most of the time
    tree = ast.parse(source)
    constants = {
        _name(one.targets[0]): one.value
        for one in tree.body
        if isinstance(one, ast.Assign) and isinstance(one.value, (ast.Constant, ast.JoinedStr))
    }
    for call, scope in _calls(tree, constants):
        first = _ARGUMENTS.get(_name(call.func), 0)
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        texts = [*call.args[first : first + 2]]
        problem = given.get("problem") or next(iter(texts), None)
        hint = given.get("hint") or next(iter(texts[1:]), None)
        remedies = _texts(hint, call, scope) if hint else [""]
        remedy = " Or: ".join(dict.fromkeys(one for one in remedies if _has_words(one)))
        if not remedy and _ANY in remedies:
            remedy = _COMPUTED
        for text in dict.fromkeys(_texts(problem, call, scope) if problem else []):
            if _has_words(text):
                yield Message(text, remedy)


class _Scope(NamedTuple):
    """A function or a module, with the constants of the module."""

    node: ast.AST
    constants: Mapping[str, ast.expr]


def _calls(
    tree: ast.Module, constants: Mapping[str, ast.expr]
) -> Iterator[tuple[ast.Call, _Scope]]:
    """Yield the calls making errors, each with its function."""
    kinds = _NAMES | _error_classes()
    waiting: list[ast.AST] = [tree]
    while waiting:
        scope = _Scope(waiting.pop(), constants)
        for node in _walk_scope(scope.node):
            if isinstance(node, ast.Call) and _name(node.func) in kinds:
                yield node, scope
            elif isinstance(node, ast.FunctionDef):
                waiting.append(node)


def _walk_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those inside functions in it."""
    waiting = [scope]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            yield child
            if not isinstance(child, ast.FunctionDef):
                waiting.append(child)


@cache
def _error_classes() -> set[str]:
    """Return the names of all classes of errors, whether imported or not."""
    below: dict[str, set[str]] = {}
    for file in Path(errors.__file__).parent.rglob("*.py"):
        for name, bases in _CLASS.findall(file.read_text(encoding="utf-8")):
            for base in bases.split(","):
                below.setdefault(base.strip().rpartition(".")[2], set()).add(name)
    found: set[str] = set()
    waiting = {errors.BuildsysError.__name__}
    while waiting:
        found |= waiting
        waiting = set().union(*(below.get(name, ()) for name in waiting)) - found
    return found


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _texts(node: ast.expr, call: ast.Call, scope: _Scope) -> list[str]:
    """Return the possible texts of an expression."""
    if isinstance(node, ast.Constant):
        return [str(node.value)] if isinstance(node.value, str) else [_ANY]
    if isinstance(node, ast.JoinedStr):
        return _joined([_texts(part, call, scope) for part in node.values])
    if isinstance(node, ast.FormattedValue):
        is_choice = isinstance(node.value, ast.IfExp)
        return _texts(node.value, call, scope) if is_choice else [_ANY]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined([_texts(part, call, scope) for part in (node.left, node.right)])
    if isinstance(node, (ast.IfExp, ast.BoolOp)):
        parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
        return [text for part in parts for text in _texts(part, call, scope)][:_VARIANTS]
    if isinstance(node, ast.Call) and _name(node.func) == "expected":
        return [f"expected {text}, found …" for text in _texts(node.args[0], call, scope)]
    if isinstance(node, ast.Call):
        return [_PHRASES.get(_name(node.func), _ANY)]
    if isinstance(node, ast.Name):
        assigned = [
            one
            for one in _walk_scope(scope.node)
            if isinstance(one, ast.Assign)
            and one.end_lineno is not None
            and one.end_lineno < call.lineno
            and _name(one.targets[0]) == node.id
        ]
        if assigned:
            last = max(assigned, key=lambda one: one.lineno)
            return _texts(last.value, last, scope)
        if node.id in scope.constants:
            return _texts(scope.constants[node.id], call, scope)
    return [_ANY]


def _joined(parts: Sequence[Sequence[str]]) -> list[str]:
    choices = islice(product(*parts), _VARIANTS)
    texts = ["".join(choice).replace(_ANY * 2, _ANY) for choice in choices]
    return [" ".join(text.split()) for text in texts]


def _has_words(text: str) -> bool:
    return sum(character.isalpha() for character in text) > 5
