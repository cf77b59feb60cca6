"""Errors in toolchains and their use by engines."""

PROJECT = "configs/project.yaml"
GOOD = "toolchains: {trt86: {python: /opt/trt86/bin/python, env: {LD_LIBRARY_PATH: /opt/lib}}}\n"
ENGINE = "engines: [{backend: onnxruntime, name: a, toolchain: %s}]\n"


def test_an_engine_with_an_unknown_toolchain(project):
    project.write(PROJECT, GOOD)
    project.model(ENGINE % "trt68")
    (error,) = project.errors()
    place = "configs/models/net.yaml:6:54: engines.0.toolchain"
    assert error == f'{place}: unknown toolchain "trt68"; did you mean trt86?'


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
