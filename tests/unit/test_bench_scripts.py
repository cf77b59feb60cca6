"""The measurements in ``tests/bench``, which people run by hand, still start."""

import runpy
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
WITH_TORCH = ("plain_script",)
SCRIPTS = sorted(path.stem for path in BENCH.glob("[a-z]*.py") if path.stem not in WITH_TORCH)


@pytest.mark.parametrize("script", SCRIPTS)
def test_its_imports_exist_and_it_prints_its_options(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # as from a shell, without what pytest adds or has imported
    path = [entry for entry in sys.path if not entry.startswith(str(BENCH.parent))]
    monkeypatch.setattr(sys, "path", [str(BENCH), *path])
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", "")).startswith(str(BENCH.parent)):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "argv", [f"{script}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {script}.py")
