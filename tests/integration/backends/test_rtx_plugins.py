"""TensorRT plugins of a user: found, checked and built by TensorRT-RTX."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from engine_jobs import engine_options
from onnx import TensorProto, helper
from small_graphs import make_model, write

from buildsys.errors import StageError, WorkerDied
from buildsys.workers.job import Job
from buildsys.workers.pool import JobReply, WorkerPool

pytest.importorskip("tensorrt_rtx")

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "plugins/ops/scaled_clip_plugin.py"
FILE = "plugins/ops/clip.py"
OP = "mydomain::ScaledClip"
SOURCE = Path(__file__).with_name("plugin_library.cc")
LIBRARY = "libsame.so"
SAME = ("mydomain::Same", LIBRARY)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with WorkerPool(tmp_path_factory.mktemp("state")) as pool:
        yield pool


@cache
def compiled(*flags: str) -> bytes:
    compiler = shutil.which("c++") or pytest.skip("there is no C++ compiler")
    with TemporaryDirectory() as folder:
        file = Path(folder, "plugin.so")
        options = ("-std=c++17", "-shared", "-fPIC", *flags)
        subprocess.run([compiler, *options, str(SOURCE), "-o", str(file)], check=True)
        return file.read_bytes()


class Project:
    """A project with one graph and one plugin."""

    def __init__(self, root: Path, pool: WorkerPool) -> None:
        self.root = root
        self.pool = pool
        self.write("")

    def write(self, more: str, file: str = FILE, text: str | None = None) -> None:
        """Write the plugin's file: the shipped one with added lines."""
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((PLUGIN.read_text() if text is None else text) + more)

    def compile(
        self, *flags: str, name: str = "Same", entry: str = "getCreators", file: str = LIBRARY
    ) -> Path:
        """Build the library with the operator mydomain::Same."""
        path = self.root / file
        path.write_bytes(compiled(f'-DNAME="{name}"', f"-DENTRY={entry}", *flags))
        return path

    def build(self, *plugins: tuple[str, str], **node: Any) -> JobReply:
        """Run the stage engine, as a job with these plugins: (operator, file)."""
        entries, libraries = [], {}
        for op, path in plugins or ((OP, FILE),):
            entries.append(
                {"op": op, "kind": "plugin", "python" if path.endswith(".py") else "library": path}
            )
            libraries |= {} if path.endswith(".py") else {f"library.{path}": self.root / path}
        options = {
            "engine": engine_options("tensorrt_rtx"),
            "operators": entries,
            "inputs": {"x": {"shape": ["batch", 4], "dtype": "float32"}},
            "dims": {"batch": {"min": 1, "opt": 2, "max": 8}},
        }
        inputs = {
            "model": write(self.root, node.pop("graph", None) or clip_graph(**node)),
            **libraries,
        }
        names = {"engine": "e.engine", "engine.data": "e.engine.data", "result": "engine.json"}
        outputs = {role: self.root / "out" / name for role, name in names.items()}
        (self.root / "out").mkdir(exist_ok=True)
        job = Job("engine:m:e", "engine", "m", "e", options, inputs, outputs, self.root)
        return self.pool.run(job, log=self.root / "e.log", timeout_s=60)

    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.root / "out" / "engine.json").read_text()))

    def error(self, *plugins: tuple[str, str]) -> str:
        with pytest.raises(StageError) as caught:
            self.build(*plugins)
        assert "\n" not in str(caught.value)
        assert type(caught.value) is StageError, caught.value  # and no crash
        return str(caught.value)


@pytest.fixture
def project(tmp_path: Path, pool: WorkerPool) -> Project:
    return Project(tmp_path, pool)


def clip_graph(elem_type: int = TensorProto.FLOAT, **attributes: Any) -> Any:
    attributes = {"scale": 2.0, "bounds": [-1.0, 1.0], **attributes}
    clip = helper.make_node(
        "ScaledClip", ["x"], ["y", "inside"], "clip", domain="mydomain", **attributes
    )
    shape = ["batch", 4]
    outputs = {"y": (elem_type, shape), "inside": (TensorProto.BOOL, shape)}
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mydomain", 1)]
    return make_model([clip], {"x": (elem_type, shape)}, outputs, opsets=opsets)


