"""doit on a scripted executor."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_doubles import Doit


@pytest.fixture
def doit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Doit]:
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield Doit(tmp_path, capsys)
    assert {number: signal.getsignal(number) for number in handlers} == handlers
