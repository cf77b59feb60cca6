"""Records and reasons of targets that are unavailable, noisy or up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_project import BENCH, ENGINE, EXPORT, actions, build, make_checker, make_executor, order

from buildsys.errors import StageError
from buildsys.execution.freshness import explain


def test_the_record_of_a_target_is_there_while_it_is_up_to_date(root: Path) -> None:
    build(root)
    record = make_checker(root).up_to_date_record(actions()[EXPORT])
    assert record is not None
    assert (record.target, record.status) == (EXPORT, "passed")
    assert make_checker(root).up_to_date_record(actions(opset=18)[EXPORT]) is None
    build(root, actions(opset=18))
    later = make_checker(root).up_to_date_record(actions(opset=18)[EXPORT])
    assert later is not None
    assert later.key != record.key


def test_an_up_to_date_target_that_is_unavailable_has_its_reason(root: Path) -> None:
    order(root, ENGINE, "unavailable")
    build(root)
    found = make_checker(root).check(actions()[ENGINE])
    assert (found.up_to_date, found.unavailable) == (True, "no GPU")
    passed = make_checker(root).check(actions()[EXPORT])
    assert (passed.up_to_date, passed.unavailable) == (True, None)


def test_a_stale_target_is_unavailable_only_if_it_is_required(root: Path) -> None:
    order(root, ENGINE, "unavailable")
    build(root)
    for required, reason in ((False, None), (True, "no GPU")):
        found = make_checker(root).check(actions(opset=18, required=required)[ENGINE])
        assert not found.up_to_date or not required
        assert found.unavailable == ("no GPU" if found.up_to_date else reason)
    stale = make_checker(root).check(actions(required=True)[EXPORT])
    assert stale.unavailable is None


def test_a_noisy_measurement_is_up_to_date_and_no_failure(root: Path) -> None:
    build(root)
    order(root, BENCH, "noise")
    graph = actions(duration=2.0)
    build(root, graph)
    found = make_checker(root).check(graph[BENCH])
    assert (found.up_to_date, found.noise, found.failure) == (True, "a busy neighbor", None)
    (explained,) = explain([found], {}).values()
    assert (explained.state, explained.noise) == ("fresh", "a busy neighbor")
    changed = make_checker(root).check(actions(duration=3.0)[BENCH])
    assert [str(reason) for reason in changed.reasons] == ["duration: 2.0 → 3.0"]
    assert changed.noise is None


def test_a_noisy_repetition_leaves_the_steady_measurement_to_be_restored(root: Path) -> None:
    build(root)
    order(root, BENCH, "noise")
    executor, _ = make_executor(root)
    executor.run(BENCH, force=True)
    executor.close()
    found = make_checker(root).check(actions()[BENCH])
    assert (found.up_to_date, found.noise, found.failure) == (False, "a busy neighbor", None)
    assert found.untrusted is False


def test_outputs_of_a_run_that_broke_are_still_compared(root: Path) -> None:
    build(root)
    (root / f"do-{EXPORT}").write_text("break")
    with pytest.raises(StageError):
        make_executor(root, actions(opset=18))[0].run(EXPORT)
    (root / "build/m/export/model.onnx").write_text("edited")
    found = make_checker(root).check(actions(opset=18)[EXPORT])
    assert [path for _, path in found.outputs] == ["m/export/model.onnx"]
