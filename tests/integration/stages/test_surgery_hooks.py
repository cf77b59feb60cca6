"""User hooks on small graphs: arguments, results and references."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_graphs import conv_bn, make_model, parse
from surgery_jobs import Surgery, agree, hook

from buildsys.errors import CheckFailed
from buildsys.onnx_graphs.onnx_file import ports

HOOK = "plugins/hooks/hook.py:change"


def test_a_hook_changes_the_graph_in_place_or_returns_another(tmp_path: Path) -> None:
    hook(
        tmp_path,
        """\
        from plugins.hooks import names

        def change(model):
            for node in model.graph.node:
                node.name = names.better(node)
            return model
        """,
    )
    hook(tmp_path, "def better(node):\n    return 'my_' + node.name\n", "plugins/hooks/names.py")
    surgery = Surgery(tmp_path, conv_bn(), [{"function": HOOK}])
    assert surgery.run().status == "passed"
    assert surgery.graph.graph.node[0].name == "my_conv"
    assert surgery.job.options["steps"][0]["function"] == HOOK


GRAPHSURGEON = """\
    import onnx_graphsurgeon as gs

    def change(graph):
        for node in [node for node in graph.nodes if node.op == "Scale2"]:
            half = gs.Constant("two", __import__("numpy").float32(2))
            node.op, node.domain = "Mul", ""
            node.inputs.append(half)
        for value in graph.outputs:
            value.shape = None
        return graph.cleanup().toposort()
"""


def test_a_hook_gets_a_graphsurgeon_graph_and_its_result_is_cleaned_up(tmp_path: Path) -> None:
    hook(tmp_path, GRAPHSURGEON)
    model = conv_bn()
    surgery = Surgery(tmp_path, model, [{"function": HOOK, "graph": "graphsurgeon"}])
    result = surgery.run()
    assert result.status == "passed", result.reason
    assert ports(surgery.graph)[1][0]["shape"] == ["batch", 5]
    assert surgery.graph.ir_version == model.ir_version


def test_without_graphsurgeon_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook(tmp_path, "def change(graph): return graph\n")
    monkeypatch.setitem(__import__("sys").modules, "onnx_graphsurgeon", None)
    error = Surgery(tmp_path, conv_bn(), [{"function": HOOK, "graph": "graphsurgeon"}]).error()
    assert "needs onnx-graphsurgeon, which is not installed" in error
    assert error.endswith("; pip install onnx-graphsurgeon")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def change(model): pass",
         "hook.py:change returned NoneType, not a graph; end it with: return graph"),
        ("def change(): pass",
         "hook.py:change failed: TypeError: change() takes 0 positional arguments but 1 was"),
        (
            "def change(m):\n    m.graph.node[0].op_type = 'Cnov'\n    return m",
            "the graph is not valid ONNX: No Op registered for Cnov",
        ),
        (
            "def change(m):\n    m.graph.output[0].name = 'logits'\n    return m",
            "it changed the interface of the graph: its outputs y became logits; declare new"
            " inputs and outputs in the step",
        ),
        (
            "def change(m):\n    m.graph.node[-1].attribute[0].i = 0\n    return m",
            "surgery step 1 (function plugins/hooks/hook.py:change) changed y in case ",
        ),
    ],
)  # fmt: skip
def test_a_wrong_hook(tmp_path: Path, text: str, sentence: str) -> None:
    hook(tmp_path, text)
    assert sentence in Surgery(tmp_path, conv_bn(), [{"function": HOOK}]).error()


SCALED = """\
    def twice(inputs, outputs):
        import numpy
        return {"y": 2 * numpy.maximum(outputs["y"], -numpy.minimum(inputs["x"], 0))}

    def raising(inputs):
        return {"y": inputs["image"]}

    def absolute(inputs):
        import numpy
        return {"y": numpy.abs(inputs["x"]) * 2}

    def nothing(inputs): pass

    def double(model):
        model.graph.node[0].op_type = "Abs"
        node = model.graph.node.add(op_type="Add", input=["a", "a"], output=["y"])
        model.graph.node[0].output[0] = "a"
        return model
