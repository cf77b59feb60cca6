"""Channels, releases and their removal: concurrent, interrupted and repeated changes."""

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from release_folder import GRAPH, promote, publish_engine, release_engines

from buildsys.errors import BuildsysError, EngineError, StageError
from buildsys.release.channels import (
    PROMOTE,
    ROLLBACK,
    Pointer,
    change_channel,
    earlier_release,
    read_history,
)
from buildsys.release.collection import Collection, collect, list_releases
from buildsys.release.making import check_release, document_signer
from buildsys.store.remote_folder import RemoteFolder, connect
from buildsys.store.signatures import SigningKey, generate_key
from buildsys.system.signatures import TrustedKeys

UNSIGNED = document_signer(None)
DIGEST = "0" * 64


@pytest.fixture(params=["folder", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteFolder]:
    """A folder of this machine, and an object storage."""
    is_local = request.param == "folder"
    place = connect(str(tmp_path / "rel") if is_local else f"memory://{uuid.uuid4().hex}")
    yield place
    place.remove("")


def point(folder: RemoteFolder, release: str, action: str = PROMOTE) -> Pointer:
    return change_channel(folder, "stable", lambda _: (action, release, DIGEST), UNSIGNED, None)


def rollback(folder: RemoteFolder) -> str:
    def earlier(history: list[Pointer]) -> tuple[str, str, str]:
        return ROLLBACK, earlier_release(history).release, DIGEST

    return change_channel(folder, "stable", earlier, UNSIGNED, None).release


def shown(folder: RemoteFolder) -> tuple[int, str]:
    """Read the pointer that readers read."""
    with folder.open_to_read("channels/stable.json") as reader:
        document = json.loads(reader.read())
    return document["serial"], document["release"]


def test_rollbacks_go_back_and_keep_the_history(folder: RemoteFolder) -> None:
    for release in ("1", "2", "2", "3"):
        point(folder, release)
    assert [rollback(folder), rollback(folder)] == ["2", "1"]
    with pytest.raises(StageError, match="no earlier release: 1 is its first"):
        rollback(folder)
    point(folder, "4")
    assert rollback(folder) == "1"
    history = read_history(folder, "stable", None)
    assert [pointer.release for pointer in history] == ["1", "2", "2", "3", "2", "1", "4", "1"]
    assert shown(folder) == (8, "1")


def test_an_empty_channel_has_nothing_to_roll_back(folder: RemoteFolder) -> None:
    with pytest.raises(StageError, match="it has none; promote another release"):
        rollback(folder)


def test_promotions_at_the_same_time_all_succeed_one_after_the_other(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def run(number: int) -> None:
        try:
            point(connect(str(tmp_path / "rel")), str(number))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    folder = connect(str(tmp_path / "rel"))
    history = read_history(folder, "stable", None)
    assert sorted(int(pointer.release) for pointer in history) == [*range(12)]
    assert shown(folder) == (12, history[-1].release)
    assert not [*(tmp_path / "rel").rglob("*.part")]


def test_an_interrupted_promotion_is_completed_by_the_next(
    folder: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    point(folder, "1")
    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            point(folder, "2")
    assert shown(folder) == (1, "1")
    assert point(folder, "3").serial == 3
    assert shown(folder) == (3, "3")


def test_a_forged_change_stops_the_next_one(tmp_path: Path) -> None:
    folder, public = connect(str(tmp_path / "rel")), generate_key(tmp_path / "key")
    signed, keys = document_signer(SigningKey(tmp_path / "key")), TrustedKeys.of([public])
    change_channel(folder, "stable", lambda _: (PROMOTE, "1", DIGEST), signed, keys)
    first = (tmp_path / "rel/channels/stable/1.json").read_bytes()
    (tmp_path / "rel/channels/stable/2.json").write_bytes(first)  # a replay
    with pytest.raises(EngineError, match=r"channels/stable/2\.json has the serial 1"):
        change_channel(folder, "stable", lambda _: (PROMOTE, "2", DIGEST), signed, keys)
    (tmp_path / "rel/channels/stable/2.json").write_bytes(first.replace(b'"1"', b'"2"'))
    with pytest.raises(EngineError, match="channels/stable was altered after it was signed"):
        change_channel(folder, "stable", lambda _: (PROMOTE, "2", DIGEST), signed, keys)


def releases(folder: RemoteFolder, built: Path, *names: str) -> None:
    for name in names:
        publish_engine(folder, built, name)
        release_engines(folder, name)


def test_a_release_never_changes(folder: RemoteFolder, tmp_path: Path) -> None:
    releases(folder, tmp_path, "1")
    release_engines(folder, "1")  # the same again
    check_release(folder, "1", ["net:ort"], None)
    with pytest.raises(StageError, match=r"release 1 exists already, without net:trt; releases n"):
        check_release(folder, "1", ["net:trt", "net:ort"], None)
    publish_engine(folder, tmp_path, "1", "trt")
    with pytest.raises(StageError, match="release 1 exists already, with other engines"):
        release_engines(folder, "1")
    assert [v.name for v in list_releases(folder, None).releases[0].variants] == ["net:ort"]


def test_of_two_releases_at_the_same_time_one_is_refused_or_both_are_equal(tmp_path: Path) -> None:
    folder = connect(str(tmp_path / "rel"))
    publish_engine(folder, tmp_path, "1")
    done: list[Any] = []

    def run(name: str) -> None:
        try:
            place = connect(str(tmp_path / "rel"))
            publish_engine(place, tmp_path / name, "1", name, content=name.encode())
            done.append(release_engines(place, "1"))
        except BuildsysError as error:
            done.append(str(error))

    threads = [threading.Thread(target=run, args=(f"e{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (index,) = list_releases(folder, None).releases
    for result in done:
        if isinstance(result, str):
            assert "the release 1 exists already, with other engines" in result
        else:
            assert result.variants == index.variants


def test_an_engine_of_others_must_be_signed_where_keys_are_trusted(
    folder: RemoteFolder, tmp_path: Path
) -> None:
    publish_engine(folder, tmp_path, "1")
    keys = TrustedKeys.of([generate_key(tmp_path / "key")])
    with pytest.raises(StageError, match=r"net/ort/1: engine\.json is not signed; take an engine"):
        release_engines(folder, "1", keys=keys)


def run_gc(folder: RemoteFolder, **options: Any) -> Collection:
    return collect(folder, None, **{"keep": 0, "spared_s": -60.0, "dry_run": False, **options})


def names(folder: RemoteFolder) -> set[str]:
    return {path[len(folder.root) + 1 :] for path in folder.system.find(folder.root)}


def test_only_what_nothing_needs_is_removed(folder: RemoteFolder, tmp_path: Path) -> None:
    releases(folder, tmp_path, "1", "2", "3", "4")
    for release in ("2", "3"):
        promote(folder, release)
    promote(folder, "1", "canary")
    publish_engine(folder, tmp_path, "only-a-version")
    folder.write("net/ort/upload/provenance.json", [b"{}"])
    before = names(folder)
    assert run_gc(folder, spared_s=3600.0) == ([], [], [])
    expected = Collection(["4"], ["net/ort/4"], ["net/ort/upload"])
    assert run_gc(folder, dry_run=True) == expected
    assert run_gc(folder, keep=1).releases == []
    assert names(folder) == before - {"net/ort/upload/provenance.json"}
    assert run_gc(folder).releases == ["4"]
    gone = before - names(folder)
    assert {name for name in gone if "/4" not in name} == {"net/ort/upload/provenance.json"}
    assert {"releases/4.json", "net/ort/4/version.json", "net/ort/4/engine.onnx"} < gone
    assert run_gc(folder) == ([], [], [])
    assert [index.release for index in list_releases(folder, None).releases] == ["3", "2", "1"]


def test_a_killed_removal_is_continued(
    folder: RemoteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases(folder, tmp_path, "1", "2")
    promote(folder, "2")
    remove = RemoteFolder.remove

    def fail(place: RemoteFolder, path: str, at: str) -> None:
        if path == at:
            raise KeyboardInterrupt
        remove(place, path)

    for at in ("net/ort/1/version.json", "net/ort/1", "releases/removed/1.json"):
        with monkeypatch.context() as patch:
            patch.setattr(RemoteFolder, "remove", partialmethod(fail, at=at))
            with pytest.raises(KeyboardInterrupt):
                run_gc(folder)
        assert [index.release for index in list_releases(folder, None).releases] == ["2"]
    assert run_gc(folder).releases == ["1"]
    assert not [name for name in names(folder) if "/1" in name and "channels" not in name]


def test_a_release_that_is_promoted_meanwhile_stays(
    folder: RemoteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    releases(folder, tmp_path, "1", "2")
    before, remove = names(folder), RemoteFolder.remove

    def promoting(place: RemoteFolder, path: str) -> None:
        if path == "releases/1.json" and "channels/stable.json" not in names(folder):
            promote(folder, "1")
        remove(place, path)

    monkeypatch.setattr(RemoteFolder, "remove", promoting)
    assert run_gc(folder, keep=1).releases == []
    assert names(folder) - before == {"channels/stable.json", "channels/stable/1.json"}


def test_an_upload_at_work_and_an_unreadable_release_stay(tmp_path: Path) -> None:
    folder = connect(str(tmp_path / "rel"))
    releases(folder, tmp_path, "1")
    for release, age_s in (("old", 7200), ("new", 60)):
        for name in ("provenance.json", "engine.onnx"):
            folder.write(f"net/ort/{release}/{name}", [GRAPH])
            moment = time.time() - age_s
            os.utime(tmp_path / "rel/net/ort" / release / name, (moment, moment))
    (tmp_path / "rel/releases/1.json").write_text("{")
    listing = list_releases(folder, None)
    assert (listing.releases, len(listing.problems)) == ([], 1)
    assert run_gc(folder, spared_s=3600.0) == ([], [], ["net/ort/old"])
    assert {"net/ort/1/version.json", "releases/1.json"} < names(folder)
