"""The loader of plain doit."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from importlib.metadata import EntryPoints
from pathlib import Path

import doit.plugin
import pytest
from doit.doit_cmd import DoitMain

from buildsys.cli import loader

TEMPLATES = Path(loader.__file__).parent / "commands/init/templates"


@pytest.mark.parametrize("command", [[], ["list"], ["nightly"], ["-n", "2", "build"]])
def test_a_package_that_is_not_installed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    for module in (doit.plugin, loader):
        monkeypatch.setattr(module, "entry_points", lambda **_: EntryPoints())
    (tmp_path / "dodo.py").write_text("raise AssertionError\n")
    (tmp_path / "doit.cfg").write_text((TEMPLATES / "doit.cfg").read_text())
    monkeypatch.chdir(tmp_path)
    with redirect_stderr(io.StringIO()) as errors:
        assert DoitMain().run(command) == 3
    text = errors.getvalue()
    assert text.startswith("ERROR: buildsys is imported from ")
    assert text.endswith("install it with pip, or use `python -m buildsys` instead of doit\n")
    assert len(text.splitlines()) == 1
