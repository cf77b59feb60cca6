"""Checks of saved ``torch.export`` programs, before torch loads them.

``torch.export.load`` executes what a file says: it unpickles objects, loads compiled libraries,
evaluates sizes and guards as Python, resolves operators to any function of torch, and writes the
names of nodes into Python code. Nothing of that is left in an archive that passes.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._sympy import functions as sympy_functions

from buildsys.errors import StageError

MODEL = "models/model.json"
_WEIGHTS, _CONSTANTS = "data/weights/", "data/constants/"
_RECORDS = re.compile(
    r"archive_format|archive_version|byteorder|\.data/\w+|models/model\.json"
    r"|data/(weights/weight_\d+|constants/tensor_\d+|\w+/model_\w+_config\.json)"
    r"|data/sample_inputs/model\.pt"
)
_ARITHMETIC = (
    "add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ xor invert not_"
    " lshift rshift getitem"
)
_OPERATORS = re.compile(
    r"torch\.ops\.(aten|prims|torchvision|quantized|quantized_decomposed)\.\w+\.\w+"
    r"|torch\.ops\.higher_order\.(cond|wrap_with_\w+|scan|while_loop|map_impl)"
    r"|torch\._?sym_\w+|math\.(ceil|floor|trunc|sqrt|pow|log2)"
    rf"|_operator\.({_ARITHMETIC.replace(' ', '|')})"
)
_FILE_OPERATORS = ("torch.ops.aten.from_file.",)  # they open files
_SYMBOL = re.compile(r"[a-z]{1,3}\d{1,9}")
_NAME = re.compile(r"[A-Za-z_]\w{0,999}")
_PATH = re.compile(r"[\w.]{0,2000}")  # of a parameter
_TEXT = re.compile(r"[\w./: -]{0,200}")  # a key of a dict
_TOKEN = re.compile(
    r"\s*('[^']*'|[A-Za-z_]\w*|\d[\d.]*(?:e[+-]?\d+)?|\*\*|//|[<>=!]=|[-+*/%(),<>=&|~])"
)
_NUMBER = re.compile(r"-?\d[\d.]{0,30}(e[+-]?\d{1,3})?")
_SYMPY = (
    "Symbol Integer Float Rational Add Mul Pow Max Min Mod Abs floor ceiling sign sqrt Eq Ne Lt Le "
    "Gt Ge And Or Not Xor Piecewise ITE ExprCondPair Tuple Equality Unequality StrictLessThan "
    "LessThan StrictGreaterThan GreaterThan Infinity NegativeInfinity oo int_oo true false True "
    "False positive negative nonnegative nonpositive integer real finite zero nonzero even odd "
    "evaluate precision"
)
_CONTAINERS = ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", None)
_GUARD_NODES = (
    ast.Expression, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Constant, ast.Subscript,
    ast.Load, ast.boolop, ast.unaryop, ast.operator, ast.cmpop, ast.Tuple,
)  # fmt: skip
_GUARD_ATTRIBUTES = ("size", "stride", "storage_offset", "ndim", "shape")
_MAX_DEPTH = 200


class UnsafeError(Exception):
    """A part of an archive able to execute code."""


def check_archive(file: Path, shown: str) -> Mapping[str, Any]:
    """Return an archive's program as JSON, if it cannot execute code.

    Raises: StageError: the file is no such archive, newer than torch, or unsafe.
    """
    remedy = "save it with torch.export.save(program, FILE)"
    try:
        # the reader of torch itself: another one could see other records
        reader = torch._C.PyTorchFileReader(str(file))
        names = reader.get_all_records()
    except RuntimeError as error:
        raise StageError(f"{shown} is not an archive of torch.export", remedy) from error
    if MODEL not in names:
        raise StageError(f"{shown} has no program {MODEL}", remedy)
    try:
        program = json.loads(reader.get_record(MODEL))
        _check_version(program, shown)
        for name in names:
            if not _RECORDS.fullmatch(name):
                raise UnsafeError(f"the record {name}")
            if name.endswith("_config.json"):
                _check_payloads(json.loads(reader.get_record(name)), name)
        _check(program, "", 0)
        for call in program["graph_module"]["module_call_graph"]:
            _check_call(call.get("signature") or {})
        for guard in program.get("guards_code") or ():
            _check_guard(guard)
    except UnsafeError as error:
        raise StageError(
            f"{shown} is not loaded: {error} could execute code",
            "use the network itself, with source: {python: FILE.py:CALLABLE}",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RuntimeError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise StageError(
            f"{shown} is damaged: {type(error).__name__}: {first:.200}", remedy
        ) from error
    checked: Mapping[str, Any] = program
    return checked


def _check_version(program: Mapping[str, Any], shown: str) -> None:
    from torch._export.serde.schema import SCHEMA_VERSION

    version = program["schema_version"]
    major, minor = int(version["major"]), int(version["minor"])
    if major != SCHEMA_VERSION[0]:
        saved_by = f"{program.get('torch_version') or 'another torch'}"
        raise StageError(
            f"{shown} was saved by torch {saved_by:.40} in schema {major}.{minor};"
            f" torch {torch.__version__} reads {SCHEMA_VERSION[0]}",
            "update torch, or save the program again with this torch"
            if major > SCHEMA_VERSION[0]
            else "save the program again with this torch",
        )


def _check_payloads(config: Any, name: str) -> None:
    prefix = "tensor_" if name.startswith(_CONSTANTS) else "weight_"
    for entry in config["config"].values():
        if not re.fullmatch(rf"{prefix}\d+", entry["path_name"]):
            raise UnsafeError(f"the object {entry['path_name']:.60}")


def _check(value: Any, key: str, depth: int) -> None:
    """Check all operators, expressions and names below a value."""
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, list):
        for member in value:
            _check(member, key, depth + 1)
    elif isinstance(value, dict):
        is_node = {"target", "inputs", "outputs"} <= value.keys()
        for name, member in value.items():
            if name in ("metadata", "module_call_graph", "guards_code"):
                continue  # texts for people, and checked on their own
            if is_node and name == "target":
                _check_operator(member)
            else:
                _check(member, name, depth + 1)
        for name in value if key in ("tensor_values", "range_constraints") else ():
            _require(_NAME, name, "the name")
    elif isinstance(value, str):
        if key == "expr_str":
            _check_expression(value)
        elif key == "as_operator":
            _check_operator(value)
        elif key in ("name", "as_name") and value:
            _require(_NAME, value, "the name")
            if keyword.iskeyword(value):
                raise UnsafeError(f"the name {value}")
        elif key in ("parameter_name", "buffer_name", "tensor_constant_name", "fqn"):
            _require(_PATH, value, "the name")


def _check_operator(name: str) -> None:
    if name.startswith(_FILE_OPERATORS):
        raise UnsafeError(f"the operator {name}")
    _require(_OPERATORS, name, "the operator")


def _check_expression(text: str) -> None:
    """Check a tensor's size: torch evaluates it as Python."""
    known = {*_SYMPY.split(), *sympy_functions.__all__}
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnsafeError(f"the size {text!r:.60}")
        token, position = match[1], match.end()
        if token[0] == "'":
            inner = token.strip("'")
            is_safe = bool(_SYMBOL.fullmatch(inner) or _NUMBER.fullmatch(inner))
        elif token[0].isalpha() or token[0] == "_":
            is_safe = token in known or bool(_SYMBOL.fullmatch(token))
        else:
            is_safe = not token[0].isdigit() or bool(_NUMBER.fullmatch(token))
        if not is_safe:
            raise UnsafeError(f"the size {text!r:.60}")


