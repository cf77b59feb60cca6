"""Every name of TensorRT in the backend exists in its versions."""

import ast
from functools import cache
from typing import get_args

import pytest
from trt_double import RecordingTensorRt
from trt_names import MODULES, PACKAGE, Use, missing, unclassified, uses

from buildsys.backends.tensorrt import library, options
from buildsys.backends.tensorrt_rtx import options as rtx_options

WORDS = {
    "DataType": library.DTYPES,
    "TensorFormat": get_args(options.TensorFormat),
    "BuilderFlag": (*get_args(options.OtherFlag), *get_args(rtx_options.RtxFlag), "obey", "prefer"),
    "MemoryPoolType": library.POOLS,
    "TacticSource": get_args(options.TacticSource),
    "ComputeCapability": get_args(rtx_options.ComputeCapability),
    "TilingOptimizationLevel": ("none", "fast", "moderate", "full"),
    "HardwareCompatibilityLevel": ("none", "ampere_plus", "same_compute_capability"),
    "ProfilingVerbosity": ("layer_names_only", "none", "detailed"),
}


@cache
def uses_of(module: str) -> tuple[Use, ...]:
    return tuple(uses((PACKAGE / module).read_text(), module))


@pytest.mark.parametrize("module", MODULES)
def test_every_name_exists_in_its_versions(module: str) -> None:
    wrong = [
        f"{use.where}: {use.owner}.{use.name} is not in {', '.join(missing(use))}"
        for use in uses_of(module)
        if missing(use)
    ]
    assert wrong == []


@pytest.mark.parametrize("module", MODULES)
def test_every_attribute_of_tensorrt_has_a_known_owner(module: str) -> None:
    assert unclassified((PACKAGE / module).read_text(), module) == []


@pytest.mark.parametrize(("enumeration", "words"), WORDS.items())
def test_every_word_of_manifests_is_a_value_of_some_version(
    enumeration: str, words: tuple[str, ...]
) -> None:
    doubles = [RecordingTensorRt(generation) for generation in library.GENERATIONS]
    lacking = [
        word
        for word in words
        if all(library.find_value(made.library, enumeration, word) is None for made in doubles)
    ]
    assert lacking == []


@pytest.mark.parametrize(
    ("source", "lacking"),
    [
        ("def f(library, config):\n    config.no_such_field = 1", list(library.GENERATIONS)),
        ("def f(library):\n    return library.trt.NoSuchClass", list(library.GENERATIONS)),
        ("def f(library, config):\n    config.int8_calibrator = 1", [library.TRT_11, library.RTX]),
        ("def f(library, config):\n    if library.generation in UNTIL_10:\n"
         "        config.int8_calibrator = 1", []),
        ('ONLY = FEATURES["calibrators"]\ndef f(engine):\n    engine.device_memory_size_v2',
         [library.TRT_8]),
        ("def f(library, engine):\n    if library.generation in UNTIL_10:\n        def g():\n"
         "            engine.device_memory_size_v2\n        g()",
         [library.TRT_8]),
        ("ONLY = SINCE_10\ndef f(guard):\n    guard.trt.IPluginV3", []),
        ("def f(library, engine):\n    if library.generation == TRT_8:\n        return 1\n"
         "    return engine.device_memory_size_v2", []),
        ("def f(library, config):\n    if library.generation in UNTIL_10 and config:\n"
         "        config.int8_calibrator = 1\n    else:\n        config.int8_calibrator = 2",
         [library.TRT_11, library.RTX]),
    ],
)  # fmt: skip
def test_a_planted_wrong_name_is_found(source: str, lacking: list[str]) -> None:
    found: list[Use] = list(uses(source, "planted.py"))
    assert [each for use in found for each in missing(use)] == lacking


def test_a_planted_attribute_of_an_unknown_owner_is_found() -> None:
    assert unclassified("def f(thing):\n    thing.int8_calibrator = 1", "planted.py") == [
        "planted.py:2: thing.int8_calibrator"
    ]


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"version_adapter.py", "library.py"}))
def test_only_the_adapter_depends_on_versions(module: str) -> None:
    tree = ast.parse((PACKAGE / module).read_text())
    attributes = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    looked = [
        text
        for text in attributes
        if text.endswith((".generation", "library.version", ".__version__"))
    ]
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert looked == []
    assert not names & {*(f"TRT_{number}" for number in (8, 10, 11)), "RTX", "UNTIL_10"}
