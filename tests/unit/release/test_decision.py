"""The choice among engines, compared with an independent oracle on 100 machines."""

import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from release_oracle import choose

import buildsys
from buildsys.errors import EngineError
from buildsys.release.decision import Wishes, decide
from buildsys.release.index import RULE_FIELDS, SCHEMA, Index, read_index
from buildsys.system.backend_registry import Machine

AVX2 = ["avx", "avx2", "fma", "f16c"]
AVX512 = [*AVX2, "avx512f", "avx512vl", "avx512_vnni"]
XEON, EPYC, ARM, M2 = "Intel Xeon", "AMD EPYC", "Neoverse-V2", "Apple M2"
GPUS = {"NVIDIA A100": "8.0", "NVIDIA H200": "9.0", "NVIDIA T4": "7.5", "NVIDIA L40S": "8.9"}
# backend -> versions that may be built with or installed
VERSIONS = {
    "onnxruntime": ("1.24.1", "1.32.0"), "openvino": ("2025.4.0", "2026.4.1"),
    "tensorrt": ("8.6.1.6", "10.9.0.34", "10.16.1.11", "10.16.1.12", "11.4.0.1"),
    "torch": ("2.9.0", "2.14.0", "2.14.1"), "executorch": ("1.0.0", "1.3.0"),
    "ncnn": ("1.0.20260101",), "coremltools": ("9.0",),
}  # fmt: skip


def make_index(seed: int) -> dict[str, Any]:
    """Make an index of 24 engines of all backends."""
    chance = random.Random(seed)
    variants = []
    for number in range(24):
        module = chance.choice([*VERSIONS, "onnxruntime", "tensorrt", "tensorrt"])
        backend = "coreml" if module == "coremltools" else module
        both = module in ("onnxruntime", "torch")
        on_gpu = module == "tensorrt" or (both and chance.random() < 0.3)
        built = {module: chance.choice(VERSIONS[module]), "platform": "Linux x86_64"}
        if on_gpu:
            gpu = chance.choice([*GPUS])
            built |= {"gpu": gpu, "compute_capability": GPUS[gpu]}
            built["cuda_runtime"] = chance.choice(["11", "12", "13"])
            devices = chance.sample([*GPUS], chance.randint(0, 2))
        else:
            built |= {"cpu": XEON, "instructions": chance.choice([AVX2, AVX512])}
            devices = chance.sample([XEON, EPYC], chance.randint(0, 2))
        portability: dict[str, Any] = {}
        if chance.random() < 0.3:
            portability["version_compatible"] = True
        if chance.random() < 0.3:
            portability["hardware_compatibility"] = "ampere_plus"
        kind = "gpu" if on_gpu else "cpu"
        variants.append(
            {
                "model": "net", "engine": f"e{number}", "backend": backend,
                "precision": chance.choice(["fp32", "fp16", "int8"]),
                "files": {"engine.json": {"bytes": 2, "sha256": "0" * 64}},
                "rules": {
                    "built_with": built,
                    "portability": portability,
                    "precision_shares": {"weights": {chance.choice(["int8", "float32"]): 1.0}},
                    "specification": 8,
                    "settings": {
                        "provider": "cuda" if on_gpu else "cpu",
                        "graph_optimization_level": chance.choice(["all", "extended"]),
                        "compiled": chance.random() < 0.5,
                        "device": "CPU",
                        "mode": "compile" if on_gpu else "aot_inductor",
                    },
                },
                "measured": [
                    {
                        "device": {"kind": kind, "name": name},
                        "p50_ms": chance.choice([0.5, 1.0, 2.0, 7.5]),
                    }
                    for name in devices
                ],
                "error": chance.choice([None, 1e-6, 1e-3]),
            }
        )  # fmt: skip
    return {"schema": SCHEMA, "release": "1.0", "variants": variants}


