"""The summary of an upgrade: pins, engines to hold back, Markdown."""

import pytest

from buildsys.upgrade.shadow import distribution_of, is_package
from buildsys.upgrade.summary import Upgrade, write_pins
from buildsys.upgrade.verdicts import LESS_PRECISE, SLOWER, EngineChange

SPECS = {
    "m:ort": {"backend": "onnxruntime"},
    "m:old": {"backend": "onnxruntime", "toolchain": "ort130"},
    "n:ov": {"backend": "openvino"},
}


def upgrade(*held: str) -> Upgrade:
    engines = []
    for name in SPECS:
        engines.append(EngineChange(*name.split(":")))
        if name in held:
            engines[-1].add(SLOWER, "7 % slower | than before")
    return Upgrade({"onnxruntime": ("1.31.0", "1.32.0"), "numpy": ("2.0", "2.1")}, engines)


def test_pins_replace_versions_and_keep_the_rest() -> None:
    text = "numpy==2.0\nOnnxRuntime==1.31.0  # pinned\nonnxruntime-genai==0.9\ntorch[x] == 2.9"
    assert write_pins(text, ["onnxruntime==1.32.0", "torch==2.10", "ml-dtypes==0.5"]) == (
        "numpy==2.0\nOnnxRuntime==1.32.0  # pinned\nonnxruntime-genai==0.9\n"
        "torch[x] ==2.10\nml-dtypes==0.5\n"
    )
    assert write_pins("ml_dtypes===0.4 ; python_version > '3'\n", ["ml-dtypes==0.5"]) == (
        "ml_dtypes==0.5 ; python_version > '3'\n"
    )
    assert write_pins("", ["a==1"]) == "a==1\n"


def test_a_held_engine_gets_a_toolchain_with_the_old_version() -> None:
    lines = list(upgrade("m:ort").instructions(SPECS))
    chain = "onnxruntime-1.31.0"
    python = f".toolchains/{chain}/bin/python"
    assert lines == [
        "m:ort: slower",
        f"$ python -m venv .toolchains/{chain}",
        f"$ {python} -m pip install numpy onnxruntime==1.31.0",
        f"configs/project.yaml: toolchains: {{{chain}: {{python: {python}}}}}",
        f"m, engine ort: toolchain: {chain}",
    ]
    assert list(upgrade("m:old").instructions(SPECS))[-1].endswith("another toolchain than ort130")
    kept = "n:ov: keep onnxruntime==1.31.0 numpy==2.0 for the project, as no toolchain"
    slower, line = upgrade("n:ov").instructions(SPECS)
    assert (slower, line.startswith(kept)) == ("n:ov: slower", True)  # not by its library


def test_the_worst_engine_comes_first_in_the_markdown() -> None:
    result = upgrade("n:ov")
    result.engines[0].add(LESS_PRECISE, "relative error 1e-06 → 0.001")
    lines = result.markdown(SPECS).splitlines()
    title = "onnxruntime 1.31.0 → 1.32.0, numpy 2.0 → 2.1"
    assert lines[0] == f"# {title}: 1 precision lost, 1 slower, 1 unchanged"
    assert [line.split()[1] for line in lines[4:7]] == ["m:ort", "n:ov", "m:old"]
    assert "- `n:ov`: 7 % slower \\| than before" in lines
    document = result.as_json()
    assert (document["schema"], document["hold"]) == ("buildsys/upgrade/1", ["m:ort", "n:ov"])
    assert document["pins"] == ["onnxruntime==1.32.0", "numpy==2.1"]


@pytest.mark.parametrize(
    ("word", "distribution"),
    [
        ("onnxruntime==1.31.0", "onnxruntime"),
        ("ONNX_Runtime[x] == 1.31.0", "onnx-runtime"),
        ("openvino @ wheels/x.whl", "openvino"),
        ("wheels/onnxruntime_gpu-1.31.0-cp311-cp311-linux_x86_64.whl", "onnxruntime-gpu"),
    ],
)
def test_packages_are_told_from_models(word: str, distribution: str) -> None:
    assert is_package(word)
    assert distribution_of(word) == distribution


def test_models_and_toolchains_are_no_packages() -> None:
    assert not any(map(is_package, ("m", "m:ort", "trt86=/opt/python", "driver", "configs/m.yaml")))