def _check_call(signature: Mapping[str, Any]) -> None:
    """Check the arguments and results of a module."""
    for field in ("in_spec", "out_spec"):
        if signature.get(field):
            _, tree = json.loads(signature[field])
            _check_tree(tree, _NAME if field == "in_spec" else _TEXT, 0)
    for name in signature.get("forward_arg_names") or ():
        _require(_NAME, name, "the argument")


def _check_tree(tree: Mapping[str, Any], keys: re.Pattern[str], depth: int) -> None:
    if tree["type"] not in _CONTAINERS or depth > _MAX_DEPTH:
        raise StageError(
            f"the exported program takes or returns the container {tree['type']!s:.100}",
            "export a network with tensors, tuples, lists and dicts only",
        )
    context = tree.get("context")
    context = json.loads(context) if isinstance(context, str) else context
    for entry in context or ():
        if isinstance(entry, str):
            _require(keys, entry, "the key")
        elif not isinstance(entry, int):
            raise UnsafeError(f"the key {entry!r:.60}")
    for child in tree.get("children_spec") or ():
        _check_tree(child, keys, depth + 1)


def _check_guard(text: str) -> None:
    """Check a condition on sizes: torch executes it as Python."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except SyntaxError as error:
        raise UnsafeError(f"the guard {text!r:.60}") from error
    for node in nodes:
        is_safe = (
            isinstance(node, _GUARD_NODES)
            or (isinstance(node, ast.Name) and node.id == "L")
            or (isinstance(node, ast.Attribute) and node.attr in _GUARD_ATTRIBUTES)
            or (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and not (node.args or node.keywords)
            )
        )
        if not is_safe:
            raise UnsafeError(f"the guard {text!r:.60}")


def _require(pattern: re.Pattern[str], text: Any, what: str) -> None:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise UnsafeError(f"{what} {text!r:.60}")
