"""buildsys new: propose the manifest of a model from trial runs."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, get_args

from buildsys.cli.command import add_names, print_lines, unknown_name
from buildsys.cli.manifest_proposal import (
    SOURCE_DEFAULTS,
    shown_file,
    try_model,
    write_manifest,
)
from buildsys.cli.project_root import typed_path
from buildsys.cli.worker_pool import open_pool
from buildsys.errors import StageError, UsageError
from buildsys.manifest.yaml_reader import MAX_BYTES
from buildsys.project.load import empty_project
from buildsys.system.files import read_limited

_LONGEST_STEM = 90  # characters of a name from a file, without a number
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
_INPUT = re.compile(r"(?P<name>[^=]+)=(?P<shape>[^:]*)(:(?P<dtype>\w+))?")
_SOURCES = (
    "torchvision:NAME, timm:NAME, hf:FOLDER, hf:OWNER/NAME, FILE.py:CALLABLE, FILE.onnx or FILE.pt2"
)
_HUB_PLACE = re.compile(r"(hf://)?[\w.-]+/[\w.-]+(@[\w./-]+?)?(/config\.json)?")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys new``."""
    add_names(parser, "MODEL --from SOURCE | FOLDER")
    parser.epilog = (
        "SOURCE is torchvision:NAME, timm:NAME, FILE.py:CALLABLE, FILE.onnx, FILE.pt2 (saved by\n"
        "torch.export) or, for transformers, hf:FOLDER (a checkpoint), hf:FOLDER/config.json\n"
        "(random weights) or hf:OWNER/NAME[@REVISION] (of the Hub, pinned to its commit). A class\n"
        "or task other than that of the checkpoint goes first: hf:text-classification:FOLDER.\n"
        "The model is run at several sizes; its inputs, outputs and dynamic axes are written to\n"
        "configs/models/MODEL.yaml. --input describes an input of unknown shape; a word is a\n"
        "dynamic dimension: --input image=batch,3,224,224 or --input ids=batch,16:int64\n"
        "--kwargs passes arguments to the source, --kwargs '{width: 64}'. With --cache, a decoder\n"
        "of transformers takes past key values as inputs and returns them. A FOLDER: all its ONNX\n"
        "files, named like them; existing manifests are kept, and 2 is returned if a file fails"
    )
    parser.add_argument("--from", dest="source", default="", help=f"the model: {_SOURCES}")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        help="an input, NAME=SHAPE[:DTYPE]; may be repeated",
    )
    parser.add_argument("--kwargs", default="", help="arguments of the source, a map in YAML")
    parser.add_argument(
        "--cache",
        action="store_true",
        help="past key values as inputs and outputs",
    )
    parser.add_argument(
        "--trusted",
        action="store_true",
        help="load FILE.pt2, though torch can run code of it",
    )


def run(options: Namespace) -> int:
    """Write the manifest, unless there is one of this name."""
    if len(options.names) == 1 and not options.source and typed_path(options.names[0]).is_dir():
        return _describe_folder(options.root, options.names[0])
    if len(options.names) != 1 or not options.source:
        hint = f"SOURCE is {_SOURCES}"
        raise UsageError("new takes one name and --from SOURCE, or a folder", hint)
    model = options.names[0]
    if not _NAME.fullmatch(model):
        hint = "use letters, digits and _ . + -, beginning with a letter or digit"
        raise UsageError(f"{model!r} is not the name of a model", hint)
    project = empty_project(options.root)
    file = project.configs / "models" / f"{model}.yaml"
    if os.path.lexists(file):
        raise UsageError(f"{shown_file(file)} exists already", "choose another name, or remove it")
    source = _source(options.root, options.source)
    source = {**source, **_settings(source, options)}
    inputs = dict(map(_input, options.input))
    with open_pool(project.state) as pool:
        proposal = try_model(pool, project, model, source, inputs)
    write_manifest(project, file, model, proposal)
    print_lines([f"wrote {shown_file(file)}", f"next: buildsys build {model}"])
    return 0


