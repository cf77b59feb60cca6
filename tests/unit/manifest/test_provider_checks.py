"""Errors in the execution providers of an ONNX Runtime engine, with their positions."""

from itertools import cycle

import pytest

from buildsys.backends.onnxruntime.execution_providers import PROVIDERS, engine_providers
from buildsys.system.backend_registry import describe_backend

NET = "configs/models/net.yaml"
ORT = describe_backend("onnxruntime")


def write(project, providers, more=""):
    project.write(NET, f"""\
        model: net
        source: {{torchvision: resnet18}}
        inputs: {{x: {{shape: [batch, 3, 8, 8]}}}}
        dims: {{batch: {{min: 1, opt: 2, max: 8}}}}
        engines:
          - {{backend: onnxruntime, name: e, providers: {providers}{more}}}
        """)  # fmt: skip


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_and_option_is_accepted(project, name):
    choices = PROVIDERS[name].choices
    options = ", ".join(
        f"{option}: {choices[option][0] if option in choices else value}"
        for option, value in zip(PROVIDERS[name].options, cycle(("1", "true", "text")))
    )
    write(project, f"[{{{name}: {{{options}}}}}]")
    (model,) = project.load().models.values()
    (engine,) = model.data["engines"]
    (wanted,) = engine_providers(engine)
    assert wanted.name == name
    assert set(wanted.options) == set(PROVIDERS[name].options)
    assert all(isinstance(value, str) for value in wanted.options.values())


def test_names_of_engine_json_are_known():
    titles = {"provider": "cpu", "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
    assert [wanted.name for wanted in engine_providers(titles)] == ["cuda", "cpu"]
    assert ORT.runs_on_gpu(titles)
    assert not ORT.runs_on_gpu({"provider": "cpu", "providers": ["CPUExecutionProvider"]})


@pytest.mark.parametrize("providers", [["gpu"], [7], [{}], [{"cuda": 3}], "cuda", {"cuda": {}}])
def test_the_description_accepts_anything(providers):
    assert ORT.runs_on_gpu({"providers": providers}) is (providers == [{"cuda": 3}])


def test_plugins_and_libraries_are_in_the_key():
    options = {"providers": ["openvino", {"tensorrt": {}}, "cpu"]}
    tools = ORT.run_tools(options)
    assert tools[:2] == ("onnxruntime-ep-openvino", "tensorrt")
    assert "nvidia-cudnn-cu12" in tools
    assert ORT.run_tools({"provider": "cpu"}) == ()
