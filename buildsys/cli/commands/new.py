"""buildsys new: propose the manifest of a model from trial runs."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from buildsys.cli.command import add_names, print_lines, project_name, typed_path, unknown_name
from buildsys.cli.session import BuildSession
from buildsys.cli.sources import SOURCES, add_source_options
from buildsys.cli.worker_pool import run_stage, show_progress
from buildsys.errors import StageError, UsageError
from buildsys.manifest.exports import NEW_EXPORTS
from buildsys.project.load import Project, check_manifests, empty_project, load_models
from buildsys.system.file_kinds import describe_file
from buildsys.system.files import replace_file
from buildsys.system.user_modules import split_reference
from buildsys.system.weight_names import folder_hint

if TYPE_CHECKING:
    from buildsys.cli.trials import Ends

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
_INPUT = re.compile(
    r"(?P<name>[^=]+)=(?P<shape>[^:]*)(:(?P<dtype>\w+))?"
    r"(:(?P<low>-?\d+(\.\d+)?)\.\.(?P<high>-?\d+(\.\d+)?))?"
)
WEIGHTS_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_STAGE = "buildsys.stages.reference.proposal"
_SOURCE_DEFAULTS: dict[str, dict[str, Any]] = {  # a worker takes all fields
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
_PLAIN = re.compile(r"[\w./@-]+(:[\w./@-]+)?")  # a place that needs no quotes in YAML
_MANIFEST_HEADER_LINES = 2
ENGINES = "[{backend: onnxruntime, name: ort-cpu}]"
OWN_QUANTIZERS = "quantize: {tool: source}"  # a line of manifests
_INT8_ENGINES = "[{backend: onnxruntime, name: ort-int8, precision: int8}]"
_DYNAMO = "export: {exporter: dynamo, opset: 18}  # tracing would fix the sizes of a saved program"
_TRIALS_LIMIT_S = 900.0  # nothing is lost: the first build restores what was tried


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys new``."""
    add_names(parser, "MODEL --from SOURCE | FOLDER")
    parser.epilog = (
        "The model is run at several sizes; its inputs, outputs and dynamic axes are written to\n"
        "configs/models/MODEL.yaml, and the first export that leads to a verified engine, unless\n"
        "BUILDSYS_TRIALS=0. --input describes an input of unknown shape; a word is a dynamic\n"
        "dimension, LOW..HIGH limits the values: --input image=batch,3,224,224 or\n"
        "--input ids=batch,16:int64:0..99\n"
        "A FOLDER: all its ONNX files, named by their paths; existing manifests are kept"
    )
    parser.add_argument("--from", dest="source", default="", help=f"the model: {SOURCES}")
    add_source_options(parser)


def run(options: Namespace) -> int:
    """Write the manifest, unless there is one of this name."""
    project = empty_project(options.root)
    if len(options.names) == 1 and not options.source and typed_path(options.names[0]).is_dir():
        return _describe_folder(project, options.names[0])
    if len(options.names) != 1 or not options.source:
        hint = f"SOURCE is {SOURCES}"
        raise UsageError("new takes one name and --from SOURCE, or a folder", hint)
    model = options.names[0]
    if not _NAME.fullmatch(model):
        hint = "use letters, digits and _ . + -, beginning with a letter or digit"
        raise UsageError(f"{model!r} is not the name of a model", hint)
    file = _manifest_file(project, model)
    if file.exists():
        problem = f"{os.path.relpath(file)} exists already"
        raise UsageError(problem, "choose another name, or remove it")
    source, inputs = read_source(options.root, options.source, options)
    notes = write_manifest(project, model, source, inputs)
    print_lines([f"wrote {os.path.relpath(file)}", *notes, f"next: buildsys build {model}"])
    return 0


def _manifest_file(project: Project, model: str) -> Path:
    return project.configs / "models" / f"{model}.yaml"


