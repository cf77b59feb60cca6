"""Every command of docs/tutorials, run as printed; the exceptions are listed with their reasons."""

import os
from importlib.util import find_spec

from documented_commands import shown_commands
from example_pages import run_page
from project_folder import REPOSITORY, ProjectFolder

TUTORIALS = REPOSITORY / "docs" / "tutorials"
ONE_AFTER_THE_OTHER = ("first-engine", "own-model", "nightly")  # in one project
NOT_RUN = {
    "python3 -m venv .venv && . .venv/bin/activate": "the tests have an environment",
    "pip install /path/to/buildsys": "downloads 5.5 GB; .ci/wheel installs a wheel",
    "pip install '/path/to/buildsys[tensorrt]'": "downloads TensorRT",
    "pip install '/path/to/buildsys[openvino]'": "downloads OpenVINO",
    "pip install '/path/to/buildsys[evaluate]'": "downloads scikit-learn",
    "mkdir engines && cd engines": "the tests have a folder",
    "buildsys run resnet18 --input photo.jpg": "needs a photo",
    "buildsys build digits:trt-fp16": "needs a GPU",
    "BUILDSYS_STRICT=1 buildsys build digits": "needs a GPU",
    "buildsys nightly --rebuild engines": "needs a GPU",
    "buildsys build -j 4": "needs GPUs",
    "python -m buildsys.doctor trt-fp16/": "needs a GPU",
}
SLOW = {  # run with BUILDSYS_LONG_TESTS=1
    "buildsys doctor": "loads every library, 5 s",
    "buildsys build resnet18": "builds engines of 45 MB, 60 s",
    "buildsys explain engine:resnet18:ort-cpu": "needs that build",
    "buildsys explain resnet18": "needs that build",
}


def test_the_tutorials_work_one_after_the_other(empty_place: ProjectFolder) -> None:
    is_long = os.environ.get("BUILDSYS_LONG_TESTS") == "1"
    not_run = NOT_RUN if is_long else {**NOT_RUN, **SLOW}
    has_openvino = find_spec("openvino") and find_spec("nncf")
    for name in (*ONE_AFTER_THE_OTHER, *(["openvino"] if has_openvino else [])):
        assert run_page(empty_place, TUTORIALS / f"{name}.md", not_run)


def test_a_custom_operator(empty_place: ProjectFolder) -> None:
    assert empty_place.buildsys("init").code == 0
    assert run_page(empty_place, TUTORIALS / "custom-operator.md") == 2


def test_int8_with_confidence(empty_place: ProjectFolder) -> None:
    assert empty_place.buildsys("init").code == 0
    assert run_page(empty_place, TUTORIALS / "int8-with-confidence.md", NOT_RUN) == 13


def test_what_is_not_run_is_shown_and_every_page_is_tested() -> None:
    pages = {page.stem: page for page in TUTORIALS.glob("*.md")}
    alone = ("custom-operator", "int8-with-confidence", "openvino", "tensorrt")
    assert pages.keys() == {*ONE_AFTER_THE_OTHER, *alone}
    shown = {line for page in pages.values() for line in shown_commands(page)}
    assert shown >= NOT_RUN.keys() | SLOW.keys()
    assert set(shown_commands(pages["tensorrt"])) <= NOT_RUN.keys() | SLOW.keys()
