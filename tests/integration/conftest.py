"""Checks of every stage result against the type of its result file; faster exports."""

import json
import sys
from collections.abc import Callable, Iterator

import pytest
from torchlib_once import parse_torchlib_once

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.report.key_figures import result_type
from buildsys.report.result_files import parse
from buildsys.stages.table import STAGES
from buildsys.workers.job import Job, StageResult
from buildsys.workers.result_file import format_figures

Run = Callable[[Job], StageResult]


def pytest_collection_finish() -> None:
    """Set the threads; let tests be older than the stages, as libraries are in a worker.

    Else each reference reads the modules of all tests for conditions on sizes: half a second.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # with those of other processes, more would wait for each other
    name = "buildsys.stages.reference.stage"
    if name in sys.modules:
        sys.modules[name] = sys.modules.pop(name)  # now the last one


@pytest.fixture(scope="session", autouse=True)
def _torchlib_parsed_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        parse_torchlib_once(patch)
        yield


@pytest.fixture(autouse=True)
def _typed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in STAGES:
        module = sys.modules.get(f"{stage.package}.stage")
        if module is not None and stage.result:
            monkeypatch.setattr(module, "run", _checked(module.run, result_type(stage.name)))


def _checked(run: Run, kind: type[ResultHeader]) -> Run:
    def checked(job: Job) -> StageResult:
        result = run(job)
        content = json.loads(format_figures(result.figures))
        assert parse(content, kind) == content, f"{kind.__name__} does not fit"
        return result

    return checked