@pytest.mark.parametrize("elem_type", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_an_engine_with_a_python_plugin_is_built(project: Project, elem_type: int) -> None:
    reply = project.build(elem_type=elem_type)
    figures = project.result()
    (plugin,) = figures["plugins"]
    assert len(plugin.pop("file_sha256")) == 64
    facts = {"operator": OP, "name": "ScaledClip", "version": "1", "namespace": "", "file": FILE}
    assert plugin == facts
    assert figures["layers"] == {"plugin_v3": 1}
    assert reply.status == "passed"
    assert b"ScaledClip" in (project.root / "out" / "e.engine").read_bytes()


CALLBACKS = (
    "clone create_plugin get_capability_interface get_fields_to_serialize get_output_data_types"
    " get_output_shapes supports_format_combination configure_plugin get_workspace_size"
    " get_valid_tactics"
)


@pytest.mark.parametrize("callback", CALLBACKS.split())
def test_a_raising_callback_fails_with_its_line(project: Project, callback: str) -> None:
    owner = "ScaledClipCreator" if callback == "create_plugin" else "ScaledClip"
    project.write(
        f"def broken(self, *args):\n    raise ValueError('boom')\n{owner}.{callback} = broken\n"
    )
    line = len(PLUGIN.read_text().splitlines()) + 2
    expected = f"{FILE}: plugin ScaledClip: {callback}() raised ValueError: boom ({FILE}:{line})"
    assert project.error() == expected
    assert not (project.root / "out" / "e.engine").exists()


WRONG_VALUES = {
    "clone": ("None", "returned None instead of IPluginV3"),
    "get_output_data_types": ("[args[0][0]]", "returned 1 of 2 outputs"),
    "get_output_shapes": ("[2, 'x']", "returned [2, 'x'] instead of a list of DimsExprs"),
    "supports_format_combination": ("None", "returned None instead of int"),
    "get_valid_tactics": ("3", "returned 3 instead of a list of int"),
}


@pytest.mark.parametrize("callback", WRONG_VALUES)
def test_a_wrong_result_of_a_callback_is_reported(project: Project, callback: str) -> None:
    value, expected = WRONG_VALUES[callback]
    project.write(f"ScaledClip.{callback} = lambda self, *args: {value}\n")
    assert project.error() == f"{FILE}: plugin ScaledClip: {callback}() of ScaledClip {expected}"


@pytest.mark.parametrize("callback", ["enqueue", "get_output_shapes"])
def test_a_missing_method_is_reported(project: Project, callback: str) -> None:
    project.write(f"del ScaledClip.{callback}\n")
    problem = f"{FILE}: plugin ScaledClip: ScaledClip has no method {callback}"
    assert project.error() == f"{problem}; add the method to the class"


def test_a_plugin_without_a_required_attribute_is_reported(project: Project) -> None:
    text = PLUGIN.read_text().replace("        self.num_outputs = 2\n", "")
    project.write("", text=text)
    assert (
        f"{FILE}: plugin ScaledClip: ScaledClip does not set num_outputs; set it in __init__"
        in project.error()
    )


def test_a_crashing_plugin_leaves_its_line_in_the_log(project: Project) -> None:
    project.write("import ctypes\nScaledClip.clone = lambda self: ctypes.string_at(0)\n")
    with pytest.raises(WorkerDied, match="crashed with a segmentation fault") as caught:
        project.build()
    assert "e.log" in str(caught.value)
    assert (
        f'{FILE}", line {len(PLUGIN.read_text().splitlines()) + 2} in <lambda>'
        in (project.root / "e.log").read_text()
    )


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("del ScaledClipCreator\n", f"has no plugin creator for the operator {OP}; it has none"),
        (
            "class Other(ScaledClipCreator):\n    def __init__(self, gain):\n       "
            " super().__init__()\n",
            "making the creator Other failed: TypeError",
        ),
        (
            "class Other(trt.IPluginCreatorV3One):\n    def __init__(self):\n"
            "        trt.IPluginCreatorV3One.__init__(self)\n        self.name = 'ScaledClip'\n",
            "making the creator Other failed: TypeError: it does not set plugin_version",
        ),
        ("import no_such_module\n", f"importing {FILE} failed: ModuleNotFoundError: No module"
                                    f" named 'no_such_module'"),
        ("def broken(:\n", f"importing {FILE} failed: SyntaxError"),
        ("raise RuntimeError('no luck')\n", f"importing {FILE} failed: RuntimeError: no luck"
                                            f" ({FILE}:"),
    ],
)  # fmt: skip
def test_a_file_without_the_plugin_is_reported_with_its_creators(
    project: Project, more: str, expected: str
) -> None:
    project.write(more)
    assert expected in project.error()