def make_machine(seed: int) -> dict[str, Any]:
    """Describe a machine: a server, a desktop or a Mac, with some libraries."""
    chance = random.Random(1000 + seed)
    platform, cpu, sets = chance.choice(
        [("Linux x86_64", XEON, AVX512), ("Linux x86_64", EPYC, AVX2)] * 3
        + [("Linux aarch64", ARM, ["asimd"]), ("Darwin arm64", M2, ["asimd"])]
    )
    gpus = chance.sample([*GPUS], chance.randint(0, 2)) if platform == "Linux x86_64" else []
    driver = chance.choice(["11.4", "12.4", "13.0"])
    libraries = {
        module: chance.choice(versions)
        for module, versions in VERSIONS.items()
        if chance.random() < 0.75
    }
    return {
        "platform": platform, "cpu": cpu, "instructions": sets,
        "macos": chance.choice(["13.1", "15.0"]) if platform.startswith("Darwin") else "",
        "gpus": [
            {"name": name, "compute_capability": GPUS[name], "driver": "1", "cuda_driver": driver}
            for name in gpus
        ],
        "libraries": libraries,
        "cuda": {"tensorrt": chance.choice(["12", "13"])} if chance.random() < 0.5 else {},
        "providers": ["CPUExecutionProvider"]
        + (["CUDAExecutionProvider"] if chance.random() < 0.5 else []),
    }  # fmt: skip


def machine_of(description: dict[str, Any]) -> Machine:
    lists = {name: tuple(description[name]) for name in ("instructions", "gpus", "providers")}
    return Machine(**{**description, **lists})


def index_of(document: dict[str, Any]) -> Index:
    return read_index(json.dumps(document).encode(), document["release"], None)


def test_100_machines_choose_as_the_oracle_does() -> None:
    chance, seen, first = random.Random(7), Counter[str](), Counter[str]()
    for seed in range(100):
        document, description = make_index(seed), make_machine(seed)
        wishes: dict[str, Any] = chance.choice(
            [{}, {}, {}, {"precision": "fp16"}, {"backend": "tensorrt"}, {"max_error": 1e-4}]
        )
        decision = decide(index_of(document), machine_of(description), Wishes(**wishes))
        ranked = [choice.variant.name for choice in decision.choices]
        refused = {
            refusal.variant.name: sorted(reason.kind for reason in refusal.reasons)
            for refusal in decision.refusals
        }
        assert (ranked, refused) == choose(document, description, wishes), seed
        seen.update(kind for kinds in refused.values() for kind in kinds)
        first.update(choice.variant.backend for choice in decision.choices)
    # nothing of this is compared in vain
    kinds = ["library", "version", "platform", "processor", "gpu", "driver", "request"]
    assert {*kinds, "compute capability"} == {*seen}
    assert min(seen.values()) >= 10, seen
    assert {*first} == {"coreml", *VERSIONS} - {"coremltools"}


def test_an_index_has_all_fields_of_records_that_rules_read() -> None:
    package = Path(buildsys.__file__).parent
    files = [*package.glob("backends/*/description.py"), *package.glob("system/compatibility.py")]
    text = "".join(file.read_text() for file in [*files, *package.glob("backends/*/compatib*.py")])
    read = {*re.findall(r"record\.(?:map|figures\.get)\(\"(\w+)\"\)", text)}
    assert read == {*RULE_FIELDS, "plugins"}  # their files are checked after the download


def test_the_decision_does_not_depend_on_the_order_of_the_index() -> None:
    document, machine = make_index(1), machine_of(make_machine(1))
    decision = decide(index_of(document), machine)
    document["variants"].reverse()
    other = decide(index_of(document), machine)
    assert [c.variant.name for c in decision.choices] == [c.variant.name for c in other.choices]
    assert [r.variant.name for r in decision.refusals] == [r.variant.name for r in other.refusals]


