"""Errors in commands, and models without a network."""

from __future__ import annotations

import pytest

from buildsys.project.plan import ProjectPlan

MODEL = "configs/models/net.yaml"
FIRST = "{name: first, run: make, outputs: {model: model/}}"


def write(project, *commands: str, more: str = "") -> None:
    lines = "".join(f"  - {command}\n" for command in commands)
    project.write(MODEL, f"model: net\ncommands:\n{lines}{more}")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("{run: x, outputs: {a: b}}", "commands.0.name: required field is missing"),
        ("{name: a, outputs: {a: b}}", "commands.0.run: required field is missing"),
        ("{name: a, run: [], outputs: {a: b}}", "commands.0.run: expected at least 1 entry"),
        ('{name: a, run: "x \'y", outputs: {a: b}}', "commands.0.run: No closing quotation"),
        ("{name: a, run: x}", "commands.0: the command has no outputs and reports no figures"),
        (
            "{name: a, run: 'x {output.m}', outputs: {m: m/}}",
            "commands.0.run: {output.m} is not declared; did you mean outputs.m?",
        ),
        (
            "{name: a, run: [x, '{inputs.b}'], outputs: {m: m/}}",
            "commands.0.run.1: {inputs.b} is not declared",
        ),
        ("{name: a, run: x, outputs: {m: /m}}", '"/m" is not inside the working folder'),
        ("{name: a, run: x, outputs: {m: ../m}}", '"../m" is not inside the working folder'),
        ("{name: a, run: x, outputs: {m: .}}", '"." is not inside the working folder'),
        ("{name: a, run: x, outputs: {m: inputs/m}}", "inputs is a name of buildsys"),
        ("{name: a, run: x, outputs: {m: command.json}}", "command.json is a name of buildsys"),
        (
            "{name: a, run: x, outputs: {m: m/, n: m/n}}",
            'commands.0.outputs.n: m/n is also part of the output "m"; choose another',
        ),
        ("{name: a, run: x, outputs: {m: m/, n: m.files}}", "m.files is also part of the output"),
        ("{name: a, run: x, outputs: {m: command.log/x}}", "command.log is a name of buildsys"),
        (
            "{name: a, run: x, outputs: {m: m}, limits: {n: {max: 1}}}",
            "commands.0.limits: is about figures, and the command reports none",
        ),
        ("{name: a, run: x, outputs: {m: m}, measures: true}", "commands.0.measures: is about"),
        ("{name: a, run: 'x {figures}', limits: {n: {}}}", "limits.n: add min or max"),
        (
            "{name: a, run: 'x {figures}', limits: {n: {min: 2, max: 1}}}",
            "limits.n: min 2 is more than max 1",
        ),
        (
            "{name: a, run: x, outputs: {m: m}, inputs: {i: data/}}",
            "commands.0.inputs.i: folder data/ does not exist",
        ),
        (
            "{name: a, run: x, outputs: {m: m}, inputs: {i: data.txt}}",
            "commands.0.inputs.i: file data.txt does not exist",
        ),
        ("{name: a, run: x, outputs: {m: m}, inputs: {i: ../x}}", 'path "../x" leaves the project'),
        (
            "{name: a, run: x, outputs: {m: m}, inputs: {i: '{simplified}'}}",
            "{simplified} is of a network, and this model has no source",
        ),
        (
            "{name: a, run: x, outputs: {m: m}, inputs: {i: '{engines.ort}'}}",
            'there is no engine "ort" in this model',
        ),
        (
            "{name: a, run: x, outputs: {m: m}, inputs: {i: '{graph}'}}",
            'unknown reference "{graph}"; references: commands.NAME.OUTPUT, engines.NAME',
        ),
        (
            "{name: a, run: x, outputs: {m: m}, inputs: {i: '{commands.a.m}'}}",
            'commands.0.inputs.i: no earlier command is named "a"',
        ),
        ("{name: a, run: x, outputs: {m: m}, toolchain: t}", 'unknown toolchain "t"'),
        ("{name: a, run: x, outputs: {m: m}, timeout: soon}", "commands.0.timeout: expected a dur"),
        ("{name: a, run: x, output: {m: m}}", "commands.0.output: unknown field; did you mean"),
    ],
)
def test_a_wrong_command_is_one_error_at_its_place(project, command, expected):
    write(project, command)
    (error,) = project.errors()
    assert expected in error


