"""buildsys run: run a built engine on images or arrays."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.cli.command import (
    add_json,
    add_names,
    positive_integer,
    print_answer,
    typed_path,
    unknown_name,
)
from buildsys.cli.console.rows import format_table
from buildsys.cli.engine_checks import FIRST, NAMED, RECOMMENDED, choose_engine, named_engines
from buildsys.cli.session import BuildSession
from buildsys.cli.worker_pool import run_stage
from buildsys.errors import UsageError
from buildsys.manifest.problem import suggest_file
from buildsys.manifest.shape_cases import WHENS, steps_of
from buildsys.plan.action import Action
from buildsys.plan.graph_points import GraphPoint, graph_points
from buildsys.report.formatting import first_names, plural, significant
from buildsys.system.files import IMAGE_SUFFIXES, replace_file
from buildsys.system.toolchains import locate_toolchain

SCHEMA = "buildsys/run/1"
_REASONS = {NAMED: "", RECOMMENDED: " (recommended)", FIRST: " (the first that can run)"}
_STAGES = "buildsys.stages.run"
_ARRAY_SUFFIXES = (".npy", ".npz")
_MOST_ROWS = 8


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys run``."""
    add_names(parser, "MODEL[:ENGINE] --input [NAME=]FILE")
    parser.epilog = (
        "FILE is an image, to which the manifest's `preprocess` is applied, or an array: .npy, or "
        ".npz with the array NAME; without NAME, an .npz file has all inputs. Several images for "
        "an input are a batch. Without ENGINE, the one that the report recommends runs. "
        "Only engines that are up to date and verified run."
    )
    parser.add_argument(
        "--input", action="append", default=[], help="a file for an input; may be repeated"
    )
    parser.add_argument("--output", default="", help="write all outputs into this .npz file")
    parser.add_argument(
        "--top",
        type=positive_integer,
        default=5,
        help="number of classes to show of outputs with labels",
    )
    add_json(parser)


def run(options: Namespace) -> int:
    """Print the outputs of one call."""
    if len(options.names) != 1:
        problem = "run takes one MODEL or MODEL:ENGINE"
        raise UsageError(problem, "`buildsys help run` explains it")
    output = typed_path(options.output) if options.output else None
    if output is not None and (output.suffix != ".npz" or not output.absolute().parent.is_dir()):
        problem = f"--output {options.output} is not an .npz file in an existing folder"
        raise UsageError(problem, "name a file that ends in .npz")
    session = BuildSession.read_only(options.root, options.names)
    candidates = named_engines(session, options.names[0])
    model = candidates[0].model
    if any(engine.model != model for engine in candidates):
        raise UsageError("run takes the engines of one model", f"write run {model}")
    point = graph_points(session.project.models[model].data).served
    if not options.input:
        problem = f"run needs values for {', '.join(point.inputs)}: add --input NAME=FILE"
        raise UsageError(problem, f"to build, type `buildsys build {options.names[0]}`")
    engine, why = choose_engine(session, candidates)
    preprocess = _fields(session, model, "inputs", "preprocess")
    files = [_input_file(model, point, preprocess, text) for text in options.input]
    with TemporaryDirectory(prefix="buildsys-run-") as folder:
        answer = _call(session, engine, point, files, options.top, Path(folder))
        if output is not None:
            replace_file(output, (Path(folder) / "outputs.npz").read_bytes())
    document = {
        "schema": SCHEMA, "model": model, "engine": engine.variant, "chosen": why, **answer,
        "output": options.output or None,
    }  # fmt: skip
    print_answer(options, document, _lines(document))
    return 0


def _fields(session: BuildSession, model: str, section: str, field: str) -> dict[str, Any]:
    """List a field of inputs or outputs by their names after surgery."""
    spec = session.project.models[model].data
    values = {tensor: fields[field] for tensor, fields in spec[section].items()}
    for step in (step for when in WHENS for step in steps_of(spec, when)):
        names = step.get("rename") or {}
        values = {names.get(tensor, tensor): value for tensor, value in values.items()}
    return {tensor: value for tensor, value in values.items() if value is not None}


def _input_file(
    model: str, point: GraphPoint, preprocess: Mapping[str, Any], text: str
) -> tuple[str, str, str]:
    """Parse ``--input [NAME=]FILE`` to input, path and typed name.

    The input is "" for an .npz file with all inputs.

    Raises: UsageError: an unknown input, no such file, or one that does not fit the input.
    """
    inputs = point.inputs
    name, equals, typed = text.partition("=")
    if not equals or (name not in inputs and typed_path(text).exists()):
        name, typed = "", text
    if name and name not in inputs:
        raise unknown_name("input", name, inputs, f"inputs: {', '.join(inputs)}")
    path = typed_path(typed).absolute()
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in (*_ARRAY_SUFFIXES, *IMAGE_SUFFIXES):
        problem = f"there is no image, .npy or .npz file {typed}"
        raise UsageError(problem, suggest_file(path) or "the path is relative to your folder")
    if not name and suffix != ".npz":
        if len(inputs) > 1:
            hint = f"write --input NAME={typed}; inputs: {', '.join(inputs)}"
            raise UsageError(f"{model} has several inputs", hint)
        (name,) = inputs
    if suffix in IMAGE_SUFFIXES and name not in preprocess:
        problem = f"the manifest of {model} has no preprocessing of images for {name}"
        raise UsageError(problem, "add inputs.NAME.preprocess to it, or give an .npz file")
    return name, str(path), typed


