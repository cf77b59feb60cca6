"""``buildsys gate accept`` on a scripted executor."""

from pathlib import Path
from typing import Any

import pytest
from cli_doubles import ScriptedExecutor, make_session, run_in

from buildsys.cli.session import BuildSession
from buildsys.errors import UsageError

GATES = {"latency": {"tolerance": "5%"}}
ACCEPTED: list[tuple[str, str]] = []


def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *names: str,
    reason: str = "wider",
    **fields: Any,
) -> int:
    session, _ = make_session(tmp_path, **fields)
    ACCEPTED.clear()

    def accept(_: ScriptedExecutor, target: str, why: str) -> None:
        ACCEPTED.append((target, why))

    monkeypatch.setattr(ScriptedExecutor, "accept", accept, raising=False)
    monkeypatch.setattr(BuildSession, "load", lambda _: session)
    return run_in(tmp_path, "gate", *names, reason=reason)


def test_a_build_is_accepted_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(tmp_path, monkeypatch, "accept", "net:ort", reason=" a  wider net ", gates=GATES) == 0
    )
    assert ACCEPTED == [("gate:net:ort", "a wider net")]
    assert capsys.readouterr().out == (
        "net:ort is accepted; later builds are compared with it, `buildsys build gate:net:ort` "
        "checks its limits\n"
    )


@pytest.mark.parametrize(
    ("names", "fields", "problem"),
    [
        (("net:ort",), {}, "gate takes accept and one engine; write `buildsys gate accept"),
        (("reject", "net:ort"), {}, "gate takes accept and one engine"),
        (("accept", "net:ort"), {"reason": "  "}, "gate accept needs a reason; add --reason"),
        (("accept", "net:ort"), {}, "net:ort has no gates; add `gates` to its manifest"),
        (("accept", "net"), {"gates": GATES}, "net has several engines; name one of ort, rtx"),
        (("accept", "net:ortt"), {"gates": GATES}, "there is no engine 'net:ortt'"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    fields: dict[str, Any],
    problem: str,
) -> None:
    with pytest.raises(UsageError) as raised:
        run(tmp_path, monkeypatch, *names, **fields)
    assert str(raised.value).startswith(problem)
    assert ACCEPTED == []


def test_a_gate_against_another_engine_has_no_earlier_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = [
        {"backend": "onnxruntime", "name": "fast"},
        {"backend": "onnxruntime", "name": "ort", "gates": {"engine": "fast", **GATES}},
    ]
    with pytest.raises(UsageError, match="the gate of net:ort compares with another engine"):
        run(tmp_path, monkeypatch, "accept", "net:ort", engines=engines)