@pytest.mark.parametrize(
    ("field", "value", "creator"),
    [
        ("name", "ScaledClap", "::ScaledClap 1"),
        ("plugin_namespace", "other", "other::ScaledClip 1"),
        ("plugin_version", "2", "::ScaledClip 2"),
    ],
)
def test_a_creator_that_the_parser_would_not_find_is_reported(
    project: Project, field: str, value: str, creator: str
) -> None:
    project.write(
        "class Other(ScaledClipCreator):\n    def __init__(self):\n"
        f"        super().__init__()\n        self.{field} = '{value}'\n"
    )
    assert project.error() == (
        f"{FILE} has no plugin creator for the operator {OP}; it has {creator}; the parser needs"
        " the name ScaledClip, the version 1 and the namespace '' or 'mydomain'"
    )


def test_a_name_of_another_plugin_is_reported(project: Project) -> None:
    own = "MyelinWeightsTransformPlugin"
    assert project.error((f"mydomain::{own}", FILE)) == (
        f"{FILE}: TensorRT-RTX already has a plugin for mydomain::{own};"
        " give the operator another name, or each creator its domain as plugin_namespace"
    )
    project.write("", file="plugins/ops/other.py")
    assert "TensorRT-RTX already has a plugin for" in project.error(
        (OP, FILE), ("b::ScaledClip", "plugins/ops/other.py")
    )


def test_a_file_may_register_its_creators_itself(project: Project) -> None:
    project.write(
        "creator = ScaledClipCreator()\ntrt.get_plugin_registry().register_creator(creator, '')\n"
    )
    assert project.build().status == "passed"
    project.write(
        "creator = ScaledClipCreator()\ntrt.get_plugin_registry().register_creator(creator, '')\n"
        "ScaledClip.clone = lambda self: 1 / 0\n"
    )
    assert "clone() raised ZeroDivisionError" in project.error()


def test_a_namespace_may_be_the_operators_domain(project: Project) -> None:
    text = PLUGIN.read_text().replace(
        'self.plugin_namespace = "ScaledClip", "1", ""',
        'self.plugin_namespace = "ScaledClip", "1", "mydomain"',
    )
    project.write("", text=text)
    project.build()
    (plugin,) = project.result()["plugins"]
    assert plugin["namespace"] == "mydomain"


def test_unlisted_attributes_do_not_arrive_and_nothing_crashes(project: Project) -> None:
    project.write("", text=PLUGIN.read_text().replace("self.field_names =", "unused ="))
    assert (
        f"{FILE}: plugin ScaledClip: create_plugin() raised KeyError: 'scale' ({FILE}:"
        in project.error()
    )


def test_an_engine_with_a_plugin_library_is_built(project: Project) -> None:
    project.compile()
    shape = (TensorProto.FLOAT, ["batch", 4])
    same = helper.make_node("Same", ["x"], ["y"], "same", domain="mydomain")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mydomain", 1)]
    project.build(SAME, graph=make_model([same], {"x": shape}, {"y": shape}, opsets=opsets))
    figures = project.result()
    (plugin,) = figures["plugins"]
    assert plugin["file_sha256"]
    assert (plugin["name"], plugin["namespace"], plugin["file"]) == ("Same", "mydomain", LIBRARY)
    assert figures["layers"] == {"plugin_v3": 1}


@pytest.mark.parametrize(
    ("flags", "names", "expected"),
    [
        (("-DMISSING",), {}, " cannot be loaded: undefined symbol: function_of_another_library;"),
        ((), {"entry": "getPlugins"}, ": TensorRT-RTX takes no plugin from it; it exports no"),
        ((), {"name": "Sane"}, " has no plugin creator for the operator mydomain::Same; it has"
                               " mydomain::Sane 1; the parser needs the name Same, the version 1"),
    ],
)  # fmt: skip
def test_a_library_without_the_plugin_is_reported(
    project: Project, flags: tuple[str, ...], names: dict[str, str], expected: str
) -> None:
    project.compile(*flags, **names)
    assert project.error(SAME).startswith(f"{LIBRARY}{expected}")


def test_a_library_with_a_taken_name_is_reported(project: Project) -> None:
    project.compile()
    project.compile(file="libagain.so")
    error = project.error(SAME, ("mydomain::Same", "libagain.so"))
    assert error.startswith("libagain.so: TensorRT-RTX takes no plugin from it; ")