def _call(
    session: BuildSession,
    engine: Action,
    point: GraphPoint,
    files: list[tuple[str, str, str]],
    top: int,
    folder: Path,
) -> dict[str, Any]:
    """Compute the outputs in workers, and measure the latency.

    Raises: StageError: a file is unsuitable, or the engine does not run.
    """
    project, model, values = session.project, engine.model, folder / "inputs.npz"
    preprocess = _fields(session, model, "inputs", "preprocess")
    declared = {n: {**port, "preprocess": preprocess.get(n)} for n, port in point.inputs.items()}
    labels = _fields(session, model, "outputs", "labels")
    weights = [fields["torchvision"] for fields in labels.values() if "torchvision" in fields]
    target = f"run:{model}:{engine.variant}"
    options = {"inputs": declared, "dims": point.dims, "files": files, "weights": weights}
    server = "torch" if weights else "bare"
    prepared = run_stage(
        project, f"{_STAGES}.inputs", target, options, outputs={"inputs": values}, server=server
    )
    names = {
        output: prepared["labels"].get(fields.get("torchvision"))
        or fields.get("names")
        or _read_labels(project.root, output, fields["file"])
        for output, fields in labels.items()
    }
    described = {
        output: {"activation": fields["activation"], "count": len(names[output])}
        for output, fields in labels.items()
    }
    toolchain, file = engine.toolchain, project.build / engine.outputs["engine"].path
    answer = run_stage(
        project,
        f"{_STAGES}.engine",
        target,
        {"labels": described, "top": top},
        {"engine": file, "inputs": values},
        {"outputs": folder / "outputs.npz"},
        toolchain=toolchain and locate_toolchain(*toolchain, project.root, os.environ),
    )
    for output, figures in answer["outputs"].items():
        for row in figures.get("top", ()):
            row["label"] = [names[output][index] for index in row["index"]]
    latency_ms, outputs = answer["latency_ms"], answer["outputs"]
    return {"latency_ms": latency_ms, "inputs": prepared["inputs"], "outputs": outputs}


def _read_labels(root: Path, output: str, name: str) -> list[str]:
    """Read the lines of a file. Raises: UsageError: it cannot be read."""
    try:
        text = (root / name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        problem = f"outputs.{output}.labels.file: {name} cannot be read: {error}"
        raise UsageError(problem, "save it as UTF-8, one name per line") from None
    return [line.strip() for line in text.rstrip("\n").split("\n")]


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield engine, latency, inputs and outputs as text."""
    name = f"{document['model']}:{document['engine']}"
    why = _REASONS[document["chosen"]]
    yield f"{name}{why}: {significant(document['latency_ms'])} ms, the first call after loading"
    for tensor, figures in document["inputs"].items():
        files, steps = first_names(figures["files"], _MOST_ROWS), figures["preprocess"]
        yield f"  {tensor}: {files}{', ' + steps if steps else ''}"
    ranges = []
    for tensor, figures in document["outputs"].items():
        if "top" in figures:
            yield from _class_lines(tensor, figures)
            continue
        kind = f"{figures['dtype']} [{', '.join(map(str, figures['shape']))}]"
        ends = (_number(figures.get(end)) for end in ("min", "max"))
        ranges.append((tensor, kind, *ends, _warning(figures)))
    if ranges:
        yield ""
        yield from format_table(("output", "type", "min>", "max>", ""), ranges)
    if document["output"]:
        yield f"wrote {document['output']}"


def _class_lines(tensor: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the best classes of each row."""
    count = figures["rows"]
    for number, row in enumerate(figures["top"][:_MOST_ROWS], 1):
        yield ""
        which = f", row {number} of {count}" if count > 1 else ""
        yield f"{tensor}{which}{_warning(figures) and ': '}{_warning(figures)}"
        numbers = [score for score in row["score"] if score is not None]  # JSON has no NaN
        unit = all(0 <= score <= 1 for score in numbers)
        for score, label, index in zip(row["score"], row["label"], row["index"], strict=True):
            text = "NaN" if score is None else f"{100 * score:.2f} %" if unit else _number(score)
            yield f"  {text:>9}  {label} ({index})"
    if count > _MOST_ROWS:
        yield f"{plural(count - _MOST_ROWS, 'more row')}; --output writes all"


def _number(value: float | None) -> str:
    return f"{value:,}" if isinstance(value, int) else significant(value, 4)


def _warning(figures: Mapping[str, Any]) -> str:
    number = figures.get("non_finite")
    return f"{plural(number, 'value')} NaN or infinite" if number else ""
