"""buildsys new: propose the manifest of a model from trial runs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from buildsys.cli.command import (
    Options,
    ProjectCommand,
    build_command,
    option,
    print_lines,
    program_of,
    unknown_name,
)
from buildsys.cli.project_root import typed_path
from buildsys.cli.worker_pool import open_pool, run_job
from buildsys.errors import StageError, UsageError
from buildsys.manifest.project import Project, check_manifests, empty_project
from buildsys.system.files import replace_file
from buildsys.workers.client.pool import WorkerPool
from buildsys.workers.job import Job

_STAGE = "buildsys.stages.reference.proposal"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
_INPUT = re.compile(r"(?P<name>[^=]+)=(?P<shape>[^:]*)(:(?P<dtype>\w+))?")
_SOURCES = (
    "torchvision:NAME, timm:NAME, hf:FOLDER, hf:OWNER/NAME, FILE.py:CALLABLE, FILE.onnx or FILE.pt2"
)
_HUB_FILE = "hf://OWNER/NAME@COMMIT/model.safetensors"
_SOURCE_NOTES = {
    "torchvision": "random weights; add `weights: DEFAULT` for the trained ones",
    "timm": f"random weights; add `weights: {{file: {_HUB_FILE}}}` for trained ones",
    "python": "weights as the callable sets them",
    "config": f"random weights; add `weights: {{file: {_HUB_FILE}}}` for trained ones",
}
_DEFAULTS: dict[str, dict[str, Any]] = {  # of a worker's source
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
_HUB_PLACE = re.compile(r"(hf://)?[\w.-]+/[\w.-]+(@[\w./-]+?)?(/config\.json)?")
_PLAIN = r"[\w./@-]+(:[\w./@-]+)?"  # a place that needs no quotes in YAML
_DYNAMO = "export: {exporter: dynamo, opset: 18}  # tracing would fix the sizes of a saved program"
_ENGINES = ("[ort-cpu]", "[{backend: onnxruntime, name: ort-cpu}]")  # without such a preset


class New(ProjectCommand):
    """Propose a manifest."""

    doc_purpose = "write the manifest of a model, from trial runs"
    doc_usage = "MODEL --from SOURCE"
    doc_description = (
        "SOURCE is torchvision:NAME, timm:NAME, FILE.py:CALLABLE, FILE.onnx, FILE.pt2 (saved by\n"
        "torch.export) or, for transformers, hf:FOLDER (a checkpoint), hf:FOLDER/config.json\n"
        "(random weights) or hf:OWNER/NAME[@REVISION] (of the Hub, pinned to its commit). A class\n"
        "or task other than that of the checkpoint goes first: hf:text-classification:FOLDER.\n"
        "The model is run at several sizes; its inputs, outputs and dynamic axes are written to\n"
        "configs/models/MODEL.yaml. --input describes an input of unknown shape; a word is a\n"
        "dynamic dimension: --input image=batch,3,224,224 or --input ids=batch,16:int64\n"
        "--kwargs passes arguments to the source, --kwargs '{width: 64}'. With --cache, a decoder\n"
        "of transformers takes past key values as inputs and returns them"
    )
    options = (
        option("from", f"the model: {_SOURCES}"),
        option("input", "an input, NAME=SHAPE[:DTYPE]; may be repeated", type=list, default=[]),
        option("kwargs", "arguments of the source, a map in YAML"),
        option("cache", "past key values as inputs and outputs", flag=True),
        option("trusted", "load FILE.pt2, though torch can run code of it", flag=True),
    )

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Write the manifest, unless there is one of this name."""
        if len(names) != 1 or not options["from"]:
            raise UsageError("new takes one name and --from", f"SOURCE is {_SOURCES}")
        model = names[0]
        if not _NAME.fullmatch(model):
            hint = "use letters, digits and _ . + -, beginning with a letter or digit"
            raise UsageError(f"{model!r} is not the name of a model", hint)
        project = empty_project(root)
        file = project.configs / "models" / f"{model}.yaml"
        if os.path.lexists(file):
            raise UsageError(
                f"{shown_file(file)} exists already", "choose another name, or remove it"
            )
        source = _source(root, options["from"])
        source = {**source, **_settings(source, options)}
        inputs = dict(map(_input, options["input"]))
        with open_pool(project.state) as pool:
            found = try_model(pool, project, model, source, inputs)
        write_manifest(project, file, model, found)
        print_lines(
            [f"wrote {shown_file(file)}", f"next: {build_command(program_of(self), model)}"]
        )
        return 0