def _settings(source: Mapping[str, Any], options: Namespace) -> dict[str, Any]:
    """List further fields of the source.

    Raises: UsageError: it does not have them.
    """
    import yaml  # only here

    defaults = next(fields for kind, fields in SOURCE_DEFAULTS.items() if kind in source)
    settings: dict[str, Any] = {
        name: True for name in ("cache", "trusted") if getattr(options, name)
    }
    if text := options.kwargs:
        try:
            settings["kwargs"] = yaml.safe_load(text)
        except yaml.YAMLError:
            settings["kwargs"] = None
        if not isinstance(settings["kwargs"], dict):
            raise UsageError(f"--kwargs {text} is not a map", "write for example '{width: 64}'")
    if unknown := [field for field in settings if field not in defaults]:
        which = {"cache": "models of transformers", "trusted": ".pt2 files"}
        users = which.get(unknown[0], "models in Python")
        raise UsageError(f"--{unknown[0]} is for {users} only", "remove it")
    if "exported_program" in source and not options.trusted:
        problem = f"torch can run code of {source['exported_program']} when it loads the file"
        raise UsageError(problem, "if you trust its author, add --trusted")
    return settings


def _source(root: Path, text: str) -> dict[str, str]:
    """Describe the manifest's ``source``; the worker completes that of a transformers model.

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
    """Describe the source of ``[CLASS:]PLACE``, with an empty class if it is not given.

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
    dtype, dtypes = match["dtype"] or "float32", get_args(DType)
    if dtype not in dtypes:
        raise unknown_name("dtype", dtype, dtypes, f"known: {', '.join(dtypes)}")
    return match["name"], {"shape": shape, "dtype": dtype}


def _describe_folder(root: Path, name: str) -> int:
    """Write a manifest for each ONNX file of a folder; return 2 if one fails."""
    folder, project = inside_project(root, name), empty_project(root)
    networks = _networks(folder, (project.build, project.state))
    if not networks:
        raise UsageError(f"there are no ONNX files in {name}", "name a folder with ONNX files")
    code = 0
    with open_pool(project.state) as pool:
        for network, model in zip(networks, _model_names(networks, folder), strict=True):
            file = project.configs / "models" / f"{model}.yaml"
            source = {"onnx": network.relative_to(root).as_posix()}
            if os.path.lexists(file):
                print_lines([f"kept {shown_file(file)}{_other_source(file, source['onnx'])}"])
                continue
            try:
                if not inside_project(root, str(network)).is_file():
                    raise StageError("it is not a file", "remove it")
                write_manifest(project, file, model, try_model(pool, project, model, source, {}))
                print_lines([f"wrote {shown_file(file)}"])
            except (StageError, UsageError) as error:
                code = StageError.exit_code
                print_lines([f"failed {source['onnx']}: {error}"])
    return code


def _networks(folder: Path, left_out: Collection[Path]) -> list[Path]:
    """Return a folder's ONNX files, without builds and hidden folders."""
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if name[0] != "." and Path(place, name) not in left_out
        ]
        files += [Path(place, name) for name in names if name.endswith(".onnx")]
    return sorted(files)


def _model_names(networks: Sequence[Path], folder: Path) -> list[str]:
    """List unique names: of the file, or of folder and file."""
    stems = Counter(network.stem for network in networks)
    taken: list[str] = []
    for network in networks:
        part = network.stem
        if stems[part] > 1:
            part = str(network.relative_to(folder).with_suffix(""))
        name = re.sub(r"[^A-Za-z0-9_.+-]+", "-", part, flags=re.ASCII).lstrip("_.+-") or "model"
        name = name[:_LONGEST_STEM]
        number = next(n for n in count(1) if (name if n == 1 else f"{name}-{n}") not in taken)
        taken.append(name if number == 1 else f"{name}-{number}")
    return taken


def _other_source(file: Path, network: str) -> str:
    """Return a note if a manifest does not name an ONNX file."""
    try:
        is_named = network in read_limited(file, MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        is_named = False
    return "" if is_named else f", which does not name {network}"