"""


def numbers(tmp_path: Path, reference: dict[str, str], function: str = "double") -> Surgery:
    hook(tmp_path, SCALED)
    value = (TensorProto.FLOAT, ["batch", 3, 8, 8])
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": value}, {"y": value})
    step = {
        "function": f"plugins/hooks/hook.py:{function}",
        "changes": "numbers",
        "reference": reference,
    }
    return Surgery(tmp_path, model, [step])


@pytest.mark.parametrize(
    "reference", ["absolute", "twice"]
)  # with the inputs alone, and with the outputs from before
def test_numbers_that_are_meant_to_change_follow_a_reference(
    tmp_path: Path, reference: str
) -> None:
    surgery = numbers(tmp_path, {"python": f"plugins/hooks/hook.py:{reference}"})
    result = surgery.run()
    assert result.status == "passed", result.reason
    assert result.figures["steps"][0]["against"] == "the reference"
    golden = surgery.case("max")
    np.testing.assert_array_equal(golden.outputs["y"].array, 2 * np.abs(golden.inputs["x"].array))


def test_a_reference_in_a_file(tmp_path: Path) -> None:
    surgery = numbers(tmp_path, {"npz": "data/truth.npz"})
    (tmp_path / "data").mkdir()
    truth = {
        f"{case}.y": 2 * np.abs(surgery.golden(case).inputs["x"].array)
        for case in surgery.job.options["cases"]
    }
    np.savez(tmp_path / "data/truth.npz", **truth)
    assert surgery.run().status == "passed"
    truth["odd.y"][0, 0, 0, 0] += 1
    np.savez(tmp_path / "data/truth.npz", **truth)
    error = surgery.error()
    assert "changed y in case odd: at [0, 0, 0, 0] the graph after it has" in error
    assert "and the reference" in error
    del truth["odd.y"]
    np.savez(tmp_path / "data/truth.npz", **truth)
    assert (
        "the reference data/truth.npz has no output y in case odd; save an array named odd.y"
        in surgery.error()
    )
    (tmp_path / "data/truth.npz").write_text("no zip")
    assert "the reference data/truth.npz failed in case min: " in surgery.error()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "nothing",
            "the reference plugins/hooks/hook.py:nothing returned NoneType; return a dict of output"
            " names to arrays",
        ),
        (
            "raising",
            "the reference plugins/hooks/hook.py:raising failed in case min: KeyError: 'image'"
            " (plugins/hooks/",
        ),
    ],
)
def test_a_wrong_reference(tmp_path: Path, name: str, sentence: str) -> None:
    assert sentence in numbers(tmp_path, {"python": f"plugins/hooks/hook.py:{name}"}).error()


NORMALIZED = """\
    import numpy
    from onnx import TensorProto, helper

    def take_pictures(model):
        graph = model.graph
        picture = graph.input[0]
        picture.name = "picture"
        picture.type.tensor_type.elem_type = TensorProto.UINT8
        for dim, size in zip(picture.type.tensor_type.shape.dim[1:], (8, 8, 3)):
            dim.dim_value = size
        graph.node.insert(0, helper.make_node("Cast", ["picture"], ["float"], to=TensorProto.FLOAT))
        graph.node.insert(1, helper.make_node("Transpose", ["float"], ["x"], perm=[0, 3, 1, 2]))
        return model

    def truth(inputs):
        return {"y": numpy.maximum(inputs["picture"].astype("float32").transpose(0, 3, 1, 2), 0)}
"""


def test_a_hook_declares_the_inputs_that_it_makes(tmp_path: Path) -> None:
    hook(tmp_path, NORMALIZED)
    value = (TensorProto.FLOAT, ["batch", 3, 8, 8])
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": value}, {"y": value})
    data = {"random": "integers", "low": 0, "high": 256}
    step = {
        "function": "plugins/hooks/hook.py:take_pictures",
        "inputs": {"picture": {"shape": ["batch", 8, 8, 3], "dtype": "uint8", "data": data}},
        "changes": "numbers",
        "reference": {"python": "plugins/hooks/hook.py:truth"},
    }
    surgery = Surgery(tmp_path, model, [step])
    result = surgery.run()
    assert result.status == "passed", result.reason
    assert surgery.case("max").inputs["picture"].shape == (4, 8, 8, 3)
    assert surgery.case("max").inputs["picture"].array.max() > 200
    agree(surgery, "max")
    step["inputs"]["picture"]["shape"] = ["batch", 3, 8, 8]  # type: ignore[index]
    error = Surgery(tmp_path / "wrong", model, [step])
    hook(tmp_path / "wrong", NORMALIZED)
    assert (
        "it changed the interface of the graph: input picture was ['batch', 3, 8, 8] and became"
        in error.error()
    )


SPECIAL_SIZE = """\
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    def change(model):
        output = model.graph.output[0].name
        for node in model.graph.node:
            node.output[:] = ["before" if name == output else name for name in node.output]
        constants = {{"special": np.int64({size}), "axis": np.int64(0), "one": np.float32(1),
                     "two": np.float32(2)}}
        for name, value in constants.items():
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        model.graph.node.extend([
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "axis"], ["batch_size"]),
            helper.make_node("Equal", ["batch_size", "special"], ["is_special"]),
            helper.make_node("Where", ["is_special", "two", "one"], ["factor"]),
            helper.make_node("Mul", ["before", "factor"], [output]),
        ])
        return model
