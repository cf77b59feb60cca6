"""Targets of commands: options, inputs, outputs and dependencies."""

from typing import Any

from planning import plan_of

from buildsys.plan.action import Action, FileRef

BUILD = {
    "name": "build",
    "run": ("make", "{inputs.script}", "{outputs.model}"),
    "inputs": {"script": "tools/make.py", "weights": "weights/", "list": "names.txt"},
    "outputs": {"model": "model/", "log": "out/log.txt"},
    "env": {"LEVEL": "1", "TOKEN": None},
}
SPEED = {
    "name": "speed",
    "run": ("time", "{inputs.model}", "{figures}"),
    "inputs": {"model": "{commands.build.model}"},
}
NETWORK = {
    "source": {"torchvision": "resnet18"},
    "inputs": {"x": {"shape": ("batch", 3, 8, 8)}},
    "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
    "engines": ({"backend": "onnxruntime", "name": "ort"},),
}


def plan(*commands: dict[str, Any], **sections: Any) -> dict[str, Action]:
    manifest = {"model": "m", "commands": commands, **sections}
    return plan_of(manifest, toolchains={"other": {"python": "/opt/python", "env": {"A": "1"}}})


def test_a_model_of_commands_has_no_other_targets() -> None:
    found = plan(BUILD, SPEED)
    assert [*found] == ["command:m:build", "command:m:speed", "report:m"]
    manifest = found["report:m"].options["manifest"]
    assert "source" not in manifest
    assert "timeout" not in manifest["commands"][0]
    assert found["report:m"].after == ("command:m:build", "command:m:speed")


def test_inputs_and_outputs() -> None:
    build, speed = (plan(BUILD, SPEED)[f"command:m:{name}"] for name in ("build", "speed"))
    assert build.sources == ("tools/make.py",)
    assert build.reads == ("weights/", "names.txt", "$TOKEN")
    assert build.options["env"] == {"LEVEL": "1"}
    listing = FileRef("m/command/build/model.files", folder="m/command/build/model")
    assert build.outputs == {
        "output.model": listing,
        "output.log": FileRef("m/command/build/out/log.txt"),
        "result": FileRef("m/command/build/command.json"),
    }
    assert build.owns("m/command/build/model/a/b")
    assert not build.owns("m/command/build/models")
    assert (speed.inputs["input.model"].path, speed.inputs["input.model"].folder) == (
        listing.path, listing.folder,
    )  # fmt: skip
    assert speed.after == (build.target,)
    assert speed.options["listed"] == ["model"]


def test_outputs_of_a_network() -> None:
    inputs = {"g": "{simplified}", "e": "{engines.ort}", "x": "{golden.min}", "o": "{exported}"}
    command = {"name": "c", "run": "x", "inputs": inputs, "outputs": {"y": "y"}}
    found = plan(command, **NETWORK)
    action = found["command:m:c"]
    assert action.after == ("simplify:m", "engine:m:ort", "reference:m", "export:m")
    assert action.order == ("verify:m:ort",)
    paths = {role: ref.path for role, ref in action.inputs.items()}
    assert paths["input.g"] == "m/simplify/model.onnx"
    assert paths["input.g.data"] == "m/simplify/model.onnx.data"
    assert paths["input.e"] == "m/engine/ort/engine.onnx"
    assert paths["input.e.result"] == "m/engine/ort/engine.json"
    assert paths["input.x"] == "m/reference/min.npz"
    assert [*found][-2:] == ["command:m:c", "report:m"]
    without = plan(**NETWORK)
    others = [target for target in found if target not in ("command:m:c", "report:m")]
    assert [found[target] for target in others] == [without[target] for target in others]


def test_all_other_fields() -> None:
    own: dict[str, Any] = {
        **SPEED,
        "inputs": {"model": "{commands.build.model}", "log": "{commands.build.log}"},
        "device": "cuda", "measures": True, "required": True, "timeout": "30s",
        "limits": {"p50_ms": {"max": 5}}, "versions": ["numpy"], "probes": [["nvcc", "--version"]],
        "toolchain": "other", "needs": {"labels": ["lab"]},
    }  # fmt: skip
    planned = plan(BUILD, own, timeout={"command": "1min"})
    build, speed = planned["command:m:build"], planned["command:m:speed"]
    assert {name: speed.options[name] for name in speed.options if name != "limits"} == {
        "run": ["time", "{inputs.model}", "{figures}"], "files": {}, "outputs": {},
        "references": {"model": "commands.build.model", "log": "commands.build.log"},
        "listed": ["model"], "env": {}, "pass": [], "versions": ["numpy"], "device": "cuda",
    }  # fmt: skip
    assert speed.options["limits"].keys() == {"p50_ms"}
    assert build.options["pass"] == ["TOKEN"]
    assert build.options["files"] == BUILD["inputs"]
    assert build.options["outputs"] == BUILD["outputs"]
    assert "limits" not in build.options
    assert speed.inputs["input.log"] == FileRef("m/command/build/out/log.txt", optional=True)
    assert speed.inputs["input.model"].optional
    assert (speed.timeout_s, build.timeout_s) == (30.0, 60.0)
    assert (speed.probes, build.probes) == ((("nvcc", "--version"),), ())
    assert (speed.tools, build.tools) == (("python", "numpy"), ("python",))
    assert (speed.devices, build.devices) == (("cpu", "cores", "gpu"), ())
    assert (speed.server, speed.required, build.required) == ("bare", True, False)
    assert (speed.measures, speed.exclusive, speed.alone_on_gpu) == (True, False, True)
    assert (build.measures, build.exclusive, build.alone_on_gpu) == (False, False, False)
    assert speed.needs.labels == ("lab",)
    assert speed.toolchain is not None
    assert speed.toolchain.name == "other"
    on_cpu = plan(BUILD, {**own, "device": "cpu"})["command:m:speed"]
    assert (on_cpu.exclusive, on_cpu.devices) == (True, ("cpu", "cores"))
