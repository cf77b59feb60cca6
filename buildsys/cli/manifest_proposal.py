"""The manifest that ``buildsys new`` proposes, from trial runs in a worker."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.cli.worker_pool import run_job
from buildsys.errors import StageError
from buildsys.project.load import Project, check_manifests
from buildsys.system.files import replace_file
from buildsys.workers.job import Job
from buildsys.workers.pool import WorkerPool

_HUB_FILE = "hf://OWNER/NAME@COMMIT/model.safetensors"
_STAGE = "buildsys.stages.reference.proposal"
_SOURCE_NOTES = {
    "torchvision": "random weights; add `weights: DEFAULT` for the trained ones",
    "timm": f"random weights; add `weights: {{file: {_HUB_FILE}}}` for trained ones",
    "python": "weights as the callable sets them",
    "config": f"random weights; add `weights: {{file: {_HUB_FILE}}}` for trained ones",
}
SOURCE_DEFAULTS: dict[str, dict[str, Any]] = {  # a worker takes all fields
    "torchvision": {"weights": None, "kwargs": {}},
    "timm": {"weights": None, "kwargs": {}},
    "transformers": {
        "checkpoint": None, "sha256": None, "config": None, "weights": None, "cache": False,
        "kwargs": {},
    },
    "exported_program": {"trusted": False},
    "python": {"weights": None, "randomize": False, "kwargs": {}},
    "onnx": {},
}  # fmt: skip
_PLAIN = r"[\w./@-]+(:[\w./@-]+)?"  # a place that needs no quotes in YAML
_DYNAMO = "export: {exporter: dynamo, opset: 18}  # tracing would fix the sizes of a saved program"
_ENGINES = ("[ort-cpu]", "[{backend: onnxruntime, name: ort-cpu}]")  # without such a preset


def try_model(
    pool: WorkerPool,
    project: Project,
    model: str,
    source: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Run the model in a worker.

    Raises: StageError: it cannot be loaded or run.
    """
    defaults = next(fields for kind, fields in SOURCE_DEFAULTS.items() if kind in source)
    with TemporaryDirectory(prefix="buildsys-new-") as folder:
        job = Job(
            target=f"new:{model}",
            stage=_STAGE,
            model=model,
            variant="",
            options={"source": {**defaults, **source, "seed": 0}, "inputs": inputs, "outputs": {}},
            inputs={},
            outputs={"result": Path(folder) / "new.json"},
            project=project.root,
        )
        try:
            figures = run_job(pool, job)
        except StageError as error:
            if not error.hint and "python" in source:
                error.hint = "correct it there, then run the command again"
            elif not error.hint and "kwargs" in defaults:
                error.hint = "pass other arguments with --kwargs '{NAME: VALUE}'"
            raise
    sources = figures["source"]
    fields = ("onnx" if field == "python" and "onnx" in sources else field for field in source)
    return {**figures, "source": {field: sources[field] for field in fields}}


def write_manifest(project: Project, file: Path, model: str, proposal: Mapping[str, Any]) -> None:
    """Write the manifest; remove it again unless it is valid.

    Raises: StageError: no valid manifest describes the model.
    """
    problem = ""
    for engines in _ENGINES:
        text = "\n".join(_lines(model, proposal, engines))
        replace_file(file, text.encode())
        is_complete = False
        try:
            errors = check_manifests(project, [file])
            of_file = [error for error in errors if error.file.name == file.name]
            is_complete = not of_file
        finally:
            if not is_complete:
                file.unlink()
        if is_complete:
            return
        first = of_file[0]
        problem = f"{'.'.join(map(str, first.key))}: {first.problem}"
    hint = "write one by hand, with `call` or a callable that returns a simpler network"
    if first.key[:1] == ("source",):
        hint = "rename the file or the callable"
    raise StageError(f"no manifest describes {model}: {problem}", first.hint or hint)


def _lines(model: str, proposal: Mapping[str, Any], engines: str) -> Iterator[str]:
    """Yield the lines of a manifest."""
    source = proposal["source"]
    yield "# yaml-language-server: $schema=../schema/model.schema.json"
    yield "# Proposed from trial runs. Names of outputs and dimensions are free; check the ranges."
    yield f"model: {_flow(model)}"
    texts = {field: value for field, value in source.items() if isinstance(value, str)}
    plain = {field for field, text in texts.items() if re.fullmatch(_PLAIN, text)}
    fields = ", ".join(
        f"{field}: {value if field in plain else _flow(value)}" for field, value in source.items()
    )
    notes = [note for field, note in _SOURCE_NOTES.items() if field in source]
    yield f"source: {{{fields}}}" + "".join(f"  # {note}" for note in notes)
    if proposal.get("sha256"):
        yield f"# to refuse changed files, add to source: sha256: {proposal['sha256']}"
    if "exported_program" in source:
        yield _DYNAMO
    yield "inputs:" + ("  # guessed, and accepted by the network" if proposal["guessed"] else "")
    for name, tensor in proposal["inputs"].items():
        yield f"  {_flow(name)}: {_signature(tensor)}"
    if proposal["optional"]:
        yield f"# forward also takes {', '.join(proposal['optional'])}; --input describes an input"
    if proposal["call"]:
        yield f"call: {_flow({key: value for key, value in proposal['call'].items() if value})}"
    yield "outputs:"
    for name, tensor in proposal["outputs"].items():
        unknown = None in (tensor["shape"] or ())
        note = "  # null: a size that follows no dimension" if unknown else ""
        yield f"  {_flow(name)}: {_signature(tensor)}{note}"
    if proposal["dims"]:
        yield "dims:  # dynamic axes"
        for name, span in proposal["dims"].items():
            ran = _listed(proposal["ran"][name])
            yield f"  {_flow(name)}: {_flow(span)}  # it ran with {ran}"
    for name, size in proposal["fixed"].items():
        yield f"# {name} is fixed to {size}: no other size ran"
    yield f"engines: {engines}"
    yield ""


def _signature(tensor: Mapping[str, Any]) -> str:
    return _flow({field: value for field, value in tensor.items() if value is not None})


def _listed(sizes: Sequence[int]) -> str:
    *most, last = map(str, sizes)
    return f"{', '.join(most)} and {last}"


def _flow(value: Any) -> str:
    """Format a value as YAML on one line."""
    import yaml  # only here

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return text.removesuffix("\n").removesuffix("\n...")


def shown_file(file: Path) -> str:
    """Return the path of a manifest relative to the current folder."""
    return os.path.relpath(file)
