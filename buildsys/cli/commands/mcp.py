"""buildsys mcp: a server for assistants, over the Model Context Protocol on stdin and stdout."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from buildsys.cli.command import find_project
from buildsys.errors import UsageError


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys mcp``."""
    parser.epilog = (
        "Tools: plan, explain, best, compare and history of the projects below the current folder"
    )
    parser.add_argument(
        "--allow-build", action="store_true", help="also offer build, which runs project code"
    )


def needs_project(_: Namespace) -> bool:
    """Serve the projects below any folder."""
    return False


def run(options: Namespace) -> int:
    """Serve until the end of the input. Raises: UsageError: the package mcp is missing."""
    try:
        from buildsys.mcp.server import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "anyio"):
            raise
        raise UsageError("mcp is not installed", "pip install 'buildsys[mcp]'") from None
    make_server(Path.cwd(), find_project, allow_build=options.allow_build).run()
    return 0
