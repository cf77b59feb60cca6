"""Errors in toolchains and their use by engines."""

from __future__ import annotations

import pytest

PROJECT = "configs/project.yaml"
GOOD = "toolchains: {trt86: {python: /opt/trt86/bin/python, env: {LD_LIBRARY_PATH: /opt/lib}}}\n"
ENGINE = "engines: [{backend: onnxruntime, name: a, toolchain: %s}]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("toolchains: [trt86]\n", "1:13: toolchains: expected a map, found a list"),
        (
            "toolchains: {trt86: /opt/python}\n",
            '1:21: toolchains.trt86: expected a map, found "/opt/python"',
        ),
        (
            "toolchains: {trt86: {python: a, evn: {}}}\n",
            "1:33: toolchains.trt86.evn: unknown field; did you mean env?",
        ),
        (
            "toolchains: {trt86: {python: 3}}\n",
            "1:30: toolchains.trt86.python: expected a string, found 3",
        ),
        (
            'toolchains: {trt86: {python: " "}}\n',
            '1:30: toolchains.trt86.python: " " is not a path',
        ),
        (
            "toolchains: {trt86: {python: a, env: {B: 4}}}\n",
            "1:42: toolchains.trt86.env.B: expected a string, found 4",
        ),
        (
            "toolchains: {trt86: {python: a, env: {B-C: x}}}\n",
            "the name of an environment variable such as",
        ),
        ("toolchains: {a b: {python: a}}\n", "a name of letters, digits"),
        (
            "toolchains: {trt-8: {python: a}, trt.8: {python: a}}\n",
            "1:34: toolchains.trt.8: trt.8 and trt-8 share the environment variable"
            " BUILDSYS_TOOLCHAIN_TRT_8; rename one of them",
        ),
        ("toolchain: {}\n", "1:1: toolchain: unknown field; did you mean toolchains?"),
    ],
)
def test_an_invalid_toolchain_is_one_line(project, text, expected):
    project.write(PROJECT, text)
    project.model()
    (error,) = project.errors()
    assert error.startswith(PROJECT)
    assert expected in error


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "trt68",
            'configs/models/net.yaml:6:54: engines.0.toolchain: unknown toolchain "trt68"; did '
            "you mean trt86?",
        ),
        ("torch", 'unknown toolchain "torch"; toolchains: trt86'),
        ("[trt86]", "engines.0.toolchain: expected a string, found a list"),
    ],
)
def test_an_engine_with_an_unknown_toolchain(project, name, expected):
    project.write(PROJECT, GOOD)
    project.model(ENGINE % name)
    (error,) = project.errors()
    assert expected in error


def test_an_unknown_toolchain_without_any_declared(project):
    project.model(ENGINE % "trt86")
    (error,) = project.errors()
    assert error.endswith('unknown toolchain "trt86"; declare it in configs/project.yaml')


def test_an_unused_preset_is_checked(project):
    project.write(PROJECT, GOOD)
    project.write("configs/engines.yaml", "trt: {backend: onnxruntime, toolchain: trt8}\n")
    project.model()
    (error,) = project.errors()
    assert error.startswith("configs/engines.yaml:1:40: trt.toolchain: unknown toolchain")
    assert error.endswith("did you mean trt86?")


def test_a_broken_project_file_is_reported_once(project):
    project.write(PROJECT, "toolchains: {trt86: {}}\n")
    project.model(ENGINE % "trt86")
    assert len(project.errors()) == 1


def test_a_model_has_the_toolchains_of_its_engines(project):
    project.write(PROJECT, GOOD + "defaults: {engines: [{backend: onnxruntime, name: a}]}\n")
    project.model(
        "engines: [{use: ort-cpu, toolchain: trt86}, ort-cpu]\n".replace(
            "ort-cpu]", "{use: ort-cpu, name: b}]"
        )
    )
    project.model(name="plain")
    models = project.load().models
    written = {"trt86": {"python": "/opt/trt86/bin/python", "env": {"LD_LIBRARY_PATH": "/opt/lib"}}}
    assert models["net"].data["toolchains"] == written
    assert models["net"].origins["toolchains.trt86.python"] == "configs/project.yaml:1"
    assert "toolchains" not in models["plain"].data
    assert [engine["toolchain"] for engine in models["net"].data["engines"]] == ["trt86", None]


def test_python_is_required(project):
    project.write(PROJECT, "toolchains: {trt86: {}}\n")
    project.model()
    (error,) = project.errors()
    assert error.startswith("configs/project.yaml:1:")
    assert "toolchains.trt86.python" in error


def test_a_changed_interpreter_is_noticed(project):
    project.write(PROJECT, GOOD)
    project.model(ENGINE % "trt86")
    project.settle()
    project.load()
    project.write(PROJECT, GOOD.replace("/opt/trt86/bin", "/usr/bin"))
    assert project.load().models["net"].data["toolchains"]["trt86"]["python"] == "/usr/bin/python"