def _settings(source: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return further fields of the source.

    Raises: UsageError: it does not have them.
    """
    import yaml  # only here

    defaults = next(fields for kind, fields in _DEFAULTS.items() if kind in source)
    given: dict[str, Any] = {name: True for name in ("cache", "trusted") if options[name]}
    if text := options["kwargs"]:
        try:
            given["kwargs"] = yaml.safe_load(text)
        except yaml.YAMLError:
            given["kwargs"] = None
        if not isinstance(given["kwargs"], dict):
            raise UsageError(f"--kwargs {text} is not a map", "write for example '{width: 64}'")
    if unknown := [field for field in given if field not in defaults]:
        which = {"cache": "models of transformers", "trusted": ".pt2 files"}
        users = which.get(unknown[0], "models in Python")
        raise UsageError(f"--{unknown[0]} is for {users} only", "remove it")
    if "exported_program" in source and not options["trusted"]:
        problem = f"torch can run code of {source['exported_program']} when it loads the file"
        raise UsageError(problem, "if you trust its author, add --trusted")
    return given


def _source(root: Path, text: str) -> dict[str, str]:
    """Return the manifest's ``source``; the worker completes that of a transformers model.

    Raises: UsageError: an unknown kind, or a file that is missing or outside of the project.
    """
    kind, _, name = text.partition(":")
    if kind in ("torchvision", "timm") and name:
        return {kind: name}
    if kind == "hf" and name:
        return _transformers_source(root, name)
    file, _, attribute = text.partition(".py:")
    path = f"{file}.py" if attribute else text
    if not attribute and not text.endswith((".onnx", ".pt2")):
        raise UsageError(f"--from {text} is no source", f"write {_SOURCES}")
    full = inside_project(root, path)
    if not full.is_file():
        raise UsageError(
            f"there is no file {path}", "check the path; it is relative to the current folder"
        )
    inside = full.relative_to(root).as_posix()
    if attribute:
        return {"python": f"{inside}:{attribute}"}
    return {"onnx" if text.endswith(".onnx") else "exported_program": inside}


def _transformers_source(root: Path, text: str) -> dict[str, str]:
    """Return the source of ``[CLASS:]PLACE``, with an empty class if it is not given.

    Raises: UsageError: the place is neither of the project nor of the Hub.
    """
    match = re.fullmatch(r"(?:([\w-]+):(?!//))?(.+)", text)
    name, place = (match[1] or "", match[2]) if match else ("", text)
    field = "config" if place.endswith(".json") else "checkpoint"
    if typed_path(place).exists():
        inside = inside_project(root, place).relative_to(root).as_posix()
        if field == "checkpoint" and not typed_path(place).is_dir():
            raise UsageError(f"{place} is neither a folder nor a .json file", "write hf:FOLDER")
        return {"transformers": name, field: inside}
    in_project = "://" not in place and Path(typed_path(place)).parent.exists()
    if in_project or not _HUB_PLACE.fullmatch(place):
        hint = "write hf:FOLDER, hf:FOLDER/config.json or, of the Hub, hf:OWNER/NAME[@REVISION]"
        raise UsageError(f"there is no folder {place}", hint)
    return {"transformers": name, field: f"hf://{place.removeprefix('hf://')}"}


def inside_project(root: Path, name: str) -> Path:
    """Return the path of a typed name.

    Raises: UsageError: it is outside of the project, or its name cannot be in a manifest.
    """
    path = Path(os.path.abspath(typed_path(name)))  # noqa: PTH100 - links stay
    if not path.is_relative_to(root):
        raise UsageError(f"{name} is outside of the project {root}", "copy it into the project")
    if path.exists() and not path.resolve().is_relative_to(root.resolve()):
        raise UsageError(f"{name} is a link out of the project {root}", "copy the file into it")
    if not str(path.relative_to(root)).isprintable():
        raise UsageError(f"{name!r} has characters that a manifest cannot name", "rename it")
    return path


def _input(text: str) -> tuple[str, dict[str, Any]]:
    """Return name, shape and dtype of ``--input``.

    Raises: UsageError: it has another form.
    """
    from buildsys.manifest.schema.base import DType  # slow to import

    match = _INPUT.fullmatch(text)
    sizes = [size.strip() for size in match["shape"].split(",")] if match and match["shape"] else []
    if match is None or not all(size.isdecimal() or size.isidentifier() for size in sizes):
        example = "--input image=batch,3,224,224 or --input ids=batch,16:int64"
        raise UsageError(
            f"--input {text} is not NAME=SHAPE[:DTYPE]", f"write for example {example}"
        )
    shape = [int(size) if size.isdecimal() else size for size in sizes]
    dtype, known = match["dtype"] or "float32", get_args(DType)
    if dtype not in known:
        raise unknown_name("dtype", dtype, known, f"known: {', '.join(known)}")
    return match["name"], {"shape": shape, "dtype": dtype}


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
    defaults = next(fields for kind, fields in _DEFAULTS.items() if kind in source)
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
    known = figures["source"]
    fields = ("onnx" if field == "python" and "onnx" in known else field for field in source)
    return {**figures, "source": {field: known[field] for field in fields}}


def write_manifest(project: Project, file: Path, model: str, found: Mapping[str, Any]) -> None:
    """Write the manifest; remove it again unless it is valid.

    Raises: StageError: no valid manifest describes the model.
    """
    problem = ""
    for engines in _ENGINES:
        text = "\n".join(_lines(model, found, engines))
        replace_file(file, text.encode())
        kept = False
        try:
            errors = check_manifests(project, [file])
            of_file = [error for error in errors if error.file.name == file.name]
            kept = not of_file
        finally:
            if not kept:
                file.unlink()
        if kept:
            return
        first = of_file[0]
        problem = f"{'.'.join(map(str, first.key))}: {first.problem}"
    hint = "write one by hand, with `call` or a callable that returns a simpler network"
    if first.key[:1] == ("source",):
        hint = "rename the file or the callable"
    raise StageError(f"no manifest describes {model}: {problem}", first.hint or hint)


def _lines(model: str, found: Mapping[str, Any], engines: str) -> Iterator[str]:
    """Yield the lines of a manifest."""
    source = found["source"]
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
    if found.get("sha256"):
        yield f"# to refuse changed files, add to source: sha256: {found['sha256']}"
    if "exported_program" in source:
        yield _DYNAMO
    yield "inputs:" + ("  # guessed, and accepted by the network" if found["guessed"] else "")
    for name, tensor in found["inputs"].items():
        yield f"  {_flow(name)}: {_signature(tensor)}"
    if found["optional"]:
        yield f"# forward also takes {', '.join(found['optional'])}; --input describes an input"
    if found["call"]:
        yield f"call: {_flow({key: value for key, value in found['call'].items() if value})}"
    yield "outputs:"
    for name, tensor in found["outputs"].items():
        unknown = None in (tensor["shape"] or ())
        note = "  # null: a size that follows no dimension" if unknown else ""
        yield f"  {_flow(name)}: {_signature(tensor)}{note}"
    if found["dims"]:
        yield "dims:  # dynamic axes"
        for name, span in found["dims"].items():
            ran = _listed(found["ran"][name])
            yield f"  {_flow(name)}: {_flow(span)}  # it ran with {ran}"
    for name, size in found["fixed"].items():
        yield f"# {name} is fixed to {size}: no other size ran"
    yield f"engines: {engines}"
    yield ""


def _signature(tensor: Mapping[str, Any]) -> str:
    return _flow({field: value for field, value in tensor.items() if value is not None})


def _listed(sizes: Sequence[int]) -> str:
    *most, last = map(str, sizes)
    return f"{', '.join(most)} and {last}"


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    import yaml  # only here

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return text.removesuffix("\n").removesuffix("\n...")


def shown_file(file: Path) -> str:
    """Return the path of a manifest relative to the current folder."""
    return os.path.relpath(file)
