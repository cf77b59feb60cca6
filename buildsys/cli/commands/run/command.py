"""buildsys run: run a built engine on images or arrays."""

from __future__ import annotations

import os
import stat
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.cli.command import add_json, add_names, positive_integer, print_answer, unknown_name
from buildsys.cli.commands.run.engine_choice import (
    FIRST,
    NAMED,
    RECOMMENDED,
    choose_engine,
    named_engines,
)
from buildsys.cli.console.rows import format_table
from buildsys.cli.project_root import typed_path
from buildsys.cli.session import Session
from buildsys.cli.worker_pool import open_pool, run_job
from buildsys.errors import StageError, UsageError
from buildsys.manifest.problem import suggest_file
from buildsys.manifest.surgery_interface import WHENS, steps_of
from buildsys.plan.action import Action
from buildsys.plan.graph_points import GraphPoint, graph_points
from buildsys.report.formatting import first_names, plural, significant
from buildsys.system.files import IMAGE_SUFFIXES, read_limited, replace_file
from buildsys.system.interpreters.toolchain import locate_toolchain
from buildsys.workers.job import Job
from buildsys.workers.pool import WorkerPool

SCHEMA = "buildsys/run/1"
_REASONS = {NAMED: "", RECOMMENDED: " (recommended)", FIRST: " (the first that can run)"}
_STAGES = "buildsys.stages.run"
_ARRAY_SUFFIXES = (".npy", ".npz")
_SHOWN_ROWS = 8
_MAX_LABELS_BYTES = 16 << 20


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
    output = _output_file(options.output)
    session = Session.read_only(options.root, options.names)
    candidates = named_engines(session, options.names[0])
    model = candidates[0].model
    if not options.input:
        inputs = ", ".join(_final(session, model).inputs)
        problem = f"run needs values for {inputs}: add --input NAME=FILE"
        hint = f"to build, type `buildsys build {options.names[0]}`"
        raise UsageError(problem, hint)
    engine, why = choose_engine(session, candidates)
    network = ModelInterface.of(session, model)
    files = [network.file(text) for text in options.input]
    with TemporaryDirectory(prefix="buildsys-run-") as folder:
        call = _Call(session, engine, network, Path(folder))
        document = call.make(files, options.top)
        if output is not None:
            try:
                replace_file(output, (Path(folder) / "outputs.npz").read_bytes())
            except OSError as error:
                problem = f"--output {options.output} cannot be written: {error.strerror}"
                raise StageError(problem, "name another file") from None
    document = {
        "schema": SCHEMA, "model": model, "engine": engine.variant, "chosen": why, **document,
        "random_weights": network.has_random_weights, "output": options.output or None,
    }  # fmt: skip
    print_answer(options, document, _lines(document))
    return 0


