"""A handwritten build of some models: one process, one model after the other.

``cold.py`` compares doit with this script. Nothing is done twice: the network is created once for
export and reference, and each graph runs once per case for both comparisons. Weights, inputs, shape
cases and limits come from the manifests, as the stages' options in ``plan.json``, so both sides do
the same work.

    python tests/bench/plain_script.py plan.json OUT
"""

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402 (the path has to be set first)
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
import onnxsim  # noqa: E402
import tensorrt_rtx as trt  # noqa: E402
import torch  # noqa: E402

from buildsys.manifest.default_limits import DEFAULT_LIMITS  # noqa: E402
from buildsys.manifest.shape_cases import concrete_shape  # noqa: E402
from buildsys.models.golden_inputs import golden_input  # noqa: E402
from buildsys.models.torch_model import Network, make_network  # noqa: E402
from buildsys.stages.reference.further_cases import further_cases  # noqa: E402

Arrays = dict[str, np.ndarray]
LOGGER = trt.Logger(trt.Logger.WARNING)
SIMPLIFY_RTOL = 1e-5


def build(plan: Mapping[str, Any], out: Path) -> None:
    """Export, simplify, check and build one model into ``out``."""
    out.mkdir(parents=True)
    network = make_network(plan["export"], ROOT)
    inputs = golden_inputs(plan["reference"], network)
    golden = reference(network, inputs, out)
    exported, simplified = out / "model.onnx", out / "simplified.onnx"
    export(network, plan["export"], next(iter(golden.values())), exported)
    onnx.checker.check_model(str(exported), full_check=True)
    simplify(exported, simplified)
    onnx.checker.check_model(str(simplified), full_check=True)
    given, limits = plan["validate"]["tolerance"], DEFAULT_LIMITS["validate"]
    tolerance = {name: given[name] or limit for name, limit in limits.items()}
    cases = plan["reference"]["cases"]  # the others run in one graph only, as in validate
    before, after = run(exported, {case: inputs[case] for case in cases}), run(simplified, inputs)
    expected = {case: golden[case] for case in cases}
    figures = {
        "exported": compare(before, expected, cases, **tolerance),
        "simplified": compare(after, golden, cases, **tolerance),
        "equal": compare(after, before, cases, SIMPLIFY_RTOL, tolerance["cosine"]),
    }
    (out / "result.json").write_text(json.dumps(figures, indent=2))
    build_engine(simplified, plan["engine"], out / "model.engine")


def golden_inputs(options: Mapping[str, Any], network: Network) -> dict[str, Arrays]:
    """Return case -> input arrays."""
    seed = options["source"]["seed"]
    cases = {case: (dims, {"case": case, "seed": seed}) for case, dims in options["cases"].items()}
    job = SimpleNamespace(options=options, project=ROOT)
    cases |= {case.name: (case.dims, case.values) for case in further_cases(job, network.module)}
    return {
        case: {
            name: golden_input(
                name, concrete_shape(spec["shape"], dims), spec["dtype"], options["data"][name],
                project=ROOT, **values,
            ).array
            for name, spec in options["inputs"].items()
        }
        for case, (dims, values) in cases.items()
    }  # fmt: skip


def reference(network: Network, inputs: Mapping[str, Arrays], out: Path) -> dict[str, Arrays]:
    """Return PyTorch's outputs of every case; write them with their inputs."""
    golden: dict[str, Arrays] = {}
    with torch.no_grad():
        for case, arrays in inputs.items():
            results = network({name: torch.from_numpy(array) for name, array in arrays.items()})
            golden[case] = {name: tensor.numpy() for name, tensor in results.items()}
            tensors = {f"in.{name}": array for name, array in arrays.items()}
            np.savez(
                out / f"{case}.npz",
                **tensors,
                **{f"out.{name}": array for name, array in golden[case].items()},
            )
    return golden


