"""TensorRT plugins of a user: found, checked, built into engines by TensorRT-RTX, and told when they fail."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_jobs import engine_options
from onnx import TensorProto, helper
from small_graphs import make_model, write

from buildsys.errors import StageError
from buildsys.worker.job import Job
from buildsys.worker.pool import JobReply, WorkerPool

pytest.importorskip("tensorrt_rtx")

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins/ops/scaled_clip_plugin.py"
FILE = "plugins/ops/clip.py"
OP = "mydomain::ScaledClip"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        pool = WorkerPool(tmp_path_factory.mktemp("state"))
        yield pool
        pool.close()


class Project:
    """A project with one graph, one node of which needs a plugin."""

    def __init__(self, root: Path, pool: WorkerPool) -> None:
        self.root = root
        self.pool = pool
        self.write("")

    def write(self, more: str, file: str = FILE, text: str | None = None) -> None:
        """Write the plugin's file: the shipped one, and lines behind it."""
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((PLUGIN.read_text() if text is None else text) + more)

    def build(self, *plugins: tuple[str, str], **node: Any) -> JobReply:
        outputs = {"engine": self.root / "e.engine", "result": self.root / "engine.json"}
        options = {
            "engine": engine_options("tensorrt_rtx"),
            "plugins": plugins or ((OP, FILE),),
            "inputs": {"x": {"shape": ["batch", 4], "dtype": "float32"}},
            "dims": {"batch": {"min": 1, "opt": 2, "max": 8}},
        }
        graph = write(self.root, clip_graph(**node))
        job = Job("engine:m:e", "tests.integration.plugin_stages", "m", "e", options, {"model": graph}, outputs, self.root)
        return self.pool.run(job, log=self.root / "e.log", timeout_s=60)

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
    clip = helper.make_node("ScaledClip", ["x"], ["y", "inside"], "clip", domain="mydomain", **attributes)
    shape = ["batch", 4]
    outputs = {"y": (elem_type, shape), "inside": (TensorProto.BOOL, shape)}
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mydomain", 1)]
    return make_model([clip], {"x": (elem_type, shape)}, outputs, opsets=opsets)


@pytest.mark.parametrize("elem_type", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_an_engine_with_a_python_plugin_is_built(project: Project, elem_type: int) -> None:
    reply = project.build(elem_type=elem_type)
    figures = json.loads((project.root / "engine.json").read_text())
    (plugin,) = figures["plugins"]
    assert len(plugin.pop("file_sha256")) == 64
    assert plugin == {"operator": OP, "name": "ScaledClip", "version": "1", "namespace": "", "file": FILE}
    assert figures["layers"] == {"plugin_v3": 1}
    assert reply.status == "passed"
    assert b"ScaledClip" in (project.root / "e.engine").read_bytes()


CALLBACKS = [
    "clone", "get_capability_interface", "get_fields_to_serialize", "get_output_data_types", "get_output_shapes",
    "supports_format_combination", "configure_plugin", "get_workspace_size", "get_valid_tactics",
]  # fmt: skip


@pytest.mark.parametrize("callback", CALLBACKS)
def test_a_callback_that_raises_fails_with_its_line(project: Project, callback: str) -> None:
    project.write(f"def broken(self, *args):\n    raise ValueError('boom')\nScaledClip.{callback} = broken\n")
    line = len(PLUGIN.read_text().splitlines()) + 2
    expected = f"{FILE}: plugin ScaledClip: {callback}() raised ValueError: boom ({FILE}:{line})"
    assert project.error() == expected
    assert not (project.root / "e.engine").exists()


def test_a_creator_that_raises_fails_with_its_line(project: Project) -> None:
    project.write("def broken(self, *args):\n    return {}['gain']\nScaledClipCreator.create_plugin = broken\n")
    assert f"{FILE}: plugin ScaledClip: create_plugin() raised KeyError: 'gain' ({FILE}:" in project.error()
