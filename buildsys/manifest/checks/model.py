"""What must hold between the fields of one manifest. Works on data that need not be valid otherwise.

The checks read the merged data and skip whatever has the wrong form (validation reports that), so that
one run finds everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from buildsys.manifest.checks.bench import bench_problems
from buildsys.manifest.checks.engines import engine_problems
from buildsys.manifest.checks.profiles import profile_problems
from buildsys.manifest.checks.quantization import quantize_problems
from buildsys.manifest.checks.surgery import dims_of_surgery, surgery_problems
from buildsys.manifest.checks.symbolics import check_registrations
from buildsys.manifest.operator_choice import operator_problems
from buildsys.manifest.problem import Problem, problem_at, show_value, suggest
from buildsys.manifest.value_ranges import data_problem
from buildsys.manifest.value_tree import Key, Node, nearest, plain

TORCHSCRIPT_OPSETS = range(6, 24)
DYNAMO_OPSETS = range(
    7, 29
)  # below 18 it converts down, which the export checks; 28 is the top of onnx 1.23
_IGNORED_BY = {
    "torchscript": {
        "optimize": "use do_constant_folding",
        "verify": "the validate stage compares with PyTorch",
        "report": "only exporter: dynamo writes one",
        "profile": "only exporter: dynamo has it",
        "dump_exported_program": "only exporter: dynamo has it",
        "external_data": "it decides by size",
    },
    "dynamo": {
        "training": "it exports the mode that the model is in",
        "operator_export_type": "only exporter: torchscript has it",
        "do_constant_folding": "use optimize: false",
        "custom_opsets": "only exporter: torchscript has it",
        "export_modules_as_functions": "only exporter: torchscript has it",
        "autograd_inlining": "only exporter: torchscript has it",
    },
}


class View:
    """The merged data of one model, with access that takes any garbage."""

    def __init__(self, tree: Node, file: Path) -> None:
        self.tree = tree
        self.file = file
        self.data = plain(tree)

    def get(self, *key: str | int) -> Any:
        """Return the value at ``key``, or None."""
        node, missing = nearest(self.tree, key)
        return None if missing else plain(node)

    def map(self, *key: str | int) -> dict[str, Any]:
        """Return the map at ``key``; empty where there is none."""
        value = self.get(*key)
        return value if isinstance(value, dict) else {}

    def list(self, *key: str | int) -> list[Any]:
        """Return the list at ``key``; empty where there is none."""
        value = self.get(*key)
        return value if isinstance(value, list) else []

    def own(self, *key: str | int) -> bool:
        """Return whether the manifest itself set the value, and not a file that it shares with others."""
        node, missing = nearest(self.tree, key)
        return not missing and node.origin.file == self.file

    def problem(self, key: Key, text: str, hint: str = "", *, of_key: bool = False) -> Problem:
        """Return a problem at ``key``."""
        return problem_at(self.tree, key, text, hint, of_key=of_key)


def check_model(tree: Node, file: Path) -> Iterator[Problem]:
    """Yield what is wrong between the fields of a merged model; ``file`` is its manifest."""
    view = View(tree, file)
    for check in _CHECKS:
        yield from check(view)


def unused_dims(tree: Node) -> list[str]:
    """Return the declared dimensions that the shape of no input names, and no step of surgery."""
    view = View(tree, Path())
    used = {
        size
        for name in view.map("inputs")
        for size in view.list("inputs", name, "shape")
        if isinstance(size, str)
    }
    return [name for name in view.map("dims") if name not in used | dims_of_surgery(view)]


def _export(view: View) -> Iterator[Problem]:
    if "onnx" in view.map("source"):
        for option in view.map("export"):
            if view.own("export", option):
                text = "ignored for an onnx source, which is not exported"
                yield view.problem(("export", option), text, "remove it", of_key=True)
        return
    exporter = view.map("export").get("exporter", "torchscript")
    if exporter not in ("torchscript", "dynamo"):
        return
    for option, instead in _IGNORED_BY[exporter].items():
        if view.get("export", option) is not None:
            yield view.problem(
                ("export", option), f"the {exporter} exporter ignores it", instead, of_key=True
            )
    yield from _opset(view, exporter)
    as_inputs = view.get("export", "keep_initializers_as_inputs") is True
    if exporter == "dynamo" and view.get("export", "export_params") is False and not as_inputs:
        text = "the dynamo exporter writes an invalid file without the parameters"
        yield view.problem(
            ("export", "export_params"), text, "set keep_initializers_as_inputs: true as well"
        )


def _opset(view: View, exporter: str) -> Iterator[Problem]:
    opset = view.get("export", "opset")
    opsets = TORCHSCRIPT_OPSETS if exporter == "torchscript" else DYNAMO_OPSETS
    if isinstance(opset, int) and not isinstance(opset, bool) and opset not in opsets:
        span = f"({opsets[0]} to {opsets[-1]})"
        yield view.problem(
            ("export", "opset"), f"{opset} is not an opset the {exporter} exporter can write {span}"
        )


def _simplify(view: View) -> Iterator[Problem]:
    if view.get("simplify", "tool") != "none":
        return
    changed = [
        option
        for option in ("constant_folding", "shape_inference", "fuse")
        if view.get("simplify", option) is False
    ]
    changed += (
        ["tensor_size_threshold"]
        if view.get("simplify", "tensor_size_threshold") is not None
        else []
    )
    for option in changed:
        text = "no tool simplifies the graph, so that it has no effect"
        yield view.problem(("simplify", option), text, "remove it or choose a tool", of_key=True)


def _dims(view: View) -> Iterator[Problem]:
    declared = view.map("dims")
    for section in ("inputs", "outputs"):
        for name in view.map(section):
            for index, size in enumerate(view.list(section, name, "shape")):
                if isinstance(size, str) and size not in declared:
                    text = f"the dimension {size} is not declared in dims"
                    add = f"add dims: {{{size}: {{min: …, opt: …, max: …}}}}"
                    hint = suggest(size, declared, what="declared") or add
                    yield view.problem((section, name, "shape", index), text, hint)
    for name in unused_dims(view.tree):
        if view.own("dims", name):
            yield view.problem(
                ("dims", name),
                "the shape of no input uses this dimension",
                "remove it",
                of_key=True,
            )


def _tensors(view: View) -> Iterator[Problem]:
    keywords: dict[Any, str] = {}
    for name in view.map("inputs"):
        keyword = view.get("inputs", name, "keyword")
        key: Key = ("inputs", name, "keyword")
        if not isinstance(keyword, str):
            continue
        if "onnx" in view.map("source"):
            yield view.problem(key, "an onnx source has no keywords", "remove it", of_key=True)
        elif keyword in keywords:
            yield view.problem(
                key, f"the input {keywords[keyword]} has the keyword {show_value(keyword)} already"
            )
        keywords.setdefault(keyword, name)
    for name in view.map("outputs"):
        if name in view.map("inputs"):
            yield view.problem(("outputs", name), "an input has this name already", of_key=True)


def _data(view: View) -> Iterator[Problem]:
    for name in view.map("inputs"):
        found = data_problem(
            view.get("inputs", name, "dtype") or "float32", view.get("inputs", name, "data")
        )
        if found:
            field, text, hint = found
            yield view.problem(("inputs", name, *(("data", field) if field else ())), text, hint)


def _cases(view: View) -> Iterator[Problem]:
    for section in ("validate", "verify", "bench"):
        cases = view.list(section, "cases")
        for index, case in enumerate(cases):
            if case in cases[:index]:
                yield view.problem(
                    (section, "cases", index), f"the case {show_value(case)} is given twice"
                )


def _engines(view: View) -> Iterator[Problem]:
    names: list[Any] = []
    for index, engine in enumerate(view.list("engines")):
        if not isinstance(engine, dict):
            continue
        name = engine.get("name")
        if isinstance(name, str) and name in names:
            text = f"two engines of this model are named {show_value(name)}"
            yield view.problem(("engines", index, "name"), text, "give one of them another name: …")
        names.append(name)


_CHECKS: tuple[Callable[[View], Iterator[Problem]], ...] = (
    _export,
    check_registrations,
    _simplify,
    _dims,
    _tensors,
    _data,
    _cases,
    _engines,
    bench_problems,
    profile_problems,
    engine_problems,
    surgery_problems,
    operator_problems,
    quantize_problems,
)
