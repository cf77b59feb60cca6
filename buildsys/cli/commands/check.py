"""buildsys check: more comparisons with the original model, or two builds byte by byte."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from buildsys.cli.command import add_json, add_names, natural_number, positive_integer
from buildsys.cli.reproducibility import compare_two_builds
from buildsys.cli.stress import compare_more_inputs
from buildsys.errors import UsageError


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys check``."""
    add_names(parser, "MODEL | --reproducible MODEL [STAGE ...]")
    parser.add_argument(
        "-n", "--count", type=positive_integer, default=50, help="number of sizes and inputs"
    )
    parser.add_argument(
        "--seed", type=natural_number, help="first seed; default: a new one in each run"
    )
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="build the model twice in clean folders and compare the artifacts byte by byte",
    )
    parser.add_argument(
        "--keep", action="store_true", help="--reproducible: keep both folders, print their paths"
    )
    add_json(parser)


def run(options: Namespace) -> int:
    """Return 1 for a difference, or if nothing was compared."""
    if options.reproducible:
        return compare_two_builds(options)
    if options.keep:
        raise UsageError("--keep keeps the folders of two builds", "add --reproducible")
    return compare_more_inputs(options)
