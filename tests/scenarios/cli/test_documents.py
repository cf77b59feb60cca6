"""Documents of all commands with ``--json``, compared with their published schema."""

import json

from command_answers import commit, git
from ready_project import ReadyProject

from buildsys.cli.commands import COMMANDS
from buildsys.cli.main import parser_of

CALLS = {
    "plan": [["a"], ["--since", "HEAD~1"]],
    "explain": [["a"]],
    "build": [["a"]],
    "best": [["a"]],
    "compare": [["a@previous", "a"], ["a:export", "a:simplify"]],
    "history": [[], ["a:ort"], ["import", ".buildsys/history.db"]],
    "doctor": [[]],
    "cache": [[], ["workers"]],
    "list": [[], ["a", "--status"]],
}
ELSEWHERE = {  # other tests print their documents
    "bisect", "check", "debug", "evaluate", "inspect", "ops", "publish", "reduce", "release", "run",
    "upgrade",
}  # fmt: skip


def test_every_document_is_as_published(ready_built: ReadyProject) -> None:
    parsers = {name: parser_of(name)[1].format_help() for name in COMMANDS}
    with_json = {name for name, text in parsers.items() if "--json" in text}
    assert with_json == CALLS.keys() | ELSEWHERE
    git(ready_built.root, "init", "-q")
    commit(ready_built.root, "first")
    ready_built.edit("configs/models/a.yaml", "max: 4", "max: 8")
    commit(ready_built.root, "second")
    printed = [
        ready_built.buildsys(command, *words, "--json").out  # which compares it with the schema
        for command, calls in CALLS.items()
        for words in calls
    ]
    names = {json.loads(text)["schema"].split("/")[1] for text in printed}
    assert names == CALLS.keys() | {"plan-since", "diff", "history-import"}