"""


@pytest.mark.parametrize(("size", "most"), [(13, 16), (777, 1000)])
def test_a_hook_that_is_wrong_at_one_size_fails(tmp_path: Path, size: int, most: int) -> None:
    hook(tmp_path, SPECIAL_SIZE.format(size=size))
    dims = {"batch": {"min": 1, "opt": 2, "max": most, "odd": 3}}
    surgery = Surgery(tmp_path, conv_bn(), [{"function": HOOK}], dims=dims)
    error = surgery.error()
    assert f"it changed y at batch {size}: " in error
    assert "the graph after it has" in error


def test_a_hook_fixes_a_dimension(tmp_path: Path) -> None:
    text = """\
        def change(model):
            for value in (*model.graph.input, *model.graph.output):
                value.type.tensor_type.shape.dim[0].dim_value = 2
            return model
        """
    hook(tmp_path, text)
    ends = {"inputs": {"x": {"shape": [2, 3, 8, 8]}}, "outputs": {"y": {"shape": [2, 5]}}}
    surgery = Surgery(tmp_path, conv_bn(), [{"function": HOOK, **ends}])
    assert surgery.run().status == "passed"
    assert ports(surgery.graph)[0][0]["shape"] == [2, 3, 8, 8]
    assert [*surgery.job.options["cases"]] == ["opt"]


@pytest.mark.parametrize(
    ("before", "after", "inputs", "case"),
    [
        ("Relu(x)", "Clip(x, zero, many)", "float", "large"),
        ("Softplus(x)", "f", "float", "large"),
        ("Div(x, many)", "Div(x, more)", "float", ""),
        ("Mul(x, many)", "g", "int64", "wide-integers"),
        ("Gather(table, x)", "h", "int64", "last-rows"),
        ("Gather(table, x)", "i", "int64", ""),  # both refuse what is beyond the table
    ],
)
def test_special_values_show_what_a_hook_changes(
    tmp_path: Path, before: str, after: str, inputs: str, case: str
) -> None:
    bodies = {
        "f": "e = Exp(x) p = Add(e, one) y = Log(p)",
        "g": "a = Cast<to = 6>(x) b = Cast<to = 7>(a) y = Mul(b, many)",
        "h": "m = Min(x, most) y = Gather(table, m)",
        "i": "z = Identity(x) y = Gather(table, z)",
    }
    many: Any = np.int64(3) if inputs == "int64" else np.float32(40)
    values = {
        "many": many, "more": many, "zero": np.float32(0), "one": np.float32(1),
        "table": np.arange(800, dtype=np.float32), "most": np.int64(700),
    }  # fmt: skip
    used = {
        text: {name: np.asarray(value) for name, value in values.items() if name in text}
        for text in (f"y = {before}", bodies.get(after, f"y = {after}"))
    }
    output = "float" if "Gather" in before else inputs
    models = [
        parse(f"({inputs}[batch, 6] x) => ({output}[batch, 6] y) {{ {text} }}", constants, 18)
        for text, constants in used.items()
    ]
    onnx.save(models[1], tmp_path / "after.onnx")
    hook(
        tmp_path,
        f"""\
        import onnx

        def change(model):
            return onnx.load({str(tmp_path / "after.onnx")!r})
        """,
    )
    x = {"x": {"shape": ["batch", 6], "dtype": "float32" if inputs == "float" else inputs}}
    surgery = Surgery(tmp_path, models[0], [{"function": HOOK}], inputs=x)
    if not case:
        assert surgery.run().status == "passed"
        return
    with pytest.raises(CheckFailed) as error:
        surgery.run()
    assert f"it changed y in case {case}: " in error.value.problem
    assert "inputs.NAME.data" in error.value.hint


def test_special_values_of_surgery_stay_in_the_range_of_data(tmp_path: Path) -> None:
    hook(
        tmp_path,
        """\
        from onnx import helper, numpy_helper
        import numpy as np

        def change(model):
            model.graph.node[0].CopyFrom(helper.make_node("Clip", ["z", "low", "high"], ["y"]))
            for name, value in (("low", -9), ("high", 9)):
                model.graph.initializer.append(numpy_helper.from_array(np.float32(value), name))
            return model
        """,
    )
    model = parse("(float[batch, 6] x) => (float[batch, 6] y) { y = Identity(x) }", {}, 18)
    data = {"random": "uniform", "low": -8, "high": 8}
    x = {"x": {"shape": ["batch", 6], "data": data}}
    steps = [{"rename": {"x": "z"}}, {"function": HOOK}]
    assert Surgery(tmp_path, model, steps, inputs=x).run().status == "passed"
