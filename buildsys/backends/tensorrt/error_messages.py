"""Why TensorRT gave up, in words that say what to do: read off what it logs, as it raises nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable

from buildsys.backends.interface import Options
from buildsys.backends.tensorrt.log import Messages
from buildsys.errors import StageError

_NO_TACTIC = re.compile(
    r"[Cc]ould not find any implementation for node (?P<node>.+?)(?: due to .*|\.?\)?\.?)$"
)
_TOO_LITTLE = re.compile(r"insufficient memory on requested size of (?P<size>\d+)")
_OUT_OF_MEMORY = re.compile(
    r"out ?of ?memory|could not be allocated|cudaErrorMemoryAllocation|insufficient memory on requested size",
    re.I,
)
_REQUESTED = re.compile(
    r"(?:requested (?:amount of GPU memory \(|size of |size was )|failed to allocate )(?P<size>\d+)",
    re.I,
)
_OTHER_VERSION = re.compile(
    r"not compatible with this version of TensorRT"
    r"(?:.*?expecting library version (?P<here>[\d.]+) got (?P<there>[\d.]+))?"
    r"|version tag does not match|Version tag does not match.*|stdVersionRead == kSERIALIZATION_VERSION"
    r"|(?:Stream|plan).*version.*(?:mismatch|not supported)",
    re.I | re.S,
)
_OTHER_GPU = re.compile(
    r"incompatible device(?:.*?expecting compute (?P<here>[\d.]+) got compute (?P<there>[\d.]+))?"
    r"|compiled for.*?SM.*?not supported|different (?:GPU|device)",
    re.I | re.S,
)
_DAMAGED = re.compile(
    r"magicTag|magic tag|Serialization assertion|deserializ|corrupt|header|not found in plan", re.I
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def build_failure(messages: Messages, options: Options, title: str) -> StageError:
    """Return why the builder gave up."""
    said = messages.sentence(f"{title} built no engine")
    found = next((match for text in messages.errors if (match := _NO_TACTIC.search(text))), None)
    needs = [
        int(match["size"]) for text in messages.warnings if (match := _TOO_LITTLE.search(text))
    ]
    if found and needs and options["workspace"] is not None:
        text = f"workspace: {shown_bytes(options['workspace'])} is too small for any tactic of {found['node']}"
        return StageError(
            f"{text}, which asks for {shown_bytes(min(needs))} or more",
            "give the engine more workspace",
        )
    if found and options["workspace"] is not None:
        text = f"no tactic of {found['node']} works within workspace: {shown_bytes(options['workspace'])}"
        return StageError(f"{text}: {said}", "give the engine more workspace, or leave it out")
    memory = _memory_problem([*messages.errors, *messages.warnings]) if messages.errors else ""
    if memory and any(_OUT_OF_MEMORY.search(text) for text in messages.errors):
        hint = (
            "stop what else uses the GPU, limit the engine's workspace, or build smaller profiles"
        )
        return StageError(f"{memory}: {said}", hint)
    return StageError(said)


def load_failure(file: str, messages: Messages, release: str) -> StageError:
    """Return why an engine cannot be loaded: another version, another GPU, damaged, or no memory."""
    said = messages.sentence("it gives no reason")
    rebuild = "build it again here"
    version = _OTHER_VERSION.search(said)
    if version:
        built_by = f" {version['there']}" if version["there"] else ""
        return StageError(
            f"{file} was built by another version of TensorRT{built_by}, and this is {release}",
            rebuild,
        )
    gpu = _OTHER_GPU.search(said)
    if gpu:
        other = f" of compute capability {gpu['there']}" if gpu["there"] else ""
        here = f" has {gpu['here']}" if gpu["here"] else " is another one"
        return StageError(f"{file} was built for a GPU{other}, and this one{here}", rebuild)
    memory = _memory_problem(messages.errors)
    if memory:
        return StageError(
            f"{file} cannot be loaded: {memory}: {said}", "stop what else uses the GPU"
        )
    if _DAMAGED.search(said):
        return StageError(f"{file} is no engine of {release}, or damaged: {said}", rebuild)
    return StageError(f"{file}: {release} cannot load the engine: {said}", rebuild)


def shown_bytes(size: int) -> str:
    """Return a size as people write it, such as ``1.5GiB``."""
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.4g}{_UNITS[unit]}"


def _memory_problem(texts: Iterable[str]) -> str:
    found = [text for text in texts if _OUT_OF_MEMORY.search(text)]
    if not found:
        return ""
    sizes = [int(match["size"]) for text in found if (match := _REQUESTED.search(text))]
    asked = f", {shown_bytes(max(sizes))} were asked for" if sizes else ""
    return f"the GPU is out of memory{asked}"
