"""Sources of models, such as FILE.onnx, in place of names of targets."""

from argparse import ArgumentParser, Namespace, _ActionsContainer
from pathlib import Path

from buildsys.cli.command import find_project, typed_path
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import STAGE_DOCS
from buildsys.errors import UsageError
from buildsys.system.user_modules import locate, split_reference

SOURCES = (
    "torchvision:NAME, timm:NAME, hf:FOLDER, hf:OWNER/NAME, FILE.py:CALLABLE,"
    " package.module:CALLABLE, FILE.onnx or FILE.pt2"
)
LIBRARIES = ("torchvision", "timm", "hf")
SUFFIXES = (".py", ".onnx", ".pt2", ".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_ONLY_SOURCES = ("engine", "calibration", "save", "weights", "kwargs", "cache", "trusted", "input")
_ONLY_TARGETS = ("since", "on", "fetch", "single", "tag", "owner")


def add_source_arguments(parser: ArgumentParser) -> None:
    """Declare the options for a source in place of a target."""
    group = parser.add_argument_group("options for a SOURCE")
    group.add_argument(
        "--engine", action="append", default=[], metavar="NAME",
        help="an engine such as ort-int8, ov-fp32 or trt-fp16; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--calibration", default="", metavar="DATA",
        help="data for int8: a folder of images, FILE.npz, FILE.py:CALLABLE or a map in YAML",
    )  # fmt: skip
    group.add_argument("--save", action="store_true", help="keep the manifest, in a project")
    add_source_options(group)


def add_source_options(parser: _ActionsContainer) -> None:
    """Declare the options about a source and its inputs."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        help="an input, NAME=SHAPE[:DTYPE][:LOW..HIGH]; may be repeated",
    )
    parser.add_argument("--kwargs", default="", help="arguments of the source, a map in YAML")
    parser.add_argument(
        "--weights",
        default="",
        metavar="FILE",
        help="a checkpoint; its key is found, or '{file: FILE, key: model_ema}'",
    )
    parser.add_argument(
        "--cache", action="store_true", help="past key values as inputs and outputs"
    )
    parser.add_argument(
        "--trusted", action="store_true", help="load FILE.pt2, though torch can run code of it"
    )


def is_source(root: Path, name: str) -> bool:
    """Check whether a name that is no target may be a source."""
    kind, _, place = name.partition(":")
    path, attribute = split_reference(name)
    is_python = attribute and (path.endswith(".py") or locate(path, str(root)) is not None)
    is_file = Path(name).suffix in SUFFIXES
    if not find_project(root):  # a source that is missing, or a folder, is refused later
        is_python = attribute and STAGE_DOCS.keys().isdisjoint((path, attribute))
        is_file |= typed_path(name).is_dir()
    return bool((kind in LIBRARIES and place) or is_python or is_file)


def find_source(options: Namespace) -> str:
    """Return the source to build, "" for targets. Raises: UsageError: options do not fit."""
    sources = [name for name in options.names if is_source(options.root, name)]
    if sources and find_project(options.root):
        session = BuildSession.load(options.root)
        sources = [name for name in sources if not session.targets_of(name)]
    wrong = _ONLY_TARGETS if sources else _ONLY_SOURCES
    for name in (name for name in wrong if getattr(options, name)):
        hint = "leave it out" if sources else "it is for a source; a manifest says that of a model"
        if name == "input":
            hint = "`buildsys run` runs an engine"
        raise UsageError(f"build takes no --{name}{' with a source' if sources else ''}", hint)
    if sources and len(options.names) > 1:
        raise UsageError(f"{sources[0]} is a source, not a target", "build it alone")
    return "".join(sources)
