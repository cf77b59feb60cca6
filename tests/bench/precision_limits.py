"""Which limits accept honest engines of low precision and refuse faulty ones.

    python tests/bench/precision_limits.py /tmp/precision --jobs 8 --only 'res*'

Networks of ``_precision_networks.py`` are trained, converted as in a build, and given faults. Each
engine is judged by 8 draws of 32 samples. An honest engine counts if it keeps 99 % of the network's
quality, a fault if it does not; the others are "worse" and "forgiven". Limits are chosen on every
second network ("chosen on") and reported on the others. Trained weights and outputs stay in the
folder; OpenVINO is used where it is installed.
"""

import argparse
import json
import logging
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from _precision_networks import NETWORKS, TESTED, as_list, trained
from onnx import ModelProto, numpy_helper

from buildsys.backends.interface import BuildRequest, Calibration, load_backend
from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.errors import StageError
from buildsys.manifest.default_limits import AGREEMENT_LIMITS, effective_limits
from buildsys.manifest.schema.engines import engine_spec
from buildsys.onnx_graphs.tensor_types import DTYPES, emulate
from buildsys.onnx_graphs.tensors import Case, tensor_of
from buildsys.stages.calibrate import stage as calibrate
from buildsys.stages.common.golden_check import OutputRules, compare_case, judge_agreement
from buildsys.stages.convert import quantized, typed, weights_only
from buildsys.stages.convert.quantizers import HEAVY
from buildsys.workers.job import Job

DRAWS, ROWS = 8, 32
KEPT_QUALITY = 0.99  # of the network's
Array = np.ndarray
Outputs = dict[str, Array]
Run = Callable[[Array], Outputs]
UNSET = dict.fromkeys(("rtol", "cosine", "atol", "top1", *AGREEMENT_LIMITS["int8"]))
_QUANTIZE = {"tool": "builtin", "exclude": (), "outputs": False, "per_channel": True}
_QUANTIZE |= {"algorithm": "minmax"}
_QUANTIZE["operators"] = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_WEIGHTS = {"exclude": (), "block_size": 32, "symmetric": True, "accuracy_level": 0}
_WEIGHTS |= {"per_channel": True, "reduce_range": True}


class Engine(NamedTuple):
    """Something that computes a network's outputs; ``fault`` is "" for an honest one."""

    name: str
    precision: str
    fault: str
    run: Run