def read_source(root: Path, text: str, options: Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe a source and its inputs. Raises: UsageError: a missing file, or a wrong option."""
    source = _source(root, text)
    return source | _settings(source, options), dict(map(_input, options.input))


def _settings(source: Mapping[str, Any], options: Namespace) -> dict[str, Any]:
    """List further fields of the source. Raises: UsageError: it does not have them."""
    import yaml  # only here

    settings: dict[str, Any] = {
        name: True for name in ("cache", "trusted") if getattr(options, name)
    }
    if options.kwargs:
        with suppress(yaml.YAMLError):
            settings["kwargs"] = yaml.safe_load(options.kwargs)
        if not isinstance(settings.get("kwargs"), dict):
            problem = f"--kwargs {options.kwargs} is not a map"
            raise UsageError(problem, "write for example '{width: 64}'")
    if options.weights:
        settings["weights"] = _weights(options.root, options.weights)
    has_weights = "checkpoint" in source
    taken = {"weights"} if has_weights else set()
    if unknown := [name for name in settings if name not in _defaults(source).keys() - taken]:
        raise UsageError(f"--{unknown[0]} is not for models of this kind", "remove it")
    if "exported_program" in source and not options.trusted:
        problem = f"torch can run code of {source['exported_program']} when it loads the file"
        raise UsageError(problem, "if you trust its author, add --trusted")
    return settings


def _weights(root: Path, text: str) -> dict[str, Any]:
    """Make a section `weights`. Raises: UsageError: it is not valid, or its file is missing."""
    import yaml  # only here

    from buildsys.manifest.schema.source import WeightsFile  # slow to import

    try:
        fields = yaml.safe_load(text) if text.startswith("{") else {"file": text}
        section = WeightsFile.model_validate(fields).model_dump()
    except (ValueError, yaml.YAMLError):
        hint = "write FILE, hf://OWNER/NAME@COMMIT/FILE or '{file: FILE, key: model_ema}'"
        raise UsageError(f"--weights {text} is not a section `weights`", hint) from None
    if "://" not in (file := section["file"]):
        if not typed_path(file).is_file():
            hint = folder_hint(typed_path(file)) or "the path is relative to your folder"
            raise UsageError(f"there is no file {file}", hint)
        section["file"] = project_name(root, file)
    return section


def _defaults(source: Mapping[str, Any]) -> dict[str, Any]:
    return next(fields for kind, fields in _SOURCE_DEFAULTS.items() if kind in source)


def _source(root: Path, text: str) -> dict[str, str]:
    """Describe the manifest's ``source``; the worker completes that of a transformers model.

    Raises: UsageError: an unknown kind, or a missing file.
    """
    kind, _, name = text.partition(":")
    if kind in ("torchvision", "timm") and name:
        return {kind: name}
    if kind == "hf" and name:
        return _transformers_source(root, name)
    path, attribute = split_reference(text)
    if attribute and not path.endswith(".py"):
        return {"python": text}
    if not attribute and not text.endswith((".onnx", ".pt2")):
        raise _not_a_source(text)
    if not typed_path(path).is_file():
        raise UsageError(f"there is no file {path}", "the path is relative to your folder")
    place = project_name(root, path)
    if attribute:
        return {"python": f"{place}:{attribute}"}
    return {"onnx" if text.endswith(".onnx") else "exported_program": place}


def _not_a_source(text: str) -> UsageError:
    path = typed_path(text)
    if path.is_file() and path.suffix in WEIGHTS_SUFFIXES:
        kind, remedy = describe_file(path)
        hint = f"name the network, too: FILE.py:CALLABLE --weights {text}"
        hint = f"{remedy}, and {hint}" if remedy else hint
        return UsageError(f"{text} {kind or 'has weights, but no network'}", hint)
    kind = " is a folder," if path.is_dir() else " is"
    return UsageError(f"{text}{kind} not a source", f"write {SOURCES}")


def _transformers_source(root: Path, text: str) -> dict[str, str]:
    """Describe the source of ``[CLASS:]PLACE``, with an empty class if it is not given.

    Raises: UsageError: the place is neither of the project nor of the Hub.
    """
    name, colon, place = text.partition(":")
    if not colon or place.startswith("//"):
        name, place = "", text
    field = "config" if place.endswith(".json") else "checkpoint"
    path = typed_path(place)
    if path.is_file() if field == "config" else path.is_dir():
        return {"transformers": name, field: project_name(root, place)}
    if path.parent.exists() or "/" not in place:
        hint = "write hf:FOLDER, hf:FOLDER/config.json or, of the Hub, hf:OWNER/NAME[@REVISION]"
        raise UsageError(f"there is no checkpoint {place}", hint)
    return {"transformers": name, field: f"hf://{place.removeprefix('hf://')}"}


def _input(text: str) -> tuple[str, dict[str, Any]]:
    """Parse name, shape, dtype and values of ``--input``. Raises: UsageError."""
    from buildsys.manifest.schema.base import DType  # slow to import

    match = _INPUT.fullmatch(text)
    sizes = [size.strip() for size in match["shape"].split(",")] if match and match["shape"] else []
    if match is None or not all(size.isdecimal() or size.isidentifier() for size in sizes):
        hint = "write for example --input image=batch,3,224,224 or --input ids=batch,16:int64:0..99"
        raise UsageError(f"--input {text} is not NAME=SHAPE[:DTYPE][:LOW..HIGH]", hint)
    shape = [int(size) if size.isdecimal() else size for size in sizes]
    dtype, dtypes = match["dtype"] or "float32", get_args(DType)
    if dtype not in dtypes:
        raise unknown_name("dtype", dtype, dtypes, f"known: {', '.join(dtypes)}")
    spec = {"shape": shape, "dtype": dtype}
    if match["low"]:
        low, high = float(match["low"]), float(match["high"])
        is_integer = "int" in dtype
        kind, end = ("integers", high + 1) if is_integer else ("uniform", high)
        if low > high or (is_integer and "." in match["low"] + match["high"]):
            hint = "write whole numbers for integers, the smaller one first"
            raise UsageError(f"--input {text} has no valid range", hint)
        spec["data"] = {"random": kind, "low": low, "high": end}
    return match["name"], spec


def _describe_folder(project: Project, name: str) -> int:
    """Write a manifest for each ONNX file of a folder; return 2 if one fails."""
    place, code = project_name(project.root, name), 0
    folder = Path(os.path.normpath(project.root / place))
    files = [file for file in sorted(folder.rglob("*.onnx")) if file.is_file()]
    networks = [file for file in files if {project.build, project.state}.isdisjoint(file.parents)]
    if not networks:
        raise UsageError(f"there are no ONNX files in {name}", "name a folder with ONNX files")
    for network in networks:
        part = str(network.relative_to(folder).with_suffix(""))
        model = re.sub(r"[^A-Za-z0-9_.+-]+", "-", part).lstrip("_.+-")[:100] or "model"
        if (file := _manifest_file(project, model)).exists():
            print_lines([f"kept {os.path.relpath(file)}"])
            continue
        source = {"onnx": Path(place, network.relative_to(folder)).as_posix()}
        try:
            notes = write_manifest(project, model, source, {})
            print_lines([f"wrote {os.path.relpath(file)}", *notes])
        except StageError as error:
            code = error.exit_code
            print_lines([f"failed {source['onnx']}: {error}"])
    return code


def write_manifest(
    project: Project, model: str, source: Mapping[str, Any], inputs: Mapping[str, Any]
) -> list[str]:
    """Write a manifest from trial runs, and return notes on it.

    It is removed again unless it is valid and complete.

    Raises: StageError: the model cannot be run, or no valid manifest describes it.
    """
    file, proposal = _manifest_file(project, model), try_model(project, model, source, inputs)
    replace_file(file, "\n".join(_lines(model, proposal)).encode())
    errors = check_manifests(project, [file])
    if not (of_file := [error for error in errors if error.file.name == file.name]):
        if "onnx" not in proposal["source"]:
            try:
                _choose_export(project, model, proposal)
            except BaseException:  # also Ctrl-C
                file.unlink(missing_ok=True)
                raise
        lines = file.read_text(encoding="utf-8").splitlines()[_MANIFEST_HEADER_LINES:]
        return [f"  {line}" for line in lines if line.startswith(("export:", "# "))]
    file.unlink()
    hint = "write one by hand, with `call` or a callable that returns a simpler network"
    problem = f"{'.'.join(map(str, of_file[0].key))}: {of_file[0].problem}"
    raise StageError(f"no manifest describes {model}: {problem}", of_file[0].hint or hint)


def try_model(
    project: Project, model: str, source: Mapping[str, Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Run the model in a worker, if it fails with arguments that its checkpoint has.

    Raises: StageError: it cannot be loaded or run.
    """
    import yaml  # only here

    fields = {**_defaults(source), **source, "seed": 0}
    options = {"source": fields, "inputs": inputs, "outputs": {}}
    try:
        figures = run_stage(project, _STAGE, f"new:{model}", options)
    except StageError as error:
        proposed = [yaml.safe_load(change).get("source", {}) for change in error.changes]
        saved = next((one for one in proposed if "kwargs" in one), None)
        if saved is None:
            raise
        return try_model(project, model, {**source, **saved}, inputs)
    completed = figures["source"]
    names = ["onnx" if name == "python" and "onnx" in completed else name for name in source]
    return {**figures, "source": {name: completed[name] for name in names}}


def _choose_export(project: Project, model: str, proposal: Mapping[str, Any]) -> None:
    """Write the first export that leads to a verified engine, with fixed sizes if none does."""
    from buildsys.cli.trials import describe_ends  # slow to import

    file, text = _manifest_file(project, model), ""
    for variant in (proposal, *_with_fixed_sizes(proposal)):
        replace_file(file, "\n".join(_lines(model, variant)).encode())
        changes = NEW_EXPORTS if variant is proposal else NEW_EXPORTS[:2]
        ended = _try_exports(project, model, changes)
        if True in ended.values():
            proposal, text = variant, _with_comment(ended)
            break
        text = text or (f"# {describe_ends(ended)}" if ended else "")
        if {*ended.values()} != {False}:  # nothing is known of exports that were not tried
            break
    replace_file(file, "\n".join(_lines(model, proposal, text)).encode())


def _with_comment(ended: Mapping[str, bool | str]) -> str:
    """Write the last export, which verifies, with a comment on those before it."""
    *others, (export, _) = ended.items()
    notes = [
        f"; {other} does not" if end is False else f"; {other} was not tried ({end})"
        for other, end in others
    ]
    return f"{export}  # it leads to a verified engine{''.join(notes)}"


def _with_fixed_sizes(proposal: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the interface with fixed sizes, at first of all axes but the batch."""
    dims = proposal["dims"]
    batches = {size for port in proposal["inputs"].values() for size in port["shape"][:1]}
    for names in dict.fromkeys((tuple(name for name in dims if name not in batches), tuple(dims))):
        sizes = {name: dims[name]["opt"] for name in names}
        ports = {
            kind: {
                name: {**port, "shape": [sizes.get(size, size) for size in port["shape"]]}
                for name, port in proposal[kind].items()
            }
            for kind in ("inputs", "outputs")
        }
        rest = {name: span for name, span in dims.items() if name not in sizes}
        if sizes:
            yield {**proposal, **ports, "dims": rest, "fixed_by_export": sizes}


def _try_exports(project: Project, model: str, changes: Sequence[str]) -> Ends:
    """Try exports until one leads to a verified engine, none without trials."""
    from buildsys.cli.trials import find_verified  # slow to import

    session = BuildSession(load_models(project, remember=False))
    if not session.has_trials:
        return {}
    session.on_event = lambda _, event: show_progress(event)
    try:
        return find_verified(session, model, changes, _TRIALS_LIMIT_S)
    finally:
        show_progress({})
        session.close()


def _lines(model: str, proposal: Mapping[str, Any], export: str = "") -> Iterator[str]:
    """Yield the lines of a manifest."""
    source = proposal["source"]
    yield "# yaml-language-server: $schema=../schema/model.schema.json"
    yield "# Proposed from trial runs. Names of outputs and dimensions are free; check the ranges."
    yield f"model: {flow(model)}"
    texts = {
        field: value if isinstance(value, str) and _PLAIN.fullmatch(value) else flow(value)
        for field, value in source.items()
    }
    is_random = not {"checkpoint", "onnx", "exported_program", "weights"} & source.keys()
    unless = ", unless the callable sets them" if "python" in source else ""
    note = f"  # random weights{unless}: see `weights`" if is_random else ""
    fields = ", ".join(f"{field}: {text}" for field, text in texts.items())
    yield f"source: {{{fields}}}{note}"
    if "exported_program" in source and not export.startswith("export"):
        yield _DYNAMO
    if export:
        yield export
    yield "inputs:" + ("  # guessed, and accepted by the network" if proposal["guessed"] else "")
    for name, tensor in proposal["inputs"].items():
        yield f"  {flow(name)}: {flow(tensor)}"
    if proposal["call"]:
        yield f"call: {flow({key: value for key, value in proposal['call'].items() if value})}"
    yield "outputs:"
    for name, tensor in proposal["outputs"].items():
        is_unknown = None in (tensor["shape"] or ())
        note = "  # null: a size that follows no dimension" if is_unknown else ""
        yield f"  {flow(name)}: {flow(tensor)}{note}"
    if proposal["dims"]:
        yield "dims:  # dynamic axes; it ran at both ends"
        yield from (f"  {flow(name)}: {flow(span)}" for name, span in proposal["dims"].items())
    for name, size in proposal["fixed"].items():
        yield f"# {name} is fixed to {size}: no other size ran"
    for name, size in proposal.get("fixed_by_export", {}).items():
        yield f"# {name} is fixed to {size}: no export of other sizes led to a verified engine"
    if has_quantizers := proposal.get("has_quantizers"):
        yield f"{OWN_QUANTIZERS}  # engines in int8 take its own quantizers"
    yield f"engines: {_INT8_ENGINES if has_quantizers else ENGINES}"
    yield ""


def flow(value: Any) -> str:
    """Format a value as YAML on one line, a mapping without absent fields."""
    import yaml  # only here

    if isinstance(value, Mapping):
        value = {field: entry for field, entry in value.items() if entry is not None}
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return text.removesuffix("\n").removesuffix("\n...")
