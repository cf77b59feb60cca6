"""Commands that need no executors, in a project whose executors are wrong."""

from pathlib import Path

import pytest

from buildsys.cli.session import BuildSession


@pytest.mark.parametrize("executor", ["{}", "3", "{kind: nope}", "{kind: ssh, host: -x}"])
def test_the_history_needs_no_executors(
    tmp_path: Path, executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs/models").mkdir(parents=True)
    (tmp_path / "configs/project.yaml").write_text(f"executors: {{x: {executor}}}\n")
    assert not BuildSession.of_history(tmp_path).project.models
    assert "all manifests, as they share configs/project.yaml" in capsys.readouterr().err
