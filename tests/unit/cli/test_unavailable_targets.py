"""Unavailable targets in what doit prints and counts."""

from __future__ import annotations

import json

import pytest
from cli_doubles import Doit, passed

GONE = passed(status="unavailable", reason="no GPU", hint="run it on one")


def test_unavailable_is_not_called_passed(doit: Doit) -> None:
    doit.actions["engine:net:rtx"] = lambda: GONE
    code, out = doit()
    assert code == 0
    assert "unavailable  engine:net:rtx  100 ms  no GPU; run it on one\n" in out
    assert f"{len(doit.session.actions) - 1} passed, 1 unavailable in" in out
    doit.fresh.update(doit.session.actions.keys() - {"export:net"})
    _, out = doit()
    assert "engine rtx" in out
    row = next(line for line in out.splitlines() if "engine rtx" in line)
    assert "unavailable" in row
    assert "no GPU" in row


def unavailable_since_an_earlier_run(doit: Doit) -> None:
    doit.actions["engine:net:rtx"] = lambda: GONE
    doit.build_all()
    del doit.actions["engine:net:rtx"]


def test_unavailable_remains_visible_with_nothing_to_do(doit: Doit) -> None:
    unavailable_since_an_earlier_run(doit)
    fresh = len(doit.fresh) - 1
    for names in ((), ("build:net",), ("build",)):
        code, out = doit(*names)
        assert code == 0
        assert out.splitlines() == [
            "unavailable  engine:net:rtx  no GPU; run it on one",
            f"everything is up to date ({fresh} targets, 1 unavailable)",
        ]


def test_unavailable_is_not_called_fresh_when_another_target_runs(doit: Doit) -> None:
    unavailable_since_an_earlier_run(doit)
    doit.fresh.discard("report:net")
    _, out = doit()
    assert f"1 passed, {len(doit.fresh) - 1} fresh, 1 unavailable in" in out


@pytest.mark.parametrize("how", [{"restored": True}, {"waited": True}])
def test_unavailable_is_not_called_restored_or_fresh(doit: Doit, how: dict[str, bool]) -> None:
    doit.build_all()
    doit.fresh.discard("engine:net:rtx")
    doit.actions["engine:net:rtx"] = lambda: GONE._replace(**how)
    _, out = doit()
    assert "unavailable  engine:net:rtx  no GPU; run it on one\n" in out
    assert "1 unavailable" in out.splitlines()[-1]
    assert "restored" not in out


def test_unavailable_is_a_result_in_json(doit: Doit) -> None:
    unavailable_since_an_earlier_run(doit)
    doit.fresh.discard("verify:net:rtx")
    doit.actions["verify:net:rtx"] = lambda: GONE
    code, out = doit("-r", "json")
    assert code == 0
    tasks = {task["name"]: task for task in json.loads(out)["tasks"]}
    for target in ("engine:net:rtx", "verify:net:rtx"):
        assert tasks[target]["result"] == "unavailable"
        assert tasks[target]["reason"] == "no GPU; run it on one"
    assert tasks["export:net"]["result"] == "up-to-date"
    assert tasks["export:net"]["reason"] is None


def test_list_and_info_show_unavailable_targets(doit: Doit) -> None:
    unavailable_since_an_earlier_run(doit)
    _, out = doit("list", "--all", "--status")
    assert {line.split()[1] for line in out.splitlines() if line[0] == "N"} == {"engine:net:rtx"}
    _, out = doit("info", "engine:net:rtx")
    assert "\nunavailable: no GPU; run it on one\n" in out
