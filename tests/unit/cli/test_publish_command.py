"""Mistakes in the arguments of `buildsys publish`, and places that cannot be used."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_doubles import make_session, run_in

from buildsys.cli.commands import publish
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import ModelFilter
from buildsys.errors import StageError, UsageError
from buildsys.execution.freshness import Freshness
from buildsys.execution.stale_reasons import FAILED, NEVER_BUILT, NOISY, UPSTREAM, StaleReason
from buildsys.store.ledger import HistoryEntry

OPTIONS: dict[str, Any] = {"version": "1.0"}
NEVER = StaleReason(NEVER_BUILT)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildSession:
    """Model a, whose engine ort is built, and rtx is unavailable."""
    found, _ = make_session(tmp_path, "a")
    reasons = {"engine:a:rtx": "no GPU"}

    def explain(targets: Any) -> dict[str, Freshness]:
        return {
            one: Freshness(one, up_to_date=True, unavailable=reasons.get(one)) for one in targets
        }

    monkeypatch.setattr(found, "explain", explain)
    monkeypatch.setattr(BuildSession, "read_only", lambda *_: found)
    for name in ("_records", "_files", "_provenance"):
        monkeypatch.setattr(publish, name, lambda *_: {})
    return found


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], {}, "publish takes a URL or a folder as its last argument; write s3:"),
        (["a"], {}, "a URL or a folder as its last argument; write s3://"),
        (["./out"], {}, "publish takes the engines to publish; name a model or MODEL:ENGINE"),
        (["a", "./out"], {"version": "../x"}, "'../x' is not a valid version; add --version"),
        (["a", "./out"], {"version": "1\n"}, "is not a valid version; add --version 1.0.0: let"),
        (["a:otr", "./out"], {}, "there is no target 'a:otr'; nearest: a:ort"),
        (["export:a", "./out"], {}, "there is no engine of export:a; `buildsys list engine` list"),
        (["./out"], {"tag": ["x"]}, "there is no tag 'x'; tags: none"),
        (["a", "./out"], {"list": True}, "publish --list takes a URL and nothing else"),
    ],
)
def test_a_mistake_is_one_sentence(
    session: BuildSession, names: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        run_in(session.project.root, "publish", *names, **{**OPTIONS, **options})
    assert message in str(caught.value)
    assert not (session.project.root / "out").exists()


def test_unavailable_engines_are_skipped_unless_they_are_named(
    session: BuildSession, capsys: pytest.CaptureFixture[str]
) -> None:
    root, url = session.project.root, str(session.project.root / "releases")
    assert run_in(root, "publish", "a", url, **OPTIONS) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "1 published, 1 skipped"
    explanation = "; run `buildsys explain engine:a:rtx`\n"
    assert f"engine:a:rtx could not be built here: no GPU{explanation}" in printed
    assert run_in(root, "publish", "a:rtx", "a:ort", url, version="2") == 1
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "1 skipped, 1 refused; nothing was published"
    assert "skipped  a:ort  as another engine is refused\n" in printed


@pytest.mark.parametrize(
    ("target", "state", "reason", "problem"),
    [
        ("gate:a:ort", "stale", StaleReason(FAILED, "slower"), "has not passed: last run failed"),
        ("gate:a:ort", "stale", StaleReason(NOISY, "load"), "last measurement was noisy: load"),
        ("gate:a:ort", "fresh", "load", "has not passed, it was noisy: load"),
        ("gate:a:ort", "stale", NEVER, "has not run on the current files: never built"),
        ("verify:a:ort", "stale", StaleReason(FAILED, "y"), "has not passed: last run failed: y"),
        ("validate:a", "may rerun", StaleReason(UPSTREAM, "export:a"), "has not run on the curr"),
        ("engine:a:ort", "stale", NEVER, "does not match its manifest: never built"),
        ("bench:a:ort", "stale", StaleReason(NOISY, "load"), ""),
        ("report:a", "stale", NEVER, ""),
    ],
)
def test_an_engine_with_a_failed_noisy_or_missing_check_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    state: str,
    reason: StaleReason | str,
    problem: str,
) -> None:
    session, _ = make_session(tmp_path, "a", gates={"latency": {"tolerance": "5%"}})

    def explain(targets: Any) -> dict[str, Freshness]:
        return {
            one: Freshness(one, up_to_date=state == "fresh", noise=reason)
            if one == target and isinstance(reason, str)
            else Freshness(one, up_to_date=state != "stale", reasons=(reason,))
            if one == target and isinstance(reason, StaleReason)
            else Freshness(one, up_to_date=True)
            for one in targets
        }

    monkeypatch.setattr(session, "explain", explain)
    (engine,) = publish._select(session, ["a:ort"], ModelFilter())
    remedy = "buildsys build --remeasure a" if state == "fresh" else f"buildsys build {target}"
    assert [reason.remedy for reason in engine.reasons] == ([remedy] if problem else [])
    assert (engine.state == "refused") == bool(problem)
    assert problem in "".join(reason.problem for reason in engine.reasons)


@pytest.mark.parametrize("target", ["engine:a:ort", "verify:a:ort", "gate:a:ort"])
def test_a_check_that_becomes_stale_meanwhile_stops_the_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    session, _ = make_session(tmp_path, "a", gates={"latency": {"tolerance": "5%"}})

    def explain(targets: Any) -> dict[str, Freshness]:
        return {one: Freshness(one, up_to_date=True) for one in targets}

    monkeypatch.setattr(session, "explain", explain)
    checker = SimpleNamespace(up_to_date_record=lambda one: None if one.target == target else 1)
    monkeypatch.setattr(session, "read_only_checker", lambda: checker)
    with pytest.raises(StageError, match=f"{target} has just become stale; buildsys build"):
        publish._records(session, session.actions["engine:a:ort"])


def test_a_gate_without_a_baseline_keeps_no_engine_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = make_session(tmp_path, "a", gates={"latency": {"tolerance": "5%"}})
    first = HistoryEntry("", "", "unavailable", "2026-01-02T03:04:05Z", 1.0, "no earlier build")

    def explain(targets: Any) -> dict[str, Freshness]:
        runs = {"gate:a:ort": first}
        return {one: Freshness(one, up_to_date=True, last=runs.get(one)) for one in targets}

    monkeypatch.setattr(session, "explain", explain)
    (engine,) = publish._select(session, ["a:ort"], ModelFilter())
    assert (engine.state, engine.reasons) == ("", [])


@pytest.mark.parametrize("check", ["validate:a", "verify:a:ort"])
@pytest.mark.parametrize("ops", [[], [{"op": "trt::Nms", "plugin": {"bundled": True}}]])
def test_only_operators_of_plugins_excuse_validate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str, ops: list[dict[str, Any]]
) -> None:
    session, _ = make_session(tmp_path, "a", ops=ops)
    last = HistoryEntry("", "", "unavailable", "2026-01-02T03:04:05Z", 1.0, "no runtime")

    def explain(targets: Any) -> dict[str, Freshness]:
        runs = {check: last}
        return {one: Freshness(one, up_to_date=True, last=runs.get(one)) for one in targets}

    monkeypatch.setattr(session, "explain", explain)
    (engine,) = publish._select(session, ["a:ort"], ModelFilter())
    assert (engine.state == "") == (check == "validate:a" and bool(ops))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere://x/y", "cannot use nowhere://x/y: ValueError: Protocol not known: nowhere; wri"),
        ("sfpt://x/y", "Protocol not known: sfpt; write a folder, or a URL"),
        ("simplecache::memory://x/y", "memory:// ends with this command; name a folder"),
        ("/proc/nothing/x", "cannot use /proc/nothing/x: FileNotFoundError: "),
        ("nowhere://user:secret@x/y", "nowhere://user:***@x/y"),
    ],
)
def test_an_unusable_place_is_one_sentence(session: BuildSession, url: str, message: str) -> None:
    with pytest.raises((StageError, UsageError)) as caught:
        run_in(session.project.root, "publish", "a", url, **OPTIONS)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "module", "command"),
    [
        ("s3://bucket/x", "s3fs", "for object storage 'buildsys[s3]'"),
        ("./x", "fsspec", "pip install 'buildsys[remote]'"),
        ("gs://bucket/x", "gcsfs", "install gcsfs"),
    ],
)
def test_a_missing_package_names_the_pip_command(
    session: BuildSession, monkeypatch: pytest.MonkeyPatch, url: str, module: str, command: str
) -> None:
    import fsspec

    users = ("sshfs", "fsspec.implementations")  # they may have imported it
    for name in [name for name in sys.modules if name.startswith(users)]:
        monkeypatch.delitem(sys.modules, name)
    registry = sys.modules[fsspec.register_implementation.__module__]
    imported: dict[str, type] = {}
    monkeypatch.setattr(registry, "_registry", imported)
    monkeypatch.setattr(registry, "registry", imported)
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]  # as if missing
    with pytest.raises(StageError) as caught:
        run_in(session.project.root, "publish", "a", url, **OPTIONS)
    assert command in str(caught.value)


def test_an_empty_place_has_no_versions(
    session: BuildSession, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(session.project.root / "releases")
    assert run_in(session.project.root, "publish", url, list=True) == 0
    assert capsys.readouterr().out == f"{url} has no published engines\n"
