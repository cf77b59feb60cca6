"""buildsys new and import: propose manifests of models from trial runs."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.cli.command import (
    Options,
    ProjectCommand,
    build_command,
    option,
    print_lines,
    program_of,
)
from buildsys.cli.project_root import typed_path
from buildsys.cli.worker_pool import open_pool
from buildsys.errors import StageError, UsageError
from buildsys.manifest.project import Project, check_manifests, empty_project
from buildsys.system.files import replace_file
from buildsys.workers.client.pool import WorkerPool
from buildsys.workers.job import Job

_STAGE = "buildsys.stages.reference.proposal"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
_INPUT = re.compile(r"(?P<name>[^=]+)=(?P<shape>[^:]*)(:(?P<dtype>\w+))?")
_SOURCES = "torchvision:NAME, FILE.py:CALLABLE or FILE.onnx"
_SOURCE_NOTES = {
    "torchvision": "  # random weights; add `weights: DEFAULT` for the trained ones",
    "python": "  # weights as the callable sets them",
}
_ENGINES = ("[ort-cpu]", "[{backend: onnxruntime, name: ort-cpu}]")  # without such a preset


class New(ProjectCommand):
    """Propose a manifest."""

    doc_purpose = "write the manifest of a model, from trial runs"
    doc_usage = "MODEL --from SOURCE"
    doc_description = (
        f"SOURCE is {_SOURCES}.\n"
        "The model is run at several sizes; its inputs, outputs and dynamic axes are written to\n"
        "configs/models/MODEL.yaml. --input describes an input of unknown shape; a word is a\n"
        "dynamic dimension: --input image=batch,3,224,224 or --input ids=batch,16:int64"
    )
    options = (
        option("from", f"the model: {_SOURCES}"),
        option("input", "an input, NAME=SHAPE[:DTYPE]; may be repeated", type=list, default=[]),
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
        if file.exists():
            raise UsageError(f"{_shown(file)} exists already", "choose another name, or remove it")
        source, defaults = _source(root, options["from"])
        inputs = dict(map(_input, options["input"]))
        with open_pool(project.state) as pool:
            found = _try(pool, project, model, {**defaults, **source, "seed": 0}, inputs)
        _write(project, file, model, source, found)
        print_lines([f"wrote {_shown(file)}", f"next: {build_command(program_of(self), model)}"])
        return 0


class Import(ProjectCommand):
    """Propose the manifests of a folder of ONNX files."""

    doc_purpose = "write the manifests of all ONNX files in a folder"
    doc_usage = "FOLDER"
    doc_description = (
        "does what `new` does for each file; the model has the name of its file. An existing\n"
        "manifest is kept. The exit code is 2 if a file cannot be described"
    )

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Write one manifest per file; return 2 if one fails."""
        del options
        if len(names) != 1:
            raise UsageError("import takes one folder", "e.g. `import networks`")
        folder = _inside(root, names[0])
        networks = sorted(folder.rglob("*.onnx")) if folder.is_dir() else []
        if not networks:
            hint = "name a folder of the project with ONNX files"
            raise UsageError(f"there are no ONNX files in {names[0]}", hint)
        project, code = empty_project(root), 0
        with open_pool(project.state) as pool:
            for network, model in zip(networks, _model_names(networks, folder), strict=True):
                file = project.configs / "models" / f"{model}.yaml"
                source = {"onnx": network.relative_to(root).as_posix()}
                if file.exists():
                    print_lines([f"kept {_shown(file)}"])
                    continue
                try:
                    found = _try(pool, project, model, {**source, "seed": 0}, {})
                    _write(project, file, model, source, found)
                    print_lines([f"wrote {_shown(file)}"])
                except StageError as error:
                    code = error.exit_code
                    print_lines([f"failed {source['onnx']}: {error.problem}"])
        return code


def _model_names(networks: Sequence[Path], folder: Path) -> list[str]:
    """Return the names of files, with those of their folders where files have the same name."""
    stems = Counter(network.stem for network in networks)
    parts = (
        network.stem
        if stems[network.stem] == 1
        else str(network.relative_to(folder).with_suffix(""))
        for network in networks
    )
    return [
        re.sub(r"[^A-Za-z0-9_.+-]+", "-", part, flags=re.ASCII).lstrip("_.+-") or "model"
        for part in parts
    ]


