"""Steps of surgery that cannot be: found when manifests are loaded, with file, line, column and the way out."""

from __future__ import annotations

import pytest

NET = "configs/models/net.yaml"
HOOK = "plugins/hooks/hook.py:change"

STEPS = [
    # the only step (it stands in line 8 from column 6 on), the error after the file's name
    ("{remove: Identity}", '8:14: surgery.0.remove: found "Identity"; a list is wanted'),
    ("{remove: []}", "8:14: surgery.0.remove: found an empty list; at least 1 entries are wanted"),
    ('{remove: ["a b"]}', '8:15: surgery.0.remove.0: "a b" is not an operator such as Gelu, or with its domain such a'),
    ("{removed: [Identity]}", "8:5: surgery.0: the step has none of the fields function, rename, fix_dims, free_dims,"),
    ("{removed: [Identity]}", "; did you mean remove?"),
    ("remove", '8:5: surgery.0: found "remove"; a map is wanted'),
    ("{rename: {x: z}, cut: {outputs: [y]}}", "8:22: surgery.0.cut: unknown field"),
    ("{rename: {x: z}, when: after_exprt}", 'surgery.0.when: "after_exprt" is not allowed here; did you mean after_ex'),
    ("{rename: {xx: z}}", "8:15: surgery.0.rename.xx: no input or output has this name here; did you mean x?"),
    ("{rename: {x: z, y: z}}", "8:15: surgery.0.rename.x: two tensors would be named z"),
    ("{fix_dims: {bacth: 2}}", "8:17: surgery.0.fix_dims.bacth: no input has this dimension here; did you mean batch?"),
    ("{fix_dims: {batch: 9}}", "8:17: surgery.0.fix_dims.batch: 9 is outside the range of batch (1 to 4)"),
    ("{fix_dims: {batch: 0}}", "surgery.0.fix_dims.batch: 0 is out of range; at least 1 is wanted"),
    ("{free_dims: {x: {0: batch}}}", "8:22: surgery.0.free_dims.x.0: axis 0 of x is dynamic already: batch; remove it"),
    ("{free_dims: {x: {4: batch}}}", "surgery.0.free_dims.x.4: axis 4 is outside the shape of x, which has 4 dimensio"),
    ("{free_dims: {x: {1: chanel}}}", "surgery.0.free_dims.x.1: the dimension chanel is not declared in dims"),
    ("{free_dims: {w: {0: batch}}}", "surgery.0.free_dims.w: no input or output has this name here; they are: x, y"),
    ("{free_dims: {x: {first: batch}}}", 'surgery.0.free_dims.x.first: "first" is not the number of an axis'),
    ("{cut: {}}", "8:11: surgery.0.cut: give inputs, outputs or both: between which tensors the graph is kept"),
    ("{cut: {inputs: {feat: {}}}}", "surgery.0.cut.inputs.feat: it is no input here, so that its shape is wanted"),
    ("{cut: {inputs: {feat: {shape: [bch, 4]}}}}", "surgery.0.cut.inputs.feat: the dimension bch is not declared in d"),
    ("{cut: {inputs: {feat: {shape: [null, 4]}}}}", "surgery.0.cut.inputs.feat.shape: an input needs every size"),
    ("{cast: {ids: int32}}", "8:13: surgery.0.cast.ids: no input has this name here; they are: x"),
    ("{cast: {x: float32}}", "8:13: surgery.0.cast.x: x is float32 already; remove it"),
    ("{cast: {x: in32}}", 'surgery.0.cast.x: "in32" is not allowed here; did you mean int32?'),
    ("{replace: {op: Gelu}}", "surgery.0.replace.function: the field is missing"),
    (f'{{replace: {{op: Gelu, function: "{HOOK}", inlin: true}}}}', "surgery.0.replace.inlin: unknown field; did you"),
    ('{replace: {op: "ns:Op", function: "a.py:f"}}', 'surgery.0.replace.op: "ns:Op" is not an operator such as Gelu'),
    (f'{{function: "{HOOK}", changes: numbers}}', "8:5: surgery.0: changes: numbers needs a reference to compare with"),
    (f'{{function: "{HOOK}", reference: {{npz: a.npz}}}}', "surgery.0: a reference is compared only with changes: num"),
    (
        f'{{function: "{HOOK}", changes: numbers, reference: {{}}}}',
        "surgery.0.reference: give either npz: FILE or python: FILE.py:CALLABLE",
    ),
    (f'{{function: "{HOOK}", graph: proto}}', 'surgery.0.graph: "proto" is not allowed here; one of: onnx, graphsurge'),
    ("{function: plugins/hooks/hook.py}", 'surgery.0.function: "plugins/hooks/hook.py" is not a file and a callable s'),
    ('{function: "plugins/hooks/hok.py:f"}', "8:16: surgery.0.function: no file plugins/hooks/hok.py; did you mean ho"),
    ('{function: "plugins/hooks/hook.py:chnge"}', "surgery.0.function: plugins/hooks/hook.py defines no chnge; did yo"),
    ('{function: "plugins/hooks/bad.py:f"}', "surgery.0.function: plugins/hooks/bad.py:1: "),
    ('{replace: {op: Gelu, function: "plugins/hooks/hok.py:f"}}', "surgery.0.replace.function: no file plugins/hooks/"),
    (
        f'{{function: "{HOOK}", changes: numbers, reference: {{npz: gone.npz}}}}',
        "surgery.0.reference.npz: no file gone.npz",
    ),
    (
        f'{{function: "{HOOK}", inputs: {{z: {{shape: [batch]}}}}}}',
        "surgery.0.inputs.z: a new input, and nothing tells the outputs for its values; set changes: numbers",
    ),
    (
        f'{{function: "{HOOK}", inputs: {{x: {{shape: [batch], dtype: int8, data: {{random: normal}}}}}}}}',
        "surgery.0.inputs.x.data.random: random normal values cannot be made for dtype int8; use random: integers",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("step", "expected"), STEPS)
def test_a_step_that_cannot_be(project, step, expected):
    project.write("plugins/hooks/hook.py", "def change(graph): return graph\n")
    project.write("plugins/hooks/bad.py", "def f(:\n")
    project.model(f"outputs: {{y: {{}}}}\nsurgery:\n  - {step}\n")
    errors = project.errors()
    assert any(expected in error for error in errors), errors
    assert all(error.startswith(f"{NET}:8:") for error in errors)


def test_a_step_is_checked_on_the_names_that_the_steps_before_it_leave(project):
    project.model("""\
        outputs: {y: {}}
        surgery:
          - {rename: {x: image}}
          - {cast: {x: uint8}}
          - {fix_dims: {batch: 2}}
          - {fix_dims: {batch: 3}, when: after_simplify}
        """)
    assert [error.partition(": ")[2] for error in project.errors()] == [
        "surgery.1.cast.x: no input has this name here; they are: image",
        "surgery.3.fix_dims.batch: no input has this dimension here",
    ]


def test_names_of_outputs_that_nobody_declares_are_left_to_the_stage(project):
    project.model("surgery:\n  - {rename: {whatever: z}}\n")
    assert list(project.load().models) == ["net"]


def test_a_dimension_that_only_surgery_names_is_used(project):
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
    assert "the shape of no input uses this dimension" in project.errors()[0]


def test_profiles_go_by_the_inputs_after_surgery(project):
    project.model("""\
        surgery:
          - {rename: {x: image}}
        engines:
          - backend: tensorrt_rtx
            name: rtx
            profiles: [{x: {min: [1, 3, 32, 32], opt: [2, 3, 32, 32], max: [4, 3, 32, 32]}}]
        """)
    errors = project.errors()
    assert any("profiles.0.x: no input is named x; inputs: image" in error for error in errors)
    file = project.root / NET
    file.write_text(file.read_text().replace("[{x:", "[{image:"))
    assert list(project.load().models) == ["net"]
