"""Templates are compiled once, whatever happens to the compiled ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemBytecodeCache

from buildsys.report.html import environment
from buildsys.report.html.environment import INDEX


@pytest.fixture
def compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Return a function that loads a template anew and tells whether it was compiled."""
    compiled: list[str] = []
    compile_source = Environment.compile

    def compile_and_note(self: Environment, source: str, *names: str) -> object:
        compiled.append(source)
        return compile_source(self, source, *names)

    monkeypatch.setattr(Environment, "compile", compile_and_note)

    def load() -> bool:
        made = environment.environment.__wrapped__()
        assert isinstance(made.bytecode_cache, FileSystemBytecodeCache)
        made.bytecode_cache.directory = str(tmp_path / "compiled")
        compiled.clear()
        made.get_template(INDEX)
        return bool(compiled)

    return load


def test_a_template_is_compiled_once(compiles: Callable[[], bool], tmp_path: Path) -> None:
    (tmp_path / "compiled").mkdir()
    assert compiles()
    assert not compiles()


def test_damaged_files_are_replaced(compiles: Callable[[], bool], tmp_path: Path) -> None:
    (tmp_path / "compiled").mkdir()
    compiles()
    for file in (tmp_path / "compiled").iterdir():
        file.write_bytes(file.read_bytes()[:-99])
    assert compiles()
    assert not compiles()


def test_no_folder_is_needed(compiles: Callable[[], bool], tmp_path: Path) -> None:
    assert compiles()
    assert not (tmp_path / "compiled").exists()


def test_styles_and_scripts_are_not_compiled_into_templates() -> None:
    source = '{{ "style.css" | source }}{{ "page.js" | csp_hash }}'
    compiled = environment.environment().compile(source, raw=True)
    assert "color-scheme" not in compiled
    assert "sha256-" not in compiled
    assert "color-scheme" in environment.environment().from_string(source).render()