def _source(root: Path, text: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the manifest's ``source``, and its defaults for a worker.

    Raises: UsageError: an unknown kind, or a file that is missing or outside of the project.
    """
    kind, colon, name = text.partition(":")
    if colon and kind == "torchvision" and name:
        return {"torchvision": name}, {"weights": None, "kwargs": {}}
    file, _, attribute = text.partition(".py:")
    path = f"{file}.py" if attribute else text
    if not attribute and not text.endswith(".onnx"):
        raise UsageError(f"--from {text} is no source", f"write {_SOURCES}")
    full = _inside(root, path)
    if not full.is_file():
        raise UsageError(f"there is no file {path}")
    inside = full.relative_to(root).as_posix()
    if attribute:
        more: dict[str, Any] = {"weights": None, "randomize": False, "kwargs": {}}
        return {"python": f"{inside}:{attribute}"}, more
    return {"onnx": inside}, {}


def _inside(root: Path, name: str) -> Path:
    """Return the path of a typed name. Raises: UsageError: it is outside of the project."""
    path = Path(os.path.abspath(typed_path(name)))  # noqa: PTH100 - links stay
    if not path.is_relative_to(root):
        raise UsageError(f"{name} is outside of the project {root}", "copy it into the project")
    return path


def _input(text: str) -> tuple[str, dict[str, Any]]:
    """Return name, shape and dtype of ``--input``. Raises: UsageError: it has another form."""
    match = _INPUT.fullmatch(text)
    sizes = [size.strip() for size in match["shape"].split(",")] if match and match["shape"] else []
    if match is None or not all(size.isdecimal() or size.isidentifier() for size in sizes):
        example = "--input image=batch,3,224,224 or --input ids=batch,16:int64"
        raise UsageError(
            f"--input {text} is not NAME=SHAPE[:DTYPE]", f"write for example {example}"
        )
    shape = [int(size) if size.isdecimal() else size for size in sizes]
    return match["name"], {"shape": shape, "dtype": match["dtype"] or "float32"}


def _try(
    pool: WorkerPool,
    project: Project,
    model: str,
    source: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Run the model in a worker. Raises: StageError: it cannot be loaded or run."""
    with TemporaryDirectory(prefix="buildsys-new-") as folder:
        log = Path(folder) / "new.log"
        job = Job(
            target=f"new:{model}",
            stage=_STAGE,
            model=model,
            variant="",
            options={"source": source, "inputs": inputs, "outputs": {}},
            inputs={},
            outputs={"result": Path(folder) / "result.json"},
            project=project.root,
        )
        try:
            return pool.run(job, log=log, on_event=_show).figures
        finally:
            _show({})


def _show(event: Mapping[str, Any]) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{event.get('message', '')}")
        sys.stderr.flush()


def _write(
    project: Project, file: Path, model: str, source: Mapping[str, str], found: Mapping[str, Any]
) -> None:
    """Write the manifest; remove it again unless it is valid.

    Raises: StageError: no valid manifest describes the model.
    """
    problem = ""
    for engines in _ENGINES:
        text = "\n".join(_lines(model, source, found, engines))
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
        problem = f"{'.'.join(map(str, of_file[0].key))}: {of_file[0].problem}"
    hint = "write one by hand, with `call` or a callable that returns a simpler network"
    raise StageError(f"no manifest describes {model}: {problem}", hint)


def _lines(
    model: str, source: Mapping[str, str], found: Mapping[str, Any], engines: str
) -> Iterator[str]:
    """Yield the lines of a manifest."""
    yield "# yaml-language-server: $schema=../schema/model.schema.json"
    yield "# Proposed from trial runs. Names of outputs and dimensions are free; check the ranges."
    yield f"model: {_flow(model)}"
    ((kind, place),) = source.items()
    # a colon without a space needs no quotes
    shown = place if re.fullmatch(r"[\w./-]+(:\w+)?", place) else _flow(place)
    yield f"source: {{{kind}: {shown}}}" + _SOURCE_NOTES.get(kind, "")
    for section in ("inputs", "outputs"):
        yield f"{section}:"
        for name, tensor in found[section].items():
            signature = {key: value for key, value in tensor.items() if value is not None}
            yield f"  {_flow(name)}: {_flow(signature)}"
    if found["dims"]:
        yield "dims:  # dynamic axes"
        batches = {tensor["shape"][0] for tensor in found["inputs"].values() if tensor["shape"]}
        for name, (size, other) in found["dims"].items():
            spans = (1, 4, 8) if name in batches else (size, size, 2 * size)
            dims = dict(zip(("min", "opt", "max"), spans, strict=True))
            yield f"  {_flow(name)}: {_flow(dims)}  # it ran with {size} and {other}"
    yield f"engines: {engines}"
    yield ""


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    import yaml  # only here

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return text.removesuffix("\n").removesuffix("\n...")


def _shown(file: Path) -> str:
    return os.path.relpath(file)
