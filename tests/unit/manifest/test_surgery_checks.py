"""Errors in surgery steps, with position and remedy."""

from __future__ import annotations

import pytest

NET = "configs/models/net.yaml"
HOOK = "plugins/hooks/hook.py:change"

STEPS = [
    # the only step (it stands in line 8 from column 6 on), the error after the file's name
    ("{remove: [Identity]}",
     "8:5: surgery.0: remove was removed; write a hook, {function: FILE.py:CALLABLE}; docs/remed"),
    ("{free_dims: {x: {0: batch}}}", "8:5: surgery.0: free_dims was removed; write a hook, {funct"),
    ("{renamed: {x: z}}", "8:5: surgery.0: expected one of the fields function, rename, fix_dims,"),
    ("{renamed: {x: z}}", "; did you mean rename?"),
    ("remove", '8:5: surgery.0: expected a map, found "remove"'),
    ("{rename: {x: z}, cut: {outputs: [y]}}", "8:22: surgery.0.cut: unknown field"),
    ("{rename: {x: z}, when: after_exprt}",
     'surgery.0.when: unknown value "after_exprt"; did you mean after_ex'),
    ("{rename: {xx: z}}",
     "8:15: surgery.0.rename.xx: unknown input or output \"xx\" at this step; did you mean x?"),
    ("{rename: {x: z, y: z}}", "8:15: surgery.0.rename.x: two tensors would be named \"z\""),
    ("{fix_dims: {bacth: 2}}",
     "8:17: surgery.0.fix_dims.bacth: no input has the dimension \"bacth\" at this step; did "
     "you mean batch?"),
    ("{fix_dims: {batch: 9}}",
     "8:17: surgery.0.fix_dims.batch: 9 is outside the range of batch (1 to 4)"),
    ("{fix_dims: {batch: 0}}", "surgery.0.fix_dims.batch: expected at least 1, found 0"),
    ("{cut: {}}", "8:11: surgery.0.cut: expected inputs, outputs or both"),
    ("{cut: {inputs: {feat: {}}}}", "surgery.0.cut.inputs.feat: new input \"feat\" needs a shape"),
    ("{cut: {inputs: {feat: {shape: [bch, 4]}}}}",
     "surgery.0.cut.inputs.feat: dimension \"bch\" is not declared in d"),
    ("{cut: {inputs: {feat: {shape: [null, 4]}}}}",
     "surgery.0.cut.inputs.feat.shape: the shape of an input must be complete"),
    ("{cast: {ids: int32}}",
     "8:13: surgery.0.cast.ids: unknown input \"ids\" at this step; inputs: x"),
    ("{cast: {x: float32}}", "8:13: surgery.0.cast.x: input \"x\" is already float32; remove it"),
    ("{cast: {x: in32}}", 'surgery.0.cast.x: unknown value "in32"; did you mean int32?'),
    ("{replace: {op: Gelu}}", "surgery.0.replace.function: required field is missing"),
    (f'{{replace: {{op: Gelu, function: "{HOOK}", inlin: true}}}}',
     "surgery.0.replace.inlin: unknown field; did you"),
    ('{replace: {op: "ns:Op", function: "a.py:f"}}',
     'surgery.0.replace.op: expected an operator such as Gelu'),
    (f'{{function: "{HOOK}", changes: numbers}}',
     "8:5: surgery.0: changes: numbers needs expected outputs"),
    (f'{{function: "{HOOK}", reference: {{npz: a.npz}}}}',
     "surgery.0: reference has no effect without changes: num"),
    (
        f'{{function: "{HOOK}", changes: numbers, reference: {{}}}}',
        "surgery.0.reference: expected either npz: FILE or python: FILE.py:CALLABLE",
    ),
    (f'{{function: "{HOOK}", graph: proto}}',
     'surgery.0.graph: unknown value "proto"; expected one of: onnx, graphsurge'),
    ("{function: plugins/hooks/hook.py}", 'surgery.0.function: expected a file and a callable s'),
    ('{function: "plugins/hooks/hok.py:f"}',
     "8:16: surgery.0.function: file plugins/hooks/hok.py does not exist; did you mean ho"),
    ('{function: "plugins/hooks/hook.py:chnge"}',
     "surgery.0.function: plugins/hooks/hook.py does not define chnge; did yo"),
    ('{function: "plugins/hooks/bad.py:f"}', "surgery.0.function: plugins/hooks/bad.py:1: "),
    ('{replace: {op: Gelu, function: "plugins/hooks/hok.py:f"}}',
     "surgery.0.replace.function: file plugins/hooks/hok.py does not"),
    (
        f'{{function: "{HOOK}", changes: numbers, reference: {{npz: gone.npz}}}}',
        "surgery.0.reference.npz: file gone.npz does not exist",
    ),
    (
        f'{{function: "{HOOK}", inputs: {{z: {{shape: [batch]}}}}}}',
        "surgery.0.inputs.z: input \"z\" is new, so its outputs cannot be compared with earlier "
        "ones; set changes: numbers",
    ),
    (
        f'{{function: "{HOOK}", inputs: {{x: {{shape: [batch], dtype: int8, data: '
        f'{{random: normal}}}}}}}}',
        "surgery.0.inputs.x.data.random: cannot draw normal values of dtype int8; use random: "
        "integers",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("step", "expected"), STEPS)
def test_an_invalid_step(project, step, expected):
    project.write("plugins/hooks/hook.py", "def change(graph): return graph\n")
    project.write("plugins/hooks/bad.py", "def f(:\n")
    project.model(f"outputs: {{y: {{}}}}\nsurgery:\n  - {step}\n")
    errors = project.errors()
    assert any(expected in error for error in errors), errors
    assert all(error.startswith(f"{NET}:8:") for error in errors)


def test_a_step_is_checked_against_the_names_left_by_previous_steps(project):
    project.model("""\
        outputs: {y: {}}
        surgery:
          - {rename: {x: image}}
          - {cast: {x: uint8}}
          - {fix_dims: {batch: 2}}
          - {fix_dims: {batch: 3}, when: after_simplify}
        """)
    assert [error.partition(": ")[2] for error in project.errors()] == [
        'surgery.1.cast.x: unknown input "x" at this step; inputs: image',
        'surgery.3.fix_dims.batch: no input has the dimension "batch" at this step',
    ]


def test_undeclared_outputs_are_not_checked(project):
    project.model("surgery:\n  - {rename: {whatever: z}}\n")
    assert list(project.load().models) == ["net"]


def test_a_dimension_named_only_by_surgery_is_used(project):
    project.model("""\
        surgery:
          - {cut: {inputs: {feat: {shape: [batch, 8, half]}}}}
        """)
    file = project.root / NET
    file.write_text(
        file.read_text().replace("max: 4}}", "max: 4}, half: {min: 8, opt: 8, max: 16}}")
    )
    assert set(project.load().models["net"].data["dims"]) == {"batch", "half"}
    file.write_text(file.read_text().replace("half]", "8]"))
    assert "is not used by any input" in project.errors()[0]


def test_profiles_are_checked_against_the_inputs_after_surgery(project):
    project.model("""\
        surgery:
          - {rename: {x: image}}
        engines:
          - backend: tensorrt_rtx
            name: rtx
            profiles: [{x: {min: [1, 3, 32, 32], opt: [2, 3, 32, 32], max: [4, 3, 32, 32]}}]
        """)
    errors = project.errors()
    assert any('profiles.0.x: unknown input "x"; inputs: image' in error for error in errors)
    file = project.root / NET
    file.write_text(file.read_text().replace("[{x:", "[{image:"))
    assert list(project.load().models) == ["net"]