class Workbench:
    """A trained network as ONNX, with data, in a folder."""

    def __init__(self, name: str, folder: Path, seconds: float, seed: int) -> None:
        self.name, self.folder, self.task = name, folder / name, NETWORKS[name][1]
        self.network = trained(name, self.folder, seconds, seed)
        self.x, self.y = self.task.draw(np.random.default_rng([seed, 1]), TESTED)
        calibration, _ = self.task.draw(np.random.default_rng([seed, 2]), 128)
        self.file, self.port = self.folder / "model.onnx", {"shape": ["batch", *self.x.shape[1:]]}
        self.port["dtype"] = str(self.x.dtype)
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            results = as_list(self.network(torch.from_numpy(self.x)))
            names = [f"y{index}" for index in range(len(results))]
            self.reference = dict(zip(names, (o.numpy() for o in results), strict=True))
            torch.onnx.export(
                self.network, (torch.from_numpy(self.x[:2]),), str(self.file), dynamo=False,
                opset_version=17, input_names=["x"], output_names=names,
                dynamic_axes={port: {0: "batch"} for port in ("x", *names)},
            )  # fmt: skip
        data = {"alike": calibration, "zeros": calibration * 0}
        if calibration.dtype.kind == "f":
            data |= {"dark 0.2": 0.2 * calibration, "dark 0.05": 0.05 * calibration}
            data |= {"scaled 10": 10 * calibration}
        np.savez(self.folder / "data.npz", **data)
        self.faulty_data = [kind for kind in data if kind != "alike"]

    def job(self, **options: Any) -> Job:
        """Make a job that converts the network."""
        outputs = {"model": self.folder / "converted.onnx", "result": self.folder / "result.json"}
        inputs = {"model": self.file, "ranges": self.folder / "ranges.json"}
        return Job(
            "convert", "convert", self.name, "", options, inputs, outputs, self.folder, threads=1
        )

    def calibrate(self, algorithm: str = "minmax", data: str = "alike") -> None:
        """Measure ranges as a build does."""
        section = {"algorithm": algorithm, "percentile": 99.99, "batches": 4, "seed": 0}
        section["data"] = {"x": {"npz": "data.npz", "key": data}}
        options = {"calibration": section, "inputs": {"x": self.port}, "dims": {"batch": 32}}
        files = {"batches": self.folder / "batches.npz", "ranges": self.folder / "ranges.json"}
        job = self.job(**options)
        calibrate.run(replace(job, outputs=job.outputs | files))

    def int8(self, precision: str = "int8", **changed: Any) -> ModelProto:
        """Insert quantizers with the current ranges."""
        job = self.job(precision=precision, quantize={**_QUANTIZE, **changed})
        return quantized.convert(job, (), {"opt": Case({"x": tensor_of(self.x[:4])}, {})}).model

    def convert(self, module: Any, precision: str, **options: Any) -> ModelProto:
        """Convert without calibration."""
        converted: ModelProto = module.convert(
            self.job(precision=precision, **options), (), {}
        ).model
        return emulate(converted, precision) if precision in DTYPES else converted

    def openvino(self, precision: str) -> Run:
        """Build an engine of OpenVINO."""
        spec: dict[str, Any] = {"name": "e", "backend": "openvino", "threads": 1}
        spec |= {"precision": precision, "precision_share": 0}
        if self.name in ("bert", "tagger", "vit") and precision == "int8":
            spec["model_type"] = "transformer"
        options = engine_spec("openvino").model_validate(spec).model_dump(mode="json")
        backend, engine = load_backend("openvino"), self.folder / f"{precision}.xml"
        span = {"batch": {"min": 1, "opt": 4, "max": TESTED}}
        data = Calibration(self.folder / "batches.npz", "", self.folder / "cache")
        request = BuildRequest(
            self.name, self.file, engine, options, {"x": self.port}, span, calibration=data
        )
        backend.prepare(options)
        backend.build(request)
        session = backend.load(engine, options)

        def run(x: Array) -> Outputs:
            results = session.run({"x": tensor_of(x)}).values()  # some lose their names
            return {k: v.values() for k, v in zip(self.reference, results, strict=True)}

        return run


def runner(model: ModelProto, optimization: str = "disable") -> Run:
    """Run a graph in ONNX Runtime."""
    options = session_options(optimization=optimization, intra_op_threads=1)
    graph = OrtGraph(model.SerializeToString(), options)
    return lambda x: {
        name: tensor.values() for name, tensor in graph.run({"x": tensor_of(x)}).items()
    }


