"""A built project of six small models for single edits and rebuilds."""

import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from python_environments import Environment

from buildsys.cli.session import BuildSession
from buildsys.project.load import load_project
from buildsys.system import cpu, devices, versions
from buildsys.workers.pool import WorkerPool

_CACHED = (
    versions.distribution_version, versions.installed_versions, versions.distribution_folders,
    cpu.cpu_facts, devices.find_gpus,
)  # fmt: skip
NET = """\
import os

import torch

from plugins.lib import blocks

try:
    import keyed_tool  # not installed at first
except ImportError:
    pass


class Net(torch.nn.Module):
    def __init__(self, hidden=5):
        super().__init__()
        open("data/scale.txt").read()
        self.first = torch.nn.Linear(4, hidden)
        self.last = torch.nn.Linear(hidden, 3)

    def forward(self, x):
        return self.last(blocks.activate(self.first(x)) * float(os.environ.get("KEYED_SCALE", "1")))
"""
BLOCKS = """\
import torch


def activate(x):
    return torch.relu(x)
"""
SYMBOLIC = """\
from plugins.lib import written


def relu(g, x):
    return written.relu(g, x)
"""
WRITTEN = """\
def relu(g, x):
    return g.op("Relu", x)
"""
TRANSLATION = """\
from onnxscript import opset18 as op


def linear(x, weight, bias=None):
    return op.Gemm(x, weight, bias, transB=1)


def other(x, weight, bias=None):
    return linear(x, weight, bias)
"""
DATA = """\
import numpy


def make(shape, dtype, case, seed):
    return numpy.full(shape, 0.5, dtype)
"""
NET_YAML = """\
model: net
source: {python: plugins/models/net.py:Net, weights: {file: weights/net.pth}, seed: 0,
  kwargs: {hidden: 5}}
inputs: {x: {shape: [batch, 4], data: {npz: data/x.npz}}}
outputs: {y: {shape: [batch, 3], compare: auto}}
dims: {batch: {min: 1, opt: 2, max: 4}}
export: {opset: 17}
symbolics: [{op: "aten::relu", function: "plugins/symbolics/relu.py:relu", opset: 9}]
simplify: {tool: onnxsim}
validate: {rtol: 1.0e-4}
engines:
  - {backend: onnxruntime, name: ort}
  - {backend: onnxruntime, name: half, precision: fp16, intra_op_threads: 1}
  - {backend: tensorrt_rtx, name: rtx}
verify: {fp16: {rtol: 2.0e-2}}
bench: {duration: 1ms, warmup: 1ms, min_samples: 3, baselines: [torch], noise: null, cold_start: 0}
"""
GIVEN_YAML = """\
model: given
source: {onnx: models/given.onnx}
inputs: {x: {shape: [batch, 4], data: {python: plugins/data/values.py:make}}}
outputs: {y: {shape: [batch, 4]}}
dims: {batch: {min: 1, opt: 2, max: 4}}
simplify: {tool: none}
engines:
  - {backend: onnxruntime, name: ort, intra_op_threads: 1}
  - {backend: onnxruntime, name: other, intra_op_threads: 1, toolchain: other}
  - {backend: tensorrt, name: trt}
bench: {duration: 1ms, warmup: 1ms, min_samples: 3, baselines: [], noise: null, cold_start: 0}
evaluate:
  data: {npz: data/val.npz}
  metric: {python: plugins/metrics/distance.py:closeness}
  postprocess: plugins/metrics/halves.py:halve
"""
CLOSENESS = """\
def closeness(outputs, labels):
    return [1 - abs(output - label).mean() for output, label in zip(outputs, labels)]


closeness.per_sample = closeness.is_share = True
"""
HALVE = """\
def halve(outputs):
    return {name: array / 2 for name, array in outputs.items()}
"""
PROJECT_YAML = """\
toolchains:
  other: {python: ../envs/other/bin/python, env: {SETTING: "1"}}
"""
TRACED_YAML = """\
model: traced
source: {python: plugins/models/other.py:Other, randomize: true}
inputs: {x: {shape: [batch, 4]}}
call: {args: [x]}
outputs: {y: {shape: [batch, 3]}}
dims: {batch: {min: 1, opt: 2, max: 4}}
export: {exporter: dynamo, opset: 18}
translations: [{op: "aten::linear", function: "plugins/translations/linear.py:linear"}]
simplify: {tool: onnxslim}
engines: []
"""
CUT_YAML = """\
model: cut
source: {onnx: models/cut.onnx, seed: 0}
inputs: {x: {shape: [batch, 4]}}
outputs: {y: {}}
dims: {batch: {min: 1, opt: 2, max: 4}}
surgery:
  - function: plugins/hooks/double.py:change
    graph: graphsurgeon
    inputs: {x: {shape: [batch, 4]}}
    changes: numbers
    reference: {python: plugins/hooks/truth.py:doubled}
  - {rename: {y: z}, when: after_simplify}
simplify: {tool: none}
validate: {rtol: 1.0e-4}
engines: []
"""
SMALL_YAML = """\
model: small
source: {onnx: models/small.onnx, seed: 0}
inputs: {x: {shape: [batch, 3, 4, 4], data: {random: uniform}}}
outputs: {y: {shape: [batch, 2, 4, 4]}}
dims: {batch: {min: 1, opt: 2, max: 4}}
simplify: {tool: none}
calibration: {data: {x: {images: data/images}}, batches: 2, algorithm: minmax}
quantize: {per_channel: true}
engines:
  - {backend: onnxruntime, name: int8, precision: int8, intra_op_threads: 1}
  - {backend: tensorrt, name: trt, precision: int8}
verify: {int8: {rtol: 2.0e-1}}
bench: {duration: 1ms, warmup: 1ms, min_samples: 3, baselines: [], noise: null, cold_start: 0}
"""
DOUBLE = """\
import os

from plugins.lib import constants

try:
    import hooked_tool  # not installed at first
except ImportError:
    pass


def change(graph):
    node = graph.nodes[-1]
    node.inputs[1] = constants.constant(node.inputs[1], float(os.environ.get("HOOKED_SCALE", "2")))
    return graph
"""
CONSTANTS = """\
def constant(weight, scale):
    weight.values = weight.values * 0 + 1
    return weight
"""
TRUTH = """\
def doubled(inputs):
    return {"y": inputs["x"] + 1}
"""
OTHER = """\
import torch
import torchvision  # counts, as it is imported


class Other(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
"""
CUSTOM_YAML = """\
model: custom
source: {python: plugins/models/custom.py:Custom}
inputs: {x: {shape: [2, 4]}}
outputs: {y: {shape: [2, 4]}}
ops:
  - op: "custom_domain::customOp2"
    function: plugins/ops/swish.py:swish
    library: {sources: [plugins/ops/clamp_swish.c], flags: [-lm, -march=native]}
    use: {onnxruntime: library}
  - op: "mydomain::Twice"
    function: plugins/ops/swish.py:twice
    plugin: {python: plugins/ops/twice_plugin.py}
    use: {tensorrt_rtx: plugin}
engines:
  - {backend: onnxruntime, name: ort, intra_op_threads: 1}
  - {backend: tensorrt_rtx, name: rtx, network: plugins/hooks/network.py:tweak}
bench: {duration: 1ms, warmup: 1ms, min_samples: 3, baselines: [], noise: null, cold_start: 0}
"""
NETWORK = """\
from plugins.lib.sizes import SIZE


def tweak(network, config):
    config.avg_timing_iterations = SIZE
"""
CUSTOM = """\
import torch


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.relu(x) * torch.sigmoid(torch.relu(x))

    @staticmethod
    def symbolic(g, x):
        return g.op("custom_domain::customOp2", x).setType(x.type())


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + x

    @staticmethod
    def symbolic(g, x):
        return g.op("mydomain::Twice", x).setType(x.type())


class Custom(torch.nn.Module):
    def forward(self, x):
        return Swish.apply(Twice.apply(x))
"""
SWISH = """\
import os

from onnx import helper

os.environ.get("KEYED_SCALE")


def swish():
    nodes = [("Relu", ["x"], ["z"]), ("Sigmoid", ["z"], ["s"]), ("Mul", ["z", "s"], ["y"])]
    nodes = [helper.make_node(*node) for node in nodes]
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_function("custom_domain", "customOp2", ["x"], ["y"], nodes, opsets)


again = swish


def twice():
    node = helper.make_node("Add", ["x", "x"], ["y"])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_function("mydomain", "Twice", ["x"], ["y"], [node], opsets)
"""
PLUGIN = """\
import tensorrt_rtx as trt
from plugin_bases import ALL


class Twice(*ALL):
    def __init__(self):
        for base in ALL:
            base.__init__(self)
        self.plugin_name, self.plugin_version, self.plugin_namespace = "Twice", "1", ""
        self.num_outputs = 1

    def get_capability_interface(self, kind):
        return self

    def clone(self):
        return Twice()

    def get_fields_to_serialize(self):
        return trt.PluginFieldCollection([])

    def get_output_data_types(self, types):
        return types

    def get_output_shapes(self, inputs, shape_inputs, builder):
        return [trt.DimsExprs(inputs[0])]

    def supports_format_combination(self, position, tensors, input_count):
        return tensors[position].desc.format == trt.TensorFormat.LINEAR

    def configure_plugin(self, inputs, outputs):
        pass

    attach_to_context = on_shape_change = enqueue = lambda self, *arguments: self


class TwiceCreator(trt.IPluginCreatorV3One):
    def __init__(self):
        trt.IPluginCreatorV3One.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = "Twice", "1", ""

    def create_plugin(self, name, fields, phase):
        return Twice()
"""
PLUGIN_BASES = """\
import tensorrt_rtx as trt

ALL = trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime
"""
OPS = Path(__file__).parents[2] / "plugins" / "ops"


