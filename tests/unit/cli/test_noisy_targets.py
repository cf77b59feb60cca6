"""Noisy benchmarks: measured again by nightly runs and on request, not by every build."""

import pytest
from cli_doubles import Doit, passed

BENCH = "bench:net:ort"
OTHER = "bench:net:rtx"
NOISY = passed(status="noisy", reason="a busy neighbor", hint="limits: bench.noise")


@pytest.fixture
def noisy(doit: Doit) -> Doit:
    doit.actions[BENCH] = lambda: NOISY
    doit.build_all()
    del doit.actions[BENCH]
    (doit.root / "dodo.py").touch()
    return doit


def test_remeasure_measures_all_that_is_requested_again(noisy: Doit) -> None:
    noisy.models = ("net", "other")
    noisy.build_all()
    code, out = noisy("build", "--remeasure", "net")
    assert code == 0
    assert sorted(noisy.executor.forced) == [BENCH, OTHER]
    assert f"run          {BENCH}  … last measurement was noisy: a busy neighbor" in out
    assert f"run          {OTHER}  … requested" in out
    noisy("build", "--remeasure", "verify:net:ort")
    assert noisy.executor.forced == []


def test_a_nightly_run_measures_noisy_benchmarks_again(noisy: Doit) -> None:
    code, out = noisy("nightly")
    assert (code, noisy.executor.forced) == (0, [BENCH])
    assert f"run          {BENCH}  … last measurement was noisy: a busy neighbor" in out