@dataclass(frozen=True)
class ModelInterface:
    """Inputs of a model's engines, with their fields in the manifest."""

    model: str
    point: GraphPoint
    preprocess: Mapping[str, Mapping[str, Any]]  # by input, of those with it
    labels: Mapping[str, Mapping[str, Any]]  # by output, of those with labels
    has_random_weights: bool

    @classmethod
    def of(cls, session: Session, model: str) -> ModelInterface:
        """Return the network of a model, with names after surgery."""
        spec = session.project.models[model].data

        def fields(section: str, name: str) -> dict[str, Any]:
            values = {tensor: fields[name] for tensor, fields in spec[section].items()}
            for step in (step for when in WHENS for step in steps_of(spec, when)):
                names = step.get("rename") or {}
                values = {names.get(tensor, tensor): value for tensor, value in values.items()}
            return {tensor: value for tensor, value in values.items() if value is not None}

        source = spec["source"].get("reference") or spec["source"]  # with its weights
        is_untrained = not {"torchvision", "timm", "config"}.isdisjoint(
            field for field, value in source.items() if value is not None
        )
        return cls(
            model, _final(session, model), fields("inputs", "preprocess"),
            fields("outputs", "labels"),
            (is_untrained and source["weights"] is None) or bool(source.get("randomize")),
        )  # fmt: skip

    def file(self, text: str) -> tuple[str, str, str]:
        """Return input, path and text of ``--input [NAME=]FILE``.

        The input is "" for an .npz file with all inputs.

        Raises: UsageError: an unknown input, no such file, or one that does not fit the input.
        """
        inputs = self.point.inputs
        name, equals, typed = text.partition("=")
        if not equals or (name not in inputs and typed_path(text).exists()):
            name, typed = "", text
        if name and name not in inputs:
            raise unknown_name("input", name, inputs, f"inputs: {', '.join(inputs)}")
        path = typed_path(typed).absolute()
        try:
            is_file = stat.S_ISREG(path.stat().st_mode)
        except (OSError, ValueError):
            hint = suggest_file(path) or "check the path; it is relative to the current folder"
            raise UsageError(f"there is no file {typed}", hint) from None
        suffix = path.suffix.lower()
        if not is_file or suffix not in (*_ARRAY_SUFFIXES, *IMAGE_SUFFIXES):
            if not is_file:
                raise UsageError(f"{typed} is not a regular file", "name a regular file")
            hint = f"images end in {' '.join(IMAGE_SUFFIXES)}"
            raise UsageError(f"{typed} is no image, .npy or .npz file", hint)
        if not name and (suffix != ".npz" or len(inputs) == 1):
            if len(inputs) > 1:
                hint = f"write --input NAME={typed}; inputs: {', '.join(inputs)}"
                raise UsageError(f"{self.model} has several inputs", hint)
            name = "" if suffix == ".npz" else next(iter(inputs))
        if suffix in IMAGE_SUFFIXES and len(inputs[name]["shape"]) not in (3, 4):
            problem = f"the input {name} has {plural(len(inputs[name]['shape']), 'dimension')}"
            raise UsageError(f"{problem} and takes no image", "give an .npy or .npz file")
        if suffix in IMAGE_SUFFIXES and name not in self.preprocess:
            problem = f"the manifest of {self.model} has no preprocessing of images for {name}"
            hint = f"add for example inputs: {{{name}: {{preprocess: {{resize: 256}}}}}}"
            raise UsageError(problem, f"{hint}, or give an .npz file")
        return name, str(path), typed