def test_references_between_commands(project):
    second = "{name: second, run: x, outputs: {m: m}, inputs: {i: '{commands.first.modle}'}}"
    write(project, FIRST, second)
    (error,) = project.errors()
    assert 'the command "first" has no output "modle"; did you mean model?' in error
    write(project, FIRST, FIRST)
    (error,) = project.errors()
    assert 'commands.1.name: another command is named "first"' in error
    write(project, FIRST, second.replace("modle", "model"))
    commands = project.load().models["net"].data["commands"]
    assert commands[1]["inputs"] == {"i": "{commands.first.model}"}


def test_probes_are_lists_or_lines(project):
    write(project, "{name: a, run: x, outputs: {m: m}, probes: [[x, --version], x -v]}")
    (command,) = project.load().models["net"].data["commands"]
    assert command["probes"] == [["x", "--version"], ["x", "-v"]]


def test_one_line_is_split_without_a_shell(project):
    write(project, "{name: a, run: \"x 'a b' $HOME {outputs.m}\", outputs: {m: m}}")
    (command,) = project.load().models["net"].data["commands"]
    assert command["run"] == ["x", "a b", "$HOME", "{outputs.m}"]


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("engines: [{name: a, backend: onnxruntime}]", "engines"),
        ("inputs: {x: {shape: [1]}}", "inputs"),
        ("export: {opset: 18}", "export"),
        ("bench: {duration: 1s}", "bench"),
    ],
)
def test_a_model_without_source_has_commands_only(project, section, name):
    write(project, FIRST, more=f"{section}\n")
    (error,) = project.errors()
    assert f": {name}: a model without source has commands only; remove it, or add" in error


SHARED = """\
inputs: {x: {shape: [batch, 4]}}
outputs: {y: {shape: [batch, 2]}}
dims: {batch: {min: 1, opt: 2, max: 8}}
dynamic_axes: {z: {0: batch}}
ops: [{op: "my::op", functions: plugins/no.py:make}]
surgery: [{rename: {x: z}}]
calibration: {batches: 2, data: {x: {random: normal}}}
export: {opset: 17}
engines: [ort-cpu, {use: rtx-fp16, precision: fp8}, unheard-of]
verify: {cases: [min]}
bench: {duration: 1s}
gates: {latency: 5%}
"""


@pytest.mark.parametrize("how", ["defaults", "extends"])
def test_shared_sections_of_networks_do_not_matter_to_commands(project, how):
    write(project, FIRST)
    alone = project.load().models["net"].data
    if how == "defaults":
        shared = "".join(f"  {line}\n" for line in SHARED.splitlines())
        project.write("configs/project.yaml", f"defaults:\n{shared}")
    else:
        project.write("configs/shared.yaml", SHARED)
        write(project, FIRST, more="extends: ../shared.yaml\n")
    loaded = project.load()
    assert loaded.models["net"].data == alone
    assert list(ProjectPlan(loaded.models)) == ["command:net:first", "report:net"]


def test_a_command_cannot_read_an_engine_of_the_defaults(project):
    project.write("configs/project.yaml", "defaults: {engines: [ort-cpu]}")
    write(project, "{name: a, run: x, outputs: {m: m}, inputs: {i: '{engines.ort-cpu}'}}")
    (error,) = project.errors()
    assert 'there is no engine "ort-cpu" in this model' in error


def test_a_model_without_source_and_commands_is_incomplete(project):
    project.write(MODEL, "model: net\n")
    errors = project.errors()
    assert [error.partition(": ")[2] for error in errors] == [
        "source: required field is missing; add the field",
        "inputs: required field is missing; add the field",
    ]
    project.write(MODEL, "model: net\nsource: {torchvision: resnet18}\n")
    (error,) = project.errors()
    assert "inputs: required field is missing" in error
