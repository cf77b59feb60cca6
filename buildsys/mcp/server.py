"""A server of the Model Context Protocol: commands with ``--json`` as tools.

Each call is a process of its own in a project below the folder where the server was started. What
the project's folder contains is neither imported nor run, except by ``build``.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from buildsys import __version__

# not `-m buildsys`, which would import modules of the project's folder first
_PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); from buildsys.cli.main import main; main()"
)
MOST_BYTES = 100_000  # of an answer
_LIMIT_S, _BUILD_LIMIT_S = 300.0, 24 * 3600.0
_LAST_BYTES = 4_000  # of an error
_INSTRUCTIONS = (
    "buildsys turns PyTorch models into verified inference engines. `plan` shows what a build would"
    " run, `explain` why targets are stale, `best` which engine to ship, `history` and `compare`"
    " recorded builds. Answers have a `schema`; long lists are cut, and left_out counts the rest:"
    " then name models or targets."
)
Names = Annotated[list[str], Field(description="Models or targets; empty: everything.")]
Project = Annotated[str, Field(description="Folder of the project, below the server's.")]
FindProject = Callable[[Path], Path | None]


def make_server(root: Path, find_project: FindProject, *, allow_build: bool) -> MCPServer:
    """Make the server of the projects below ``root``."""
    server = MCPServer(
        "buildsys", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    tools = Tools(root.resolve(), find_project)
    reading = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in (tools.plan, tools.explain, tools.best, tools.compare, tools.history):
        server.add_tool(tool, annotations=reading)
    if allow_build:
        writing = ToolAnnotations(
            read_only_hint=False, destructive_hint=False, idempotent_hint=True
        )
        server.add_tool(tools.build, annotations=writing)
    return server


class Tools:
    """The tools. Their parameters and first lines describe them to assistants."""

    def __init__(self, root: Path, find_project: FindProject) -> None:
        self._root, self._find_project = root, find_project

    async def plan(
        self,
        targets: Names = [],  # noqa: B006 - never changed
        since: Annotated[str, Field(description="Compare with a git revision instead.")] = "",
        project: Project = ".",
    ) -> dict[str, Any]:
        """List what a build would run, in order, with reasons and usual times."""
        revision = [f"--since={since}"] if since else []
        return await self._answer(project, "plan", targets, revision)

    async def explain(
        self,
        targets: Names = [],  # noqa: B006
        project: Project = ".",
    ) -> dict[str, Any]:
        """Explain why targets are stale, or when and why they were built."""
        return await self._answer(project, "explain", targets)

    async def best(
        self,
        model: str,
        by: Annotated[str, Field(description="latency, throughput, size or error.")] = "latency",
        project: Project = ".",
    ) -> dict[str, Any]:
        """Rank the engines of a model on this machine, and name the one to ship."""
        return await self._answer(project, "best", [model], [f"--by={by}"])

    async def compare(
        self,
        first: Annotated[str, Field(description="MODEL, MODEL:ENGINE or MODEL@BUILD.")] = "",
        second: str = "",
        project: Project = ".",
    ) -> dict[str, Any]:
        """Compare two recorded builds: manifest, libraries, graphs, errors, sizes, latencies."""
        return await self._answer(project, "compare", [*filter(None, (first, second))])

    async def history(
        self,
        name: Annotated[str, Field(description="Model, engine or target; empty: overview.")] = "",
        count: Annotated[int, Field(ge=1, le=1000)] = 10,
        project: Project = ".",
    ) -> dict[str, Any]:
        """List recorded builds with figures and measurements, newest first."""
        return await self._answer(project, "history", [*filter(None, [name])], [f"-n={count}"])

    async def build(
        self,
        targets: Names = [],  # noqa: B006
        no_bench: Annotated[bool, Field(description="Leave out benchmarks and gates.")] = False,
        project: Project = ".",
    ) -> dict[str, Any]:
        """Build targets with all that they need; runs the code of the project."""
        options = ["--continue", *(["--no-bench"] if no_bench else [])]
        return await self._answer(project, "build", targets, options, _BUILD_LIMIT_S)

    async def _answer(
        self,
        project: str,
        command: str,
        names: Sequence[str],
        options: Sequence[str] = (),
        limit_s: float = _LIMIT_S,
    ) -> dict[str, Any]:
        """Run a command; return its document. Raises: ToolError: it printed none."""
        folder = self._project(project)
        if wrong := next((name for name in names if name.startswith("-")), None):
            raise ToolError(f"{wrong!r} is not a name")
        words = [sys.executable, "-c", _PROGRAM, command, *names, *options, "--json"]
        try:
            with anyio.fail_after(limit_s):  # cancelled, it ends the process
                done = await anyio.run_process(
                    words, stdin=subprocess.DEVNULL, check=False, cwd=folder
                )
        except TimeoutError:
            raise ToolError(f"{command} took longer than {limit_s:.0f} s") from None
        try:
            document = json.loads(done.stdout)
        except ValueError:
            text = done.stderr[-_LAST_BYTES:].decode(errors="replace").strip()
            raise ToolError(text or f"{command} ended with {done.returncode}") from None
        return shortened({"exit_code": done.returncode, **document})

    def _project(self, name: str) -> Path:
        """Locate a project. Raises: ToolError: it is not below the server's folder."""
        folder = (self._root / name).resolve()
        place = self._find_project(folder) if folder.is_relative_to(self._root) else None
        if place is None or not place.is_relative_to(self._root):
            raise ToolError(f"there is no project {name!r} below {self._root}")
        return place


def shortened(document: dict[str, Any], most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Cut the longest lists, maps and texts of a document until it is small enough.

    ``left_out`` counts what was cut, by the path of the field.
    """
    left_out: dict[str, int] = {}
    while len(json.dumps(document)) > most_bytes:
        place: Any = document
        path: list[Any] = []
        while True:
            items = place.items() if isinstance(place, dict) else enumerate(place)
            key, value = max(items, key=lambda item: len(json.dumps(item[1])))
            path.append(key)
            sizes = [len(json.dumps(part)) for part in _parts(value)]
            if not sizes or 2 * max(sizes) < sum(sizes):
                break
            place = value
        half = len(value) // 2
        is_map = isinstance(value, dict)
        place[key] = dict([*value.items()][:half]) if is_map else value[:half]
        name = ".".join(map(str, path))
        left_out[name] = left_out.get(name, 0) + len(value) - half
        document["left_out"] = left_out
    return document


def _parts(value: Any) -> Sequence[Any]:
    """List the parts of a list or map, none of a text."""
    return (
        [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    )
