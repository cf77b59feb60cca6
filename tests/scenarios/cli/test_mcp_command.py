"""`buildsys mcp` over stdio, asked by the client of its SDK, and the documents of its tools."""

import sys
from pathlib import Path
from typing import Any

import pytest
from command_answers import commit, git
from documents import check_document
from ready_project import ReadyProject

mcp = pytest.importorskip("mcp")
anyio = pytest.importorskip("anyio")
READING = {"plan", "explain", "best", "compare", "history"}


async def ask(
    project: ReadyProject, calls: list[Any], *options: str
) -> tuple[list[Any], list[Any]]:
    """Call tools of a server that is started in the project's folder."""
    words = ["-m", "buildsys", "mcp", *options]
    environment = {k: str(v) for k, v in project.environment.items()}
    server = mcp.StdioServerParameters(
        command=sys.executable, args=words, cwd=project.root, env=environment
    )
    async with mcp.Client(server) as client:
        tools = (await client.list_tools()).tools
        return tools, [await client.call_tool(name, values) for name, values in calls]


def written(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


def test_assistants_read_and_build_only_if_allowed(ready_built: ReadyProject) -> None:
    git(ready_built.root, "init", "-q")
    commit(ready_built.root, "first")
    ready_built.edit("plugins/data/values.py", "SCALE = 1.0", "SCALE = 1.25")
    before = written(ready_built.root)
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("plan", {"project": ".."}, "there is no project '..' below"),
        ("plan", {"project": "/"}, "there is no project '/' below"),
        ("explain", {"targets": ["--since=HEAD"]}, "'--since=HEAD' is not a name"),
        ("best", {"model": "b"}, "there is no model 'b'"),
        ("build", {}, "Unknown tool"),
    ]
    calls = [
        ("plan", {}),
        ("explain", {"targets": ["a"]}),
        ("best", {"model": "a", "by": "size"}),
        ("history", {}),
        ("history", {"name": "a:ort", "count": 2}),
        ("compare", {"first": "a", "second": "a"}),
        ("plan", {"since": "HEAD"}),
        *((name, values) for name, values, _ in refused),
    ]
    tools, answers = anyio.run(ask, ready_built, calls)
    assert {tool.name for tool in tools} == READING
    assert all(tool.annotations.read_only_hint for tool in tools)
    documents = [answer.structured_content for answer in answers[: -len(refused)]]
    for document in documents:
        check_document({k: v for k, v in document.items() if k != "exit_code"})
    plan, explained, best, overview, history, _, since = documents
    stale = [target["target"] for target in plan["targets"]]
    assert (stale[0], plan["exit_code"]) == ("reference:a", 0)
    assert {target["state"] for target in explained["targets"]} >= {"fresh", "stale"}
    assert since["targets"][0]["target"] == "reference:a"
    assert (best["model"], best["ranking"]["by"]) == ("a", "size")
    assert overview["models"][0]["engines"] == ["ort"]
    assert len(history["builds"]) == 2
    for answer, (_, _, problem) in zip(answers[-len(refused) :], refused, strict=True):
        assert answer.is_error
        assert problem in answer.content[0].text
    assert written(ready_built.root) == before

    tools, (answer,) = anyio.run(ask, ready_built, [("build", {"targets": ["a"]})], "--allow-build")
    (build,) = (tool for tool in tools if tool.name not in READING)
    assert build.name == "build"
    assert not build.annotations.read_only_hint
    check_document(answer.structured_content)
    assert answer.structured_content["exit_code"] == 0
