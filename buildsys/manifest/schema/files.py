"""Types of fields that name files of the project, and their check during validation.

The context of a validation is the workspace with the files; without it only forms are checked.
"""

import os
import symtable
import warnings
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from buildsys.manifest.problem import expected, suggest, suggest_file
from buildsys.manifest.workspace import Workspace
from buildsys.system.files import Stamp, stamp
from buildsys.system.user_modules import MODULE, code_roots, locate, split_reference
from buildsys.system.weight_names import (
    HUB,
    file_name,
    folder_hint,
    is_url,
    local_path,
    parse_hub_name,
)

_RELATIVE = "paths are relative to the project"


def refusal(problem: str, hint: str = "") -> PydanticCustomError:
    """Make the error of a validator, with the next step."""
    words = {"problem": problem, "hint": hint}
    return PydanticCustomError("refusal", "{problem}", words)


def check_place(name: str, info: ValidationInfo, *, is_folder: bool = False) -> str:
    """Check for a file, callable or folder. Raises: as `find_place`."""
    if isinstance(info.context, Workspace):
        find_place(info.context, name, is_folder=is_folder)
    return name


def find_place(workspace: Workspace, name: str, *, is_folder: bool) -> None:
    """Find a file, callable or folder.

    Raises: PydanticCustomError: it does not exist.
    """
    path, callable_name = split_reference(name)
    if callable_name and not path.endswith(".py"):
        path = _module_file(workspace, path)
    place = workspace.locate(path)
    if isinstance(place, str):
        raise refusal(place)
    if not workspace.exists(place):
        kind = "folder" if is_folder else "file"
        hint = suggest_file(place) or ("" if Path(path).is_absolute() else _RELATIVE)
        raise refusal(f"{kind} {path} does not exist", hint)
    if not (place.is_dir() if is_folder else place.is_file()):
        raise refusal(f"{path} is not a {'folder' if is_folder else 'file'}", folder_hint(place))
    if callable_name:
        names, problem = _names_in(path, place, stamp(place))
        first = callable_name.partition(".")[0]
        if problem:
            raise refusal(problem)
        if {"*", "__getattr__", first}.isdisjoint(names):  # the first two may provide any name
            hint = suggest(first, names, what="defined")
            raise refusal(f"{path} does not define {first}", hint)


def _module_file(workspace: Workspace, module: str) -> str:
    """Find the file of a module. Raises: PydanticCustomError: there is none."""
    root = str(workspace.root)
    place = locate(f"{module}{MODULE}", root, workspace.code)
    if place is not None:
        return os.path.relpath(place.file, root) if place.root else place.file
    package, _, name = module.rpartition(".")
    if above := package and locate(f"{package}{MODULE}", root, workspace.code):
        hint = suggest_file(Path(above.file).with_name(f"{name}.py"))
        raise refusal(f"there is no module {module}", hint or f"{package} is {above.file}")
    folders = ", ".join(os.path.relpath(r, root) for r in code_roots(root, workspace.code))
    hint = f"it is neither installed nor in {folders}; name its file, or its folder in code"
    raise refusal(f"there is no module {module}", hint)


@lru_cache(maxsize=1000)  # many manifests may name callables of one file
def _names_in(name: str, file: Path, stamp: Stamp) -> tuple[tuple[str, ...], str]:  # noqa: ARG001
    """List a Python file's global names (``*``: star import); return them and any problem."""
    try:
        source = file.read_bytes()  # not text: a file may declare its encoding
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in user code are not our business
            symbols = symtable.symtable(source, name, "exec").get_symbols()  # type: ignore[arg-type]
    except SyntaxError as error:
        return (), f"{name}:{error.lineno or 1}: {error.msg}"
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return (), f"cannot read {name}: {error}"
    names = sorted(s.get_name() for s in symbols if s.is_assigned() or s.is_imported())
    return (*names, *("*" * (b"import *" in source))), ""


def _check_pattern(pattern: str, info: ValidationInfo) -> str:
    if isinstance(info.context, Workspace) and isinstance(info.context.locate(pattern), str):
        raise refusal(f"{info.context.locate(pattern)}")
    return pattern


def check_listed(name: str, info: ValidationInfo) -> str:
    """Check for a file, or a folder written with a slash."""
    return check_place(name, info, is_folder=name.endswith("/"))


def _check_weights(name: str, info: ValidationInfo, *, is_folder: bool = False) -> str:
    try:
        name = local_path(name)
    except ValueError:
        raise refusal(expected("file:///FOLDER/FILE", name)) from None
    if is_url(name):
        raise refusal(f"{name} is a URL, which only source.weights.file may be", "download it")
    if not name.startswith(HUB):
        return check_place(name, info, is_folder=is_folder)
    parts = parse_hub_name(name)
    if parts is None or bool(parts.path) is is_folder:
        form = f"{HUB}OWNER/NAME@COMMIT" + ("" if is_folder else "/FILE")
        hint = "a commit has 40 hexadecimal digits; a branch or tag may move"
        raise refusal(expected(form, name), hint)
    return name


def _check_url(name: str, info: ValidationInfo) -> str:
    if name.startswith("file:") or not is_url(name):
        return _check_weights(name, info)
    if not file_name(name):
        raise refusal(expected("SCHEME://PLACE/FILE", name))
    return name


NAMES_FILE = AfterValidator(check_place)
ProjectFile = Annotated[str, NAMES_FILE]  # or a callable
FilePattern = Annotated[str, AfterValidator(_check_pattern)]
ProjectFolder = Annotated[str, AfterValidator(partial(check_place, is_folder=True))]
WeightsName = Annotated[str, AfterValidator(_check_weights)]  # or hf://…
WeightsUrl = Annotated[str, AfterValidator(_check_url)]  # or s3://…, https://…
CheckpointName = Annotated[str, AfterValidator(partial(_check_weights, is_folder=True))]
