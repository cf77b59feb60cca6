"""Real commands on a build whose files were replaced by hostile ones.

Every answer is a few printable sentences, without a traceback, and nothing is read without end.
"""

import json
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from blake3 import blake3
from project_folder import Ran
from ready_project import ReadyProject, contents

from buildsys.cli.commands import ops
from buildsys.system.processes import ChildResult

TEXT = "name\x1b]0;title\x07\x1b[2J\u202etxt.exe\r\x9b31m<img src=x onerror=alert(1)>"
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
TERABYTE = 1 << 40
FILES = ("export/export", "reference/reference", "simplify/graph", "validate/result")
FILES += ("engine/ort/engine", "verify/ort", "bench/ort", "report/report")
COMMANDS = (
    ("list", "--all", "--status"), ("info", "engine:a:ort"), ("info", "verify:a:ort"),
    ("plan", "a"), ("explain", "a:engine", "a:bench"), ("doctor", "build/a/engine/ort"), ("cache",),
    ("ops", "a"), ("pages",), ("history", "a"),
)  # fmt: skip


def hostile_text(file: Path) -> None:
    """Keep the form, with hostile text wherever a text is shown."""
    found = json.loads(file.read_text())
    fields = {"reason": TEXT, "hint": TEXT, "warnings": [TEXT], "backend": TEXT}
    fields |= {TEXT: TEXT, "files": {TEXT: {"bytes": 5}}, "reasons": [TEXT]}
    file.write_text(json.dumps({**found, **fields, "status": "unavailable"}))


def wrong_types(file: Path) -> None:
    found = json.loads(file.read_text())
    odd = [[TEXT], {TEXT: [1]}, None, -1e400, True, 10**400]
    changed = {name: odd[index % len(odd)] for index, name in enumerate(found)}
    file.write_text(json.dumps({**changed, "target": found["target"], "backend": "onnxruntime"}))


def nested(file: Path) -> None:
    file.write_text("[" * 100_000)


def huge(file: Path) -> None:
    os.truncate(file, TERABYTE)


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def not_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00" * 10)


ATTACKS: tuple[Callable[[Path], None], ...] = (
    hostile_text, wrong_types, nested, huge, fifo, folder, not_text,
)  # fmt: skip
RECORDED = (hostile_text, wrong_types, nested, not_text)  # as correct


def accept(project: ReadyProject) -> None:
    """Record the present files as the outputs of their targets, as a forged record would."""
    with sqlite3.connect(project.root / ".buildsys/state.db") as db:
        for key, text in db.execute("SELECT key, outputs FROM records").fetchall():
            outputs = json.loads(text)
            for name in outputs:
                file = project.root / "build" / name
                if file.is_file() and file.stat().st_size < TERABYTE:
                    content = file.read_bytes()
                    outputs[name] = [blake3(content).hexdigest(), len(content)]
            db.execute("UPDATE records SET outputs = ? WHERE key = ?", (json.dumps(outputs), key))
        db.execute("DELETE FROM settled_models")
    db.close()


def check(ran: Ran) -> str:
    """Return what a command printed."""
    printed = ran.out + ran.err
    assert ran.code in (0, 1, 2, 3), printed
    assert "Traceback" not in printed
    assert not UNSAFE.search(printed.replace("\t", " ")), printed
    assert len(printed) < 20_000
    return printed


def test_hostile_results(ready_built: ReadyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file has another attack; a build replaces them all."""
    table = ChildResult(0, '{"torch": {}, "onnx": {}}', "")
    monkeypatch.setattr(ops, "run_python", lambda _: table)
    ops.operator_table(ready_built.root / ".buildsys")  # made here, without torch
    for index, name in enumerate(FILES):
        attack = ATTACKS[index % len(ATTACKS)]
        attack(ready_built.root / f"build/a/{name}.json")
    accept(ready_built)
    for arguments in COMMANDS:
        check(ready_built.doit(*arguments))
    for index, name in enumerate(FILES):
        file = ready_built.root / f"build/a/{name}.json"
        if ATTACKS[index % len(ATTACKS)] in RECORDED:
            file.unlink()
        elif file.is_fifo():
            assert f"{file} is not a regular file; remove it" in check(ready_built.doit("a"))
            file.unlink()
        elif file.is_dir():
            file.rmdir()
    assert ready_built.doit("a").code == 0
    assert contents(ready_built.root / "build") == ready_built.clean_contents()


def test_hostile_graphs(ready_built: ReadyProject) -> None:
    file = ready_built.root / "build/a/simplify/model.onnx"
    model = onnx.load(file)
    model.producer_name = model.graph.node[0].name = TEXT
    for tensor in model.graph.initializer:
        tensor.name += TEXT
    onnx.save(model, file)
    assert "name" in check(ready_built.buildsys("inspect", "a", "--nodes"))
    os.truncate(file, TERABYTE)
    assert "protobuf files at most 2147483647" in check(
        ready_built.buildsys("compare", "a:export", "a:simplify")
    )
    fifo(file)
    assert "simplify:a has not been built" in check(ready_built.buildsys("inspect", "a"))