class _Call:
    """One call of an engine in workers."""

    def __init__(
        self, session: Session, engine: Action, network: ModelInterface, folder: Path
    ) -> None:
        self._session = session
        self._engine = engine
        self._network = network
        self._folder = folder

    def make(self, files: Sequence[tuple[str, str, str]], top: int) -> dict[str, Any]:
        """Compute the outputs, and measure the latency.

        Raises: StageError: a file is unsuitable, or the engine does not run.
        """
        point, project = self._network.point, self._session.project
        declared = {
            name: {**tensor, "preprocess": self._network.preprocess.get(name)}
            for name, tensor in point.inputs.items()
        }
        values = self._folder / "inputs.npz"
        toolchain = self._engine.toolchain
        with open_pool(project.state) as pool:
            options = {"inputs": declared, "dims": point.dims, "files": files}
            prepared = self._work(pool, "inputs", options, outputs={"inputs": values})
            names = self._labels(pool)
            labels = {
                output: {"activation": fields["activation"], "count": len(names[output])}
                for output, fields in self._network.labels.items()
            }
            file = project.build / self._engine.outputs["engine"].path
            answer = self._work(
                pool,
                "engine",
                {"labels": labels, "top": top},
                inputs={"engine": file, "inputs": values},
                outputs={"outputs": self._folder / "outputs.npz"},
                toolchain=toolchain and locate_toolchain(*toolchain, project.root, os.environ),
            )
        for output, figures in answer["outputs"].items():
            for row in figures.get("top", ()):
                row["label"] = [names[output][index] for index in row["index"]]
        return {
            "latency_ms": answer["latency_ms"],
            "inputs": prepared["inputs"],
            "outputs": answer["outputs"],
        }

    def _labels(self, pool: WorkerPool) -> dict[str, list[str]]:
        """List the class names of every labelled output."""
        names: dict[str, list[str]] = {}
        for output, labels in self._network.labels.items():
            if "torchvision" in labels:
                weights = labels["torchvision"]
                answer = self._work(pool, "labels", {"weights": [weights]}, server="torch")
                names[output] = answer["labels"][weights]["names"]
            elif "file" in labels:
                names[output] = _read_labels(self._session.project.root, output, labels["file"])
            else:
                names[output] = labels["names"]
        return names

    def _work(
        self,
        pool: WorkerPool,
        stage: str,
        options: Mapping[str, Any],
        *,
        inputs: Mapping[str, Path] | None = None,
        outputs: Mapping[str, Path] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        job = Job(
            target=f"run:{self._network.model}:{self._engine.variant}",
            stage=f"{_STAGES}.{stage}",
            model=self._network.model,
            variant=self._engine.variant,
            options=options,
            inputs=inputs or {},
            outputs={**(outputs or {}), "result": self._folder / f"{stage}.json"},
            project=self._session.project.root,
            **more,
        )
        return run_job(pool, job)


def _final(session: Session, model: str) -> GraphPoint:
    return graph_points(session.project.models[model].data).final


def _output_file(typed: str) -> Path | None:
    """Check the file of ``--output``. Raises: UsageError: it cannot be written."""
    if not typed:
        return None
    path = typed_path(typed)
    if path.suffix != ".npz" or path.is_dir():
        raise UsageError(f"--output {typed} is no .npz file", "name a file that ends in .npz")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--output {typed}: its folder does not exist", "create the folder")
    return path


def _read_labels(root: Path, output: str, name: str) -> list[str]:
    """Read the lines of a file. Raises: UsageError: it cannot be read."""
    where = f"outputs.{output}.labels.file: {name}"
    try:
        text = read_limited(root / name, _MAX_LABELS_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{where} is not UTF-8", "save it as UTF-8, one name per line") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{where} cannot be read: {reason}", "check the file") from None
    return [line.strip() for line in text.rstrip("\n").split("\n")]


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield engine, latency, inputs and outputs as text."""
    name = f"{document['model']}:{document['engine']}"
    why = _REASONS[document["chosen"]]
    yield f"{name}{why}: {significant(document['latency_ms'])} ms, the first call after loading"
    for tensor, figures in document["inputs"].items():
        files, steps = first_names(figures["files"], _SHOWN_ROWS), figures["preprocess"]
        yield f"  {tensor}: {files}{', ' + steps if steps else ''}"
    plain = {
        tensor: figures for tensor, figures in document["outputs"].items() if "top" not in figures
    }
    for tensor, figures in document["outputs"].items():
        if tensor not in plain:
            yield from _class_lines(tensor, figures, document["inputs"])
    if plain:
        yield ""
        rows = (
            (
                tensor,
                f"{figures['dtype']} [{', '.join(map(str, figures['shape']))}]",
                *(_number(figures.get(end)) for end in ("min", "max")),
                _warning(figures),
            )
            for tensor, figures in plain.items()
        )
        yield from format_table(("output", "type", "min>", "max>", ""), rows)
    if document["random_weights"] and len(plain) < len(document["outputs"]):
        yield ""
        yield "the weights are random, so the classes mean nothing; set source.weights"
    if document["output"]:
        yield f"wrote {document['output']}"


def _class_lines(
    tensor: str, figures: Mapping[str, Any], inputs: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the best classes of each row, with its image if known."""
    count = figures["rows"]
    images = [entry["files"] for entry in inputs.values() if len(entry["files"]) == count > 1]
    for number, row in enumerate(figures["top"][:_SHOWN_ROWS]):
        yield ""
        which = f", row {number + 1} of {count}" if count > 1 else ""
        which = f", {images[0][number]}" if len(images) == 1 else which
        yield f"{tensor}{which}{_warning(figures) and ': '}{_warning(figures)}"
        scores = row["score"]
        numbers = [score for score in scores if score is not None]  # JSON has no NaN
        unit = all(0 <= score <= 1 for score in numbers)
        formatted = [
            "NaN" if score is None else f"{100 * score:.2f} %" if unit else significant(score, 4)
            for score in scores
        ]
        yield from (
            f"  {score:>9}  {label} ({index})"
            for score, label, index in zip(formatted, row["label"], row["index"], strict=True)
        )
    if count > _SHOWN_ROWS:
        yield f"{plural(count - _SHOWN_ROWS, 'more row')}; --output writes all"


def _number(value: float | None) -> str:
    return f"{value:,}" if isinstance(value, int) else significant(value, 4)


def _warning(figures: Mapping[str, Any]) -> str:
    number = figures.get("non_finite")
    return f"{plural(number, 'value')} NaN or infinite" if number else ""