def test_a_cpu_machine_and_a_gpu_choose_differently_and_say_why() -> None:
    document = make_index(0)
    cpu, gpu = document["variants"][:2]
    no_layout = {"provider": "cpu", "graph_optimization_level": "extended"}
    cpu |= {"engine": "ort-cpu", "backend": "onnxruntime", "measured": [
        {"device": {"kind": "cpu", "name": EPYC}, "p50_ms": 8.0}]}  # fmt: skip
    cpu["rules"] |= {"settings": no_layout, "precision_shares": {}}
    cpu["rules"]["built_with"] = {"onnxruntime": "1.32.0", "platform": "Linux x86_64"}
    gpu |= {"engine": "trt-fp16", "backend": "tensorrt", "measured": [
        {"device": {"kind": "gpu", "name": "NVIDIA H200"}, "p50_ms": 0.5}]}  # fmt: skip
    gpu["rules"] |= {"portability": {}, "settings": {}}
    gpu["rules"]["built_with"] = {
        "tensorrt": "8.6.1.6", "gpu": "NVIDIA H200", "compute_capability": "9.0",
        "cuda_runtime": "12", "platform": "Linux x86_64",
    }  # fmt: skip
    index = index_of({**document, "variants": [cpu, gpu]})
    server = Machine("Linux x86_64", EPYC, tuple(AVX2), libraries={"onnxruntime": "1.32.0"},
                     providers=("CPUExecutionProvider",))  # fmt: skip
    decision = decide(index, server)
    assert [choice.variant.engine for choice in decision.choices] == ["ort-cpu"]
    assert decision.choices[0][1:] == (8.0, EPYC, True)
    (refusal,) = decision.refusals
    assert "it needs an NVIDIA GPU, but no NVIDIA driver is installed; run it on a GPU of " in str(
        refusal.reasons[1]
    )
    h200 = {
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "driver": "580",
        "cuda_driver": "13.0",
    }
    with_gpu = Machine("Linux x86_64", EPYC, tuple(AVX2), gpus=(h200,),
                       libraries={"onnxruntime": "1.32.0", "tensorrt": "8.6.1.6"},
                       providers=("CPUExecutionProvider",))  # fmt: skip
    choices = decide(index, with_gpu).choices
    assert [choice.variant.engine for choice in choices] == ["trt-fp16", "ort-cpu"]


def test_a_release_of_several_models_needs_a_name() -> None:
    document, machine = make_index(1), machine_of(make_machine(1))
    document["variants"][0]["model"] = "other"
    with pytest.raises(EngineError, match=r"has several models; name one of net, other"):
        decide(index_of(document), machine)
    with pytest.raises(EngineError, match=r"has no model 'nett'; name one of net, other"):
        decide(index_of(document), machine, Wishes(model="nett"))
    decision = decide(index_of(document), machine, Wishes(model="other"))
    assert len(decision.choices) + len(decision.refusals) == 1


ODD = (5, True, None, "9" * 5000, "\u00b2", "8.6", [], [{}], [None, 5], {}, {"a": [1]})
FIELDS = {
    "built_with": (*VERSIONS, "platform", "compute_capability", "cuda_runtime", "instructions"),
    "settings": ("provider", "providers", "graph_optimization_level", "compiled", "ep_context"),
    "portability": ("compute_capabilities", "hardware_compatibility", "version_compatible"),
    "precision_shares": ("weights",),
    "provider_libraries": ("tensorrt",),
    "specification": (),
}


@pytest.mark.parametrize("field", FIELDS)
def test_odd_rules_of_others_break_no_choice(field: str) -> None:
    """Each value of each field that a rule reads, replaced by something else."""
    variants = {v.backend: v for n in range(4) for v in index_of(make_index(n)).variants}
    libraries = {module: versions[0] for module, versions in VERSIONS.items()}
    gpu = {"name": "x", "compute_capability": "9.0", "cuda_driver": "13.0"}
    linux = Machine("Linux x86_64", instructions=tuple(AVX2), gpus=(gpu,), libraries=libraries)
    for odd in ODD:
        for name in ("", *FIELDS[field]):
            changed = tuple(
                replace(v, rules={**v.rules, field: {**v.rules.get(field, {}), name: odd}})
                if name
                else replace(v, rules={**v.rules, field: odd})
                for v in variants.values()
            )
            for machine in (linux, replace(linux, platform="Darwin arm64", macos="15.1")):
                decision = decide(Index("1.0", changed), machine)
                assert len(decision.choices) + len(decision.refusals) == len(VERSIONS)
