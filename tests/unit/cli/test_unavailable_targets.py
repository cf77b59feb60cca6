"""Unavailable targets in what doit prints and counts."""

import pytest
from cli_doubles import Doit, passed

GONE = passed(status="unavailable", reason="no GPU", hint="run it on one")


OF_RTX = ["engine:net:rtx", "verify:net:rtx", "bench:net:rtx"]


def test_an_unavailable_engine_is_said_once(doit: Doit) -> None:
    no_engine = passed(status="unavailable", reason="there is no engine")
    doit.actions |= {target: lambda: no_engine for target in OF_RTX[1:]}
    doit.actions[OF_RTX[0]] = lambda: GONE
    _, out = doit()
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines if ":rtx" in line] == [
        ["run", "engine:net:rtx"], ["unavailable", "engine:net:rtx"],
        ["unavailable", "engine:net:rtx:"],  # with the remedy, at the end
    ]  # fmt: skip
    assert "unavailable  engine:net:rtx: run it on one" in lines[-3:]
    (row,) = (line for line in lines if line.startswith(" engine rtx "))
    assert row.split()[2:] == ["unavailable", "100", "ms", "no", "GPU"]
    assert f"{len(doit.session.actions) - 3} passed, 3 unavailable in" in lines[-1]
    doit.fresh.update(doit.session.actions)
    _, out = doit()
    assert out.splitlines()[0] == ("unavailable  engine:net:rtx  no GPU; run it on one")
    doit.fresh.discard(OF_RTX[1])  # its engine is unavailable since an earlier run
    _, out = doit("-s", "verify:net:rtx")
    assert "unavailable  verify:net:rtx  100 ms  there is no engine\n" in out


@pytest.mark.parametrize("how", [{"restored": True}, {"waited": True}])
def test_unavailable_is_not_called_restored_or_fresh(doit: Doit, how: dict[str, bool]) -> None:
    doit.build_all()
    doit.fresh.discard("engine:net:rtx")
    doit.actions["engine:net:rtx"] = lambda: GONE._replace(**how)
    _, out = doit()
    assert "unavailable  engine:net:rtx  no GPU; run it on one\n" in out
    assert "1 unavailable" in out.splitlines()[-1]
    assert "restored" not in out
