"""Entry points of installed packages, read once for all kinds of plugins."""

from __future__ import annotations

from importlib.metadata import entry_points as read_entry_points
from pathlib import Path
from typing import Any

import pytest

from buildsys.system import entry_points


def test_all_kinds_of_plugins_share_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = []

    def read() -> Any:
        readings.append(1)
        return read_entry_points()

    monkeypatch.setattr(entry_points, "read_entry_points", read)
    entry_points._read.cache_clear()
    for group in ("doit.COMMAND", "doit.LOADER", "buildsys.backends", "nobody's"):
        assert set(entry_points.entry_points(group=group)) == set(read_entry_points(group=group))
    assert len(readings) == 1


def test_a_package_on_another_module_path_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not entry_points.entry_points(group="of.a.test")
    installed = tmp_path / "someone-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: someone\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[of.a.test]\none = someone:One\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [point.value for point in entry_points.entry_points(group="of.a.test")] == [
        "someone:One"
    ]
    assert entry_points.entry_points(group="of.a.test", name="one")
    assert not entry_points.entry_points(group="of.a.test", name="two")