def export(network: Network, options: Mapping[str, Any], outputs: Arrays, file: Path) -> None:
    """Export with the TorchScript exporter, as all eight manifests do."""
    inputs, declared = options["inputs"], options["outputs"]
    generator = torch.Generator().manual_seed(options["source"]["seed"])
    example = [
        torch.randn(concrete_shape(spec["shape"], options["example"]), generator=generator)
        for spec in inputs.values()
    ]
    shapes = {name: spec["shape"] for name, spec in {**inputs, **declared}.items() if spec["shape"]}
    axes = {
        name: {at: size for at, size in enumerate(shape) if isinstance(size, str)}
        for name, shape in shapes.items()
    }
    torch.onnx.export(
        network.module,
        tuple(example),
        str(file),
        dynamo=False,
        opset_version=options["export"]["opset"],
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_axes=axes,
    )


def simplify(source: Path, target: Path) -> None:
    """Simplify with onnxsim."""
    simplified, ok = onnxsim.simplify(onnx.load(str(source)))
    if not ok:
        raise SystemExit(f"onnxsim failed on {source}")
    onnx.save(simplified, str(target))


def run(file: Path, inputs: Mapping[str, Arrays]) -> dict[str, Arrays]:
    """Return the outputs of every case in ONNX Runtime, without optimization, as stages do."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return {
        case: dict(zip(names, session.run(None, arrays), strict=True))
        for case, arrays in inputs.items()
    }


def compare(
    actual: Mapping[str, Arrays],
    expected: Mapping[str, Arrays],
    cases: Collection[str],
    rtol: float,
    cosine: float,
) -> dict[str, Any]:
    """Return relative error and cosine of every output; exit if one misses its limit.

    The limits hold for ``cases``: extreme values may amplify the rounding of the network, and only
    the stages measure by how much.
    """
    figures: dict[str, Any] = {}
    for case, outputs in expected.items():
        for name, wanted in outputs.items():
            a, b = actual[case][name].astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
            relative = float(np.abs(a - b).max() / np.abs(b).max())
            similar = float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
            if case in cases and not (relative <= rtol and similar >= cosine - 1e-12):
                raise SystemExit(
                    f"{name}, case {case}: relative error {relative}, cosine {similar}"
                )
            figures.setdefault(case, {})[name] = {"relative": relative, "cosine": similar}
    return figures


def build_engine(file: Path, options: Mapping[str, Any], engine: Path) -> None:
    """Build a TensorRT-RTX engine with the manifest's fields and one optimization profile."""
    fields, dims = options["engine"], options["dims"]
    builder = trt.Builder(LOGGER)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, LOGGER)
    if not parser.parse_from_file(str(file)):
        raise SystemExit(
            f"{file}: {[parser.get_error(at).desc() for at in range(parser.num_errors)]}"
        )
    config = builder.create_builder_config()
    config.builder_optimization_level = fields["builder_optimization_level"]
    config.num_compute_capabilities = len(fields["compute_capabilities"])
    for at, version in enumerate(fields["compute_capabilities"]):
        config.set_compute_capability(
            getattr(trt.ComputeCapability, f"SM{version.replace('.', '')}"), at
        )
    profile = builder.create_optimization_profile()
    for name, spec in options["inputs"].items():
        points = (
            {dim: span[point] for dim, span in dims.items()} for point in ("min", "opt", "max")
        )
        profile.set_shape(name, *(concrete_shape(spec["shape"], point) for point in points))
    config.add_optimization_profile(profile)
    built = builder.build_serialized_network(network, config)
    if built is None:
        raise SystemExit(f"{file}: TensorRT-RTX built no engine")
    engine.write_bytes(built)


def main() -> None:
    """Build every model of the plan."""
    plan_file, out = map(Path, sys.argv[1:])
    for model, plan in json.loads(plan_file.read_text(encoding="utf-8")).items():
        build(plan, out / model)


if __name__ == "__main__":
    main()
