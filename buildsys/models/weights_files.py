"""Files of weights, of the project or the Hugging Face Hub: state dicts of torch, safetensors.

Neither format executes code. Files of the Hub are at a commit, in its own cache.
"""

import fcntl
import hashlib
import os
import pickle
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.models.state_dicts import (
    COUNTER,
    find_state,
    shortened,
    stand_ins,
    state_maps,
    tied_names,
)
from buildsys.models.user_code import first_line, import_library, project_file
from buildsys.system.file_kinds import describe_file
from buildsys.system.files import STATE_FOLDER, sha256_of
from buildsys.system.weight_names import (
    HUB,
    file_name,
    is_index,
    is_url,
    parse_hub_name,
    read_index,
)

SAFETENSORS = ".safetensors"
_SHA256 = re.compile(r"[0-9a-f]{64}")
State = Mapping[str, Any]


class LoadedWeights(NamedTuple):
    """The origin of a network's weights."""

    origin: str
    key: str = ""  # of the state dict
    prefix: str = ""
    missing: Sequence[str] = ()  # not in the file, and as the network was created


def load_weights(
    module: nn.Module, weights: Mapping[str, Any], project: Path, network: str
) -> LoadedWeights:
    """Load a state dict of the manifest's section ``weights`` into ``module``.

    Raises: StageError: no such file, a different digest, or not a state dict of this network.
    """
    expected, title = module.state_dict(), str(weights["file"])
    place = find_state(read_weights(weights, project), module, weights, title)
    state, key, others = place.state, place.key, place.others
    strict = weights["strict"] or expected.keys().isdisjoint(state)
    counters = {name: value for name, value in expected.items() if name.endswith(COUNTER)}
    shared = {
        name: value
        for names in tied_names(expected)
        for value in [state[name] for name in names if name in state][:1]
        for name in names
    }
    state = {**counters, **shared, **state}
    missing, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    problems = [
        f"{text} {shortened(names)}"
        for text, names in (("it lacks", missing), ("the network has no", extra))
        if names and strict
    ] or [
        f"{name} is {_kind(state[name])} in the file and {_kind(expected[name])} in the network"
        for name in sorted((expected.keys() & state.keys()) - counters.keys())
        if _kind(state[name]) != _kind(expected[name])  # torch converts between kinds
    ]
    hint, changes = "", list[str]()
    if strict and problems and (missing or extra) and not expected.keys().isdisjoint(place.state):
        hint = "weights.strict: false leaves others out and keeps missing ones as created; "
        changes += ["source: {weights: {strict: false}}"] if not missing else []
    try:
        if not problems:
            module.load_state_dict(state, strict=strict)
    except RuntimeError as error:  # it lists all shapes, one a line
        problems = [line.strip().rstrip(". ") for line in str(error).splitlines()[1:]]
    if problems:
        more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
        raise StageError(
            f"the state dict in {title} does not fit {network}: {'; '.join(problems[:2])}{more}",
            f"{hint}name weights of this network, or build the one they are of",
            changes=changes,
        )
    others += len(extra)
    origin = f"from {title}" + (f", key {key}" if key else "")
    origin += f", without {others} other tensors" if others else ""
    return LoadedWeights(origin, place.path, place.prefix, missing)


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    if value.is_quantized or value.dtype == torch.bool:
        return str(value.dtype).removeprefix("torch.")
    return "complex" if value.is_complex() else "float" if value.is_floating_point() else "integer"


def read_weights(weights: Mapping[str, Any], project: Path) -> State:
    """Read the tensors of a file and its shards.

    Raises: StageError: no such file, a different digest, or not a state dict.
    """
    title, expected = str(weights["file"]), weights["sha256"]
    file, again = locate(title, project, expected), f"download or save all files of {title} again"
    shards: Mapping[str, set[str]] = {}
    if is_index(file.name):
        try:
            shards = read_index(file)
        except (OSError, ValueError) as error:
            raise StageError(f"{title} is not an index of shards: {error}", again) from error
    for name in shards:
        part = f"{title.removesuffix(file.name)}{name}"
        if not is_present(part, project, expected):
            raise StageError(f"{part}, a shard of {title}, does not exist", again)
    is_digested = expected or is_url(title)
    digest = sha256_of(file, *(file.parent / name for name in shards)) if is_digested else ""
    if digest != (expected or ""):
        whole, (kind, remedy) = f"{title} with its shards" if shards else title, describe_file(file)
        if is_url(title):
            settle(title, project, expected, digest)
        if kind:
            raise StageError(f"{title} {kind}", remedy)
        if not expected:
            problem = f"{title} may change: source.weights needs the sha256 of what is expected"
            raise StageError(problem, f"write weights: {{file: {title}, sha256: {digest}}}")
        raise StageError(
            f"{whole} has the sha256 {digest}, the manifest expects {expected}",
            "restore the expected file, or update the digest in the manifest",
        )
    if not shards:
        return _read(file, title)
    state: dict[str, torch.Tensor] = {}
    for name, tensors in shards.items():
        shard = dict(next(state_maps(_read(file.parent / name, name)))[1])
        if names := tensors ^ shard.keys():
            problem = f"the shard {name} differs from {title} in {shortened(sorted(names))}"
            raise StageError(problem, again)
        state |= shard
    return state