def stamp_of(found: os.stat_result) -> tuple[int, ...]:
    """Return what tells a written or replaced file from the one before."""
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def forget_facts() -> None:
    """Forget versions and devices, as a new process would."""
    # it has the name of the test, and the environment decides if an interpreter is probed again
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    for function in _CACHED:
        function.cache_clear()


class KeyProject:
    """The project on disk, its built state, and one worker pool."""

    def __init__(self, root: Path) -> None:
        self.root = root / "project"
        self._kept = root / "kept"
        self._pool = WorkerPool(root / "pool")
        self._path = tuple(sys.path)  # edits prepend folders, and change no package on this path
        self._packages: dict[tuple[str, tuple[str, ...]], str] = {}
        # by content and by stamp, as state.db keeps them, which is restored after every edit
        self._texts: dict[str, str] = {}
        self._digests: dict[str, Any] = {}
        self.environment = Environment(
            root / "envs/other", "numpy", "onnxruntime"
        )  # of the toolchain, which edits may relabel
        (root / "envs/moved").symlink_to("other")
        for path, text in {
            "plugins/models/net.py": NET, "plugins/models/other.py": OTHER,
            "plugins/lib/blocks.py": BLOCKS, "data/scale.txt": "1",
            "plugins/data/values.py": DATA, "configs/models/net.yaml": NET_YAML,
            "plugins/symbolics/relu.py": SYMBOLIC, "plugins/lib/written.py": WRITTEN,
            "plugins/translations/linear.py": TRANSLATION,
            "configs/project.yaml": PROJECT_YAML,
            "configs/models/given.yaml": GIVEN_YAML, "configs/models/traced.yaml": TRACED_YAML,
            "configs/models/cut.yaml": CUT_YAML, "plugins/hooks/double.py": DOUBLE,
            "plugins/lib/constants.py": CONSTANTS, "plugins/hooks/network.py": NETWORK,
            "plugins/lib/sizes.py": "SIZE = 2\n",
            "plugins/hooks/truth.py": TRUTH,
            "plugins/metrics/distance.py": CLOSENESS, "plugins/metrics/halves.py": HALVE,
            "configs/models/custom.yaml": CUSTOM_YAML, "plugins/models/custom.py": CUSTOM,
            "configs/models/small.yaml": SMALL_YAML,
            "plugins/ops/swish.py": SWISH,
            "plugins/ops/clamp_swish.c": (OPS / "clamp_swish.c").read_text(),
            "plugins/ops/ort_custom_op.h": (OPS / "ort_custom_op.h").read_text(),
            "plugins/ops/twice_plugin.py": PLUGIN, "plugins/ops/plugin_bases.py": PLUGIN_BASES,
        }.items():  # fmt: skip
            self.write(path, text)
        self.save_weights(0.0)
        self.save_data(1.0)
        self.save_samples(0.5)
        self.save_onnx(1.0)
        self.save_onnx(3.0, "cut")
        self.save_convolutions(1.0)
        self.save_images()
        assert set(self.build()) == set(self.session().actions)
        self.keys()  # adds what it reads to the caches
        shutil.copytree(self.root, self._kept)
        self._stamps = self._current_stamps()

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def replace(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text()
        assert old in text, (path, old)
        self.write(path, text.replace(old, new))

    def append(self, path: str, text: str) -> None:
        self.write(path, (self.root / path).read_text() + text)

    def save_weights(self, added: float, **more: object) -> None:
        torch.manual_seed(0)
        sizes = {
            "first.weight": (5, 4),
            "first.bias": (5,),
            "last.weight": (3, 5),
            "last.bias": (3,),
        }
        state = {name: torch.rand(size) for name, size in sizes.items()}
        state["last.bias"][0] += added
        (self.root / "weights").mkdir(exist_ok=True)
        torch.save({"state_dict": state, **more}, self.root / "weights/net.pth")

    def save_data(self, scale: float) -> None:
        (self.root / "data").mkdir(exist_ok=True)
        np.savez(
            self.root / "data/x.npz",
            x=np.linspace(-scale, scale, 32, dtype=np.float32).reshape(8, 4),
        )

    def save_samples(self, label: float) -> None:
        """Write the labelled samples of an evaluation."""
        samples = np.random.default_rng(0).random((2000, 4), np.float32)
        np.savez(self.root / "data/val.npz", x=samples, labels=samples * label)

    def save_onnx(self, scale: float, name: str = "given") -> None:
        """Write an ONNX file with external weights."""
        weight = numpy_helper.from_array(np.full((64, 4), scale, np.float32)[:1], "w")
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            "given",
            [value("x", TensorProto.FLOAT, ["batch", 4])],
            [value("y", TensorProto.FLOAT, ["batch", 4])],
            [weight],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path = self.root / f"models/{name}.onnx"
        path.parent.mkdir(exist_ok=True)
        path.with_name(f"{name}.weights").unlink(missing_ok=True)
        onnx.save(
            model, path, save_as_external_data=True, location=f"{name}.weights", size_threshold=0
        )

    def save_convolutions(self, scale: float) -> None:
        """Write the ONNX file of two convolutions with channels of different magnitude."""
        draw = np.random.default_rng(0)
        stored = {
            "w": draw.standard_normal((4, 3, 1, 1)),
            "v": scale * draw.standard_normal((2, 4, 1, 1)),
        }
        stored["v"][1] *= 10
        value = helper.make_tensor_value_info
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], "/c"),
            helper.make_node("Conv", ["c", "v"], ["y"], "/d"),
        ]
        graph = helper.make_graph(
            nodes,
            "small",
            [value("x", TensorProto.FLOAT, ["batch", 3, 4, 4])],
            [value("y", TensorProto.FLOAT, ["batch", 2, 4, 4])],
            [
                numpy_helper.from_array(array.astype(np.float32), name)
                for name, array in stored.items()
            ],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, self.root / "models/small.onnx")

    def save_images(self, gray: int = 128) -> None:
        """Write four images; ranges come from the first three."""
        for number in range(4):
            self.save_image(f"{number}.png", number, None if number < 3 else gray)

    def save_image(self, name: str, seed: int, gray: int | None = None) -> None:
        (self.root / "data/images").mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 2, (4, 4, 3), np.uint8) * np.uint8(255)
        pixels = pixels if gray is None else np.full_like(pixels, gray)
        Image.fromarray(pixels).save(self.root / "data/images" / name)

    def session(self) -> BuildSession:
        session = BuildSession(load_project(self.root))
        vars(session)["_pool"] = self._pool
        executor = session.executor
        executor._db._texts = self._texts
        executor._digests._known = self._digests
        return session

    def records(self) -> dict[str, dict[str, str]]:
        """Return the recorded key parts of each target."""
        session = self.session()
        ledger = session.executor.ledger
        found = {target: ledger.lookup(target) for target in session.actions}
        session.executor.close()
        return {
            target: dict(record.parts) for target, record in found.items() if record is not None
        }

    def build(self, *names: str) -> list[str]:
        """Build stale targets, of these models or all, in the order of doit -n 2; return them."""
        forget_facts()
        session = self.session()
        models: dict[str, list[str]] = {action.model: [] for action in session.actions.values()}
        for target, action in session.actions.items():
            models[action.model].append(target)
        chosen = [models[name] for name in names or models]
        looking = Lock()  # as in doit, where one thread looks and the others run

        def bring_up_to_date(targets: list[str]) -> list[str]:
            ran = []
            for target in targets:
                with looking:
                    is_fresh = session.is_fresh(target)
                if not is_fresh and not session.executor.run(target).waited:
                    ran.append(target)
            return ran

        with ThreadPoolExecutor(2) as threads:
            ran = [target for found in threads.map(bring_up_to_date, chosen) for target in found]
        session.executor.close()
        return ran

    def keys(self) -> dict[str, dict[str, str]]:
        """Return the current key parts of each target without building."""
        forget_facts()
        session = self.session()
        builder, reads = session.executor._keys, session.executor.ledger.reads
        packages = builder._environment._packages  # identities by distribution and module path
        packages |= self._packages
        keys = {t: dict(builder.build(a, reads(t)).parts) for t, a in session.actions.items()}
        self._packages = {name: text for name, text in packages.items() if name[1] == self._path}
        session.executor.close()
        return keys

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the built state at the end, even after an error."""
        try:
            yield
        finally:
            self._restore()
            for package in ("numpy", "onnxruntime"):
                self.environment.relabel(package, metadata.version(package))
            forget_facts()

    def _restore(self) -> None:
        """Replace what has changed; copying all 800 entries takes longer than most builds."""
        now = self._current_stamps()
        for path in sorted(now.keys() - self._stamps.keys(), reverse=True):
            Path(path).unlink() if now[path] else Path(path).rmdir()
        for path, stamp in sorted(self._stamps.items()):
            if now.get(path) == stamp:
                continue
            if not stamp:
                Path(path).mkdir()
            else:
                Path(path).unlink(missing_ok=True)
                shutil.copy2(self._kept / os.path.relpath(path, self.root), path)
                self._stamps[path] = stamp_of(os.lstat(path))

    def _current_stamps(self) -> dict[str, tuple[int, ...]]:
        """Return a stamp of each file and link, and an empty one of each folder."""
        found: dict[str, tuple[int, ...]] = {}
        folders = [str(self.root)]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    found[entry.path] = (
                        () if is_folder else stamp_of(entry.stat(follow_symlinks=False))
                    )
                    folders += [entry.path] * is_folder
        return found

    def close(self) -> None:
        self._pool.close()