def engines(bench: Workbench) -> Iterator[Callable[[], Iterable[Engine]]]:
    """Yield groups of engines; a group that a library refuses is left out."""
    for precision in ("fp16", "bf16"):
        yield lambda p=precision: with_faults(p, p, bench.convert(typed, p, exclude=()))
    for algorithm in ("minmax", "percentile", "entropy"):
        bench.calibrate(algorithm)
        for is_fine in (True, False):
            name = f"int8 {algorithm} per {'channel' if is_fine else 'tensor'}"
            model = bench.int8(algorithm=algorithm, per_channel=is_fine)
            if (algorithm, is_fine) == ("minmax", True):
                yield lambda m=model, n=name: with_faults(n, "int8", m)
            else:
                yield lambda m=model, n=name: [Engine(n, "int8", "", runner(m))]
    model = bench.int8(outputs=True)
    yield lambda: [Engine("int8 kernels", "int8", "", runner(model, "all"))]
    yield lambda: with_faults("fp8", "fp8", bench.int8("fp8"), "basic")
    for precision in ("int4", "int8"):
        name = f"{precision} weights"
        yield lambda p=precision, n=name: [
            Engine(n, p, "", runner(bench.convert(weights_only, p, quantize_weights=_WEIGHTS)))
        ]
    bench.calibrate()
    for precision in ("fp16", "bf16", "int8"):
        yield lambda p=precision: [Engine(f"openvino {p}", p, "", bench.openvino(p))]
    for data in bench.faulty_data:
        bench.calibrate(data=data)
        yield lambda d=data: [
            Engine(f"int8, calibrated on {d}", "int8", "calibration", runner(bench.int8()))
        ]
        if data.startswith("dark"):
            name = f"openvino int8, calibrated on {data}"
            yield lambda n=name: [Engine(n, "int8", "calibration", bench.openvino("int8"))]


def with_faults(
    name: str, precision: str, model: ModelProto, optimization: str = "disable"
) -> Iterator[Engine]:
    """Yield an honest engine, those of a damaged graph, and those with damaged outputs."""
    honest = runner(model, optimization)
    yield Engine(name, precision, "", honest)
    for kind, what, damaged in graph_faults(model):
        yield Engine(f"{name}, {what}", precision, kind, runner(damaged, optimization))
    for kind, damage in OUTPUT_FAULTS.items():
        yield Engine(f"{name}, {kind}", precision, kind, lambda x, d=damage: _damaged(honest(x), d))


