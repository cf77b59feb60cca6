"""What the commands for other machines have in common."""

from __future__ import annotations

import pytest

from buildsys.cli.remote_jobs import this_machine
from buildsys.system import devices


def test_equal_gpus_of_a_machine_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple({"name": name} for name in ("NVIDIA L4", "NVIDIA H100", "NVIDIA L4"))
    monkeypatch.setattr(devices, "visible_gpus", lambda: gpus)
    assert this_machine(with_gpus=True)["gpus"] == "2x NVIDIA L4, NVIDIA H100"
    assert not this_machine(with_gpus=False)["gpus"]
