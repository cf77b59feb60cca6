"""Errors in toolchains and their use by engines."""

from __future__ import annotations

import pytest

PROJECT = "configs/project.yaml"
GOOD = "toolchains: {trt86: {python: /opt/trt86/bin/python, env: {LD_LIBRARY_PATH: /opt/lib}}}\n"
ENGINE = "engines: [{backend: onnxruntime, name: a, toolchain: %s}]\n"


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


def test_a_changed_interpreter_is_noticed(project):
    project.write(PROJECT, GOOD)
    project.model(ENGINE % "trt86")
    project.settle()
    project.load()
    project.write(PROJECT, GOOD.replace("/opt/trt86/bin", "/usr/bin"))
    assert project.load().models["net"].data["toolchains"]["trt86"]["python"] == "/usr/bin/python"