def _read(file: Path, title: str) -> State:
    if file.name.endswith(SAFETENSORS):
        return read_safetensors(file, title)
    hint = "save a plain state dict: torch.save(model.state_dict(), FILE)"
    try:
        with stand_ins(file):
            loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises any class
        kind, remedy = describe_file(file)
        if kind:
            raise StageError(f"{title} {kind}", remedy) from error
        # torch wraps the reason in advice to load without weights_only, which would execute code
        inner = error.__context__ if isinstance(error, pickle.UnpicklingError) else None
        reason = first_line(inner or error).partition(". Please ")[0].rstrip(".")
        problem = f"torch.load(weights_only=True) cannot read {title}: {reason:.200}"
        raise StageError(problem, hint) from error
    if isinstance(loaded, dict) and any(
        isinstance(value, torch.Tensor)
        for _, state in state_maps(loaded)
        for value in state.values()
    ):
        return loaded
    kind = type(loaded).__name__
    raise StageError(f"{title} holds an object of type {kind} without tensors", hint)


def read_safetensors(file: Path, title: str) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file, mapped into memory.

    Raises: StageError: it cannot be read, or the library is not installed.
    """
    safe_open = import_library("safetensors", Path.cwd()).safe_open
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except Exception as error:  # a damaged file raises any class
        kind, remedy = describe_file(file)
        if kind:
            raise StageError(f"{title} {kind}", remedy) from error
        reason = first_line(error).partition(", expected one of")[0]
        raise StageError(
            f"{title} is not a valid safetensors file: {reason}",
            "save it with safetensors.torch.save_model(model, FILE), or name it .pth",
        ) from error


def locate(name: str, project: Path, sha256: str | None = None) -> Path:
    """Locate the path of a project's file, or of a downloaded file.

    Raises: StageError: the Hub or the server does not have it, or cannot be reached.
    """
    if is_url(name):
        return download(name, project, sha256)
    if not name.startswith(HUB):
        return project_file(name, project)
    file = _download(name)
    if file is None:
        raise StageError(f"the Hub has no file {name}", "check the name and the commit")
    return file


def is_present(name: str, project: Path, sha256: str | None = None) -> bool:
    """Check for a file of the project or the Hub, which is downloaded.

    Raises: StageError: the Hub cannot be reached, or a server does not have it.
    """
    if is_url(name):
        return download(name, project, sha256).is_file()
    return _download(name) is not None if name.startswith(HUB) else (project / name).is_file()


def pinned(repository: str, revision: str, path: str) -> str:
    """Name a file at the commit of a branch or tag; the file is downloaded.

    Raises: StageError: the Hub does not have it, or cannot be reached.
    """
    title = f"{path} of {repository} at {revision}"
    file = _fetch(repository, path, revision, title)
    if file is None:
        raise StageError(f"the Hub has no {title}", "check the name and the revision")
    commit = file.parents[path.count("/")].name  # the cache has a folder per commit
    return f"{HUB}{repository}@{commit}/{path}"


def _download(name: str) -> Path | None:
    parts = parse_hub_name(name)
    if parts is None:
        raise StageError(f"{name} is not a file of the Hub", "write hf://OWNER/NAME@COMMIT/FILE")
    return _fetch(parts.repository, parts.path, parts.commit, name)


def _fetch(repository: str, path: str, revision: str, title: str) -> Path | None:
    """Download into the cache; None if the repository has no such file."""
    library = import_library("huggingface_hub", Path.cwd())
    errors = library.errors
    endpoint = os.environ.get("HF_ENDPOINT") or library.constants.ENDPOINT
    try:
        file = Path(library.hf_hub_download(repository, path, revision=revision, endpoint=endpoint))
    except Exception as error:  # also the HTTP library's
        is_local = isinstance(error, errors.LocalEntryNotFoundError)
        if isinstance(error, errors.EntryNotFoundError) and not is_local:
            return None
        reason = error.__cause__ or error
        raise StageError(
            f"{title} is not in the cache, and {endpoint} did not give it"
            f" ({type(reason).__name__}: {first_line(reason):.200})",
            "check the name; go online, `hf auth login` for a private repository, or run"
            " `hf download` elsewhere and copy its cache to here",
        ) from error
    digest = file.resolve().name  # large files are stored under their SHA-256
    if _SHA256.fullmatch(digest) and sha256_of(file) != digest:
        raise StageError(f"the cached file {file} of {title} is damaged", "delete it")
    return file


_TIMEOUT_S = 60
_CHUNK_BYTES = 1 << 20


def download(url: str, project: Path, sha256: str | None) -> Path:
    """Download a file, unless it is here. Raises: StageError: it cannot be downloaded."""
    folder = _folder(project, url, sha256)
    file, partial = folder / file_name(url), folder.with_suffix(".partial")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.is_file():
            return file
        try:
            with _open(url) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
        except StageError:
            raise
        except Exception as error:  # each protocol has its own
            problem = f"cannot download {url} ({type(error).__name__}: {first_line(error):.200})"
            hint = "check the address, the network and your access to it"
            if isinstance(error, ImportError):
                hint = "install what fsspec needs for it, such as s3fs or gcsfs"
            raise StageError(problem, hint, is_external=True) from error
        folder.mkdir(exist_ok=True)  # another process may have removed it
        return partial.rename(file)


def settle(url: str, project: Path, expected: str | None, sha256: str) -> None:
    """Keep files of an unexpected digest for a manifest that names it."""
    folder = _folder(project, url, sha256)
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # another process did it
        _folder(project, url, expected).rename(folder)


def _folder(project: Path, url: str, sha256: str | None) -> Path:
    name = sha256 or f"unknown-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    return project / STATE_FOLDER / "downloads" / name


def _open(url: str) -> Any:
    if urlsplit(url).scheme in ("http", "https"):
        return urlopen(url, timeout=_TIMEOUT_S)  # noqa: S310
    return import_library("fsspec", Path.cwd()).open(url, "rb")
