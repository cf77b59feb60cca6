"""Errors in networks defined by hand, with their positions."""

import pytest

from buildsys.errors import ManifestErrors
from buildsys.project.plan import ProjectPlan

NET = "configs/models/net.yaml"
SOURCE = "{tensorrt: plugins/net.py:define, reference: {numpy: plugins/net.py:compute}}"
ENGINE = "{name: e, backend: tensorrt}"


@pytest.fixture
def errors(project):
    project.write("plugins/net.py", "def define(network, trt): ...\ndef compute(x): ...\n")

    def found(source: str = SOURCE, engine: str = ENGINE, section: str = "") -> list[str]:
        lines = (
            "model: net", f"source: {source}", "inputs: {x: {shape: [batch, 4]}}",
            "dims: {batch: {min: 1, opt: 2, max: 8}}", f"engines: [{engine}]", section, "",
        )  # fmt: skip
        project.write(NET, "\n".join(lines))
        return errors_of(project)

    return found


def errors_of(project) -> list[str]:
    try:
        project.load()
    except ManifestErrors as errors:
        return str(errors).splitlines()
    return []


@pytest.mark.parametrize(
    "engine",
    [ENGINE, "{name: e, backend: tensorrt_rtx}", "{name: e, backend: tensorrt, refit: true}"],
)
def test_engines_of_tensorrt_need_neither_a_graph_nor_calibration(errors, engine) -> None:
    assert errors(engine=engine) == []
    assert errors(engine="{name: e, backend: tensorrt, precision: int8}") == []


def test_sections_of_shared_defaults_have_no_effect(project, errors) -> None:
    assert errors() == []
    alone = project.load().models["net"].data
    sections = (
        "export: {opset: 18}", "simplify: {tool: none}", "surgery: [{rename: {x: z}}]",
        "calibration: {batches: 2}", "convert: {tool: autocast, exclude: [a]}",
    )  # fmt: skip
    project.write("configs/project.yaml", f"defaults: {{{', '.join(sections)}}}")
    assert errors() == []
    loaded = project.load()
    assert loaded.models["net"].data == alone
    assert {action.stage for action in ProjectPlan(loaded.models).values()} == {
        "reference", "engine", "verify", "bench", "report",
    }  # fmt: skip