def graph_faults(model: ModelProto) -> Iterator[tuple[str, str, ModelProto]]:
    """Damage the first, the middle and the last layer, one at a time."""
    stored = {t.name: t for t in model.graph.initializer}
    source = {name: node for node in model.graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in model.graph.node:
        for name in node.input:
            readers[name].append(node)

    def changed(values: Mapping[str, Array]) -> ModelProto:
        damaged = ModelProto()
        damaged.CopyFrom(model)
        for tensor in damaged.graph.initializer:
            if tensor.name in values:
                old = numpy_helper.to_array(tensor)
                tensor.CopyFrom(
                    numpy_helper.from_array(values[tensor.name].astype(old.dtype), tensor.name)
                )
        return damaged

    def array(name: str) -> Array:
        return numpy_helper.to_array(stored[name])

    def scale_of(node: onnx.NodeProto, place: int) -> str:
        above = source.get(node.input[place])
        return above.input[1] if above is not None and above.op_type == "DequantizeLinear" else ""

    def weight_of(node: onnx.NodeProto) -> str:
        name = node.input[1]
        while name not in stored and name in source:
            name = source[name].input[0]
        return name

    layers = [n for n in model.graph.node if n.op_type in HEAVY and weight_of(n) in stored]
    chosen = {"first": layers[0], "middle": layers[len(layers) // 2], "last": layers[-1]}
    for which, node in chosen.items():
        for place, side in enumerate(("activation", "weight")):
            if scale := scale_of(node, place):
                for factor in (4.0, 0.25):
                    what = f"{side} scale x{factor:g} ({which})"
                    yield f"{side} scale", what, changed({scale: factor * array(scale)})
        below = [n for n in readers[node.output[0]] if n.op_type == "Add"]
        biases = [*node.input[2:], *(i for n in below for i in n.input if i in stored), ""]
        bias = biases[0]
        if bias in stored:
            yield "lost bias", f"lost bias ({which})", changed({bias: 0 * array(bias)})
        weight = np.array(array(weight_of(node)))
        axis = 1 if node.op_type == "MatMul" and weight.ndim == 2 else 0
        moved = np.moveaxis(weight, axis, 0)
        moved[int(np.abs(moved).reshape(len(moved), -1).sum(1).argmax())] = 0
        yield "dead channel inside", f"dead channel ({which})", changed({weight_of(node): weight})
    scales = [s for node in layers if (s := scale_of(node, 0)) and array(s).ndim == 0]
    if len(scales) > 1:
        low, high = (pick(scales, key=lambda s: float(array(s))) for pick in (min, max))
        swapped = changed({low: array(high), high: array(low)})
        yield "swapped scales", "swapped scales", swapped


def _axis(y: Array) -> int:
    return 1 if y.ndim in (2, 4) else -1


def _halved(y: Array) -> Array:
    flat = y.reshape(len(y), -1).copy()
    flat[:, : max(1, flat.shape[1] // 2)] = flat.mean()
    return flat.reshape(y.shape)


def _dead(y: Array) -> Array:
    moved = np.moveaxis(y.copy(), _axis(y), 0)
    moved[len(moved) // 2] = 0
    return np.moveaxis(moved, 0, _axis(y))


def _swapped(y: Array) -> Array:
    moved = np.moveaxis(y.copy(), _axis(y), 0)
    moved[:2] = moved[:2][::-1].copy()
    return np.moveaxis(moved, 0, _axis(y))


OUTPUT_FAULTS: dict[str, Callable[[Array], Array]] = {
    "constant": lambda y: np.broadcast_to(y.mean(0), y.shape).copy(),
    "constant half": _halved,
    "saturated": lambda y: y.clip(y.mean() - y.std(), y.mean() + 0.5 * y.std()),
    "flat": lambda y: y.mean(0) + 0.7 * (y - y.mean(0)),
    "permuted classes": lambda y: np.roll(y, 1, _axis(y)),
    "swapped channels": _swapped,
    "dead output channel": _dead,
    "samples mixed up": lambda y: np.roll(y, 1, 0),
}


def _damaged(outputs: Outputs, damage: Callable[[Array], Array]) -> Outputs:
    """Damage the last output."""
    last = list(outputs)[-1]
    return outputs | {last: damage(outputs[last])}


def make(name: str, folder: Path, seconds: float, seed: int) -> list[dict[str, Any]]:
    """Run all engines of a network; keep their outputs."""
    torch.set_num_threads(1)
    logging.disable()
    file = folder / name / "engines.json"
    if file.is_file():
        records: list[dict[str, Any]] = json.loads(file.read_text())
        return records
    bench, records = Workbench(name, folder, seconds, seed), []
    best = bench.task.quality([*bench.reference.values()], bench.y)
    stored: dict[str, Array] = {
        f"reference/{k}": v[: DRAWS * ROWS] for k, v in bench.reference.items()
    }
    for group in engines(bench):
        try:
            for engine in group():
                outputs = engine.run(bench.x)
                same = [np.array_equal(outputs[k], v) for k, v in bench.reference.items()]
                if engine.fault and all(same):
                    continue
                quality = bench.task.quality([outputs[k] for k in bench.reference], bench.y)
                records.append({
                    "network": name, "engine": engine.name, "precision": engine.precision,
                    "fault": engine.fault, "quality": quality, "of": best,
                })  # fmt: skip
                stored |= {f"{engine.name}/{k}": v[: DRAWS * ROWS] for k, v in outputs.items()}
        except (StageError, ImportError) as error:
            print(f"{name}: left out: {error}", flush=True)
    np.savez(folder / name / "outputs.npz", **stored)
    file.write_text(json.dumps(records))
    return records


def judge(name: str, folder: Path) -> list[dict[str, Any]]:
    """Compare all engines of a network by every limit alone and by all."""
    records = json.loads((folder / name / "engines.json").read_text())
    arrays = dict(np.load(folder / name / "outputs.npz"))
    outputs = [key.split("/")[1] for key in arrays if key.startswith("reference/")]
    for record in records:
        refused: dict[str, int] = defaultdict(int)
        for draw in range(DRAWS):
            rows = slice(draw * ROWS, (draw + 1) * ROWS)
            expected, actual = (
                {o: tensor_of(arrays[f"{who}/{o}"][rows]) for o in outputs}
                for who in ("reference", record["engine"])
            )
            golden = Case({"x": tensor_of(np.zeros((ROWS, 1), np.float32))}, expected)
            for rule, limits in rules(record["precision"]).items():
                case = compare_case(golden, actual, limits, OutputRules())
                judged, agreements = judge_agreement({"opt": case}, limits)
                refused[rule] += not all(c.passed for c in judged["opt"].compared.values())
                if rule == "all" and not draw:
                    record["figures"] = {o: a.figures() for o, a in agreements.items()}
                    problems = [c.problem for c in judged["opt"].compared.values()]
                    record["problems"] = [problem for problem in problems if problem]
        record["refused"] = {rule: count / DRAWS for rule, count in refused.items()}
    return records


def rules(precision: str) -> dict[str, dict[str, float | None]]:
    """List limits: those of magnitude, each of agreement alone, and all."""
    every = effective_limits(UNSET, precision, "float32")
    agreement = AGREEMENT_LIMITS[precision]
    alone = {"rtol": np.inf, "class_agreement": 0.0}  # also where errors are noted
    return {
        "magnitude": {name: None if name in agreement else limit for name, limit in every.items()},
        **{name: {**alone, name: limit} for name, limit in agreement.items()},
        "all": every,
    }


def group_of(record: Mapping[str, Any]) -> str:
    """Class an engine by its quality."""
    keeps = record["quality"] >= KEPT_QUALITY * record["of"]
    if record["fault"]:
        return "forgiven" if keeps else "planted"
    return "honest" if keeps else "worse"


def print_tables(records: Sequence[Mapping[str, Any]]) -> None:
    """Print rule -> share of refused engines, by half, precision, fault and network."""
    half = {name: ("chosen on", "others")[n % 2] for n, name in enumerate(sorted(NETWORKS))}
    every = [*records[0]["refused"]]
    print("refused, of engines:", *every, sep=" | ")
    _print_rows("all", records, every, lambda r: "all")
    _print_rows("half", records, every, lambda r: half[r["network"]])
    _print_rows("precision", records, every, lambda r: r["precision"])
    _print_rows("fault", [r for r in records if r["fault"]], every, lambda r: r["fault"])
    _print_rows("network", records, every, lambda r: r["network"])


def _print_rows(
    title: str,
    records: Sequence[Mapping[str, Any]],
    every: Sequence[str],
    key: Callable[[Mapping[str, Any]], str],
) -> None:
    print(title)
    for name, group in sorted({(key(r), group_of(r)) for r in records}):
        chosen = [r for r in records if (key(r), group_of(r)) == (name, group)]
        shares = [np.mean([r["refused"][rule] for r in chosen]) for rule in every]
        print(f"  {name + ', ' + group:38} {len(chosen):4}", *(f"{share:7.1%}" for share in shares))


def main() -> None:
    """Make, judge and tabulate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time")
    parser.add_argument("--only", default="*", help="pattern of networks")
    parser.add_argument("--seconds", type=float, default=30, help="of training")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    asked = parser.parse_args()
    folder, names = asked.folder.resolve(), [name for name in NETWORKS if fnmatch(name, asked.only)]
    os.environ["OMP_NUM_THREADS"] = "1"  # several threads are slower for networks this small
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        made = {name: pool.submit(make, name, folder, asked.seconds, asked.seed) for name in names}
        for name, future in made.items():
            records = future.result()
            print(f"{name}: quality {records[0]['of']:.3f}, {len(records)} engines", flush=True)
        judged = [r for records in pool.map(judge, names, [folder] * len(names)) for r in records]
    (folder / "judged.json").write_text(json.dumps(judged, indent=1))
    print_tables(judged)


if __name__ == "__main__":
    main()
