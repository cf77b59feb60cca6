"""The folder that reproduces a failure, without buildsys where its library has a script."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from buildsys.reduce.search import CRASH, WRONG, Reduced, shares_words

_RUN = {
    "onnxruntime": """\
import onnxruntime

def run():
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs)))""",
    "openvino": """\
import openvino

def run():
    hint = {"fp16": "f16", "bf16": "bf16"}.get(ENGINE["precision"], "f32")
    model = openvino.Core().compile_model("model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": hint})
    results = model(inputs)
    return {port.get_any_name(): results[port] for port in model.outputs}""",
    "tensorrt": """\
# needs `pip install polygraphy`; without values: trtexec --onnx=model.onnx
IS_RTX = ENGINE["backend"] == "tensorrt_rtx"
os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = str(int(IS_RTX))
from polygraphy.backend.trt import CreateConfig, EngineFromNetwork, NetworkFromOnnxPath, TrtRunner

def run():
    options = {"builder_optimization_level": ENGINE["builder_optimization_level"]}
    if IS_RTX:
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX as make_config
    else:
        make_config, options["tf32"] = CreateConfig, ENGINE["tf32"]
        if ENGINE["typing"] == "weak" and ENGINE["precision"] != "fp32":
            options[ENGINE["precision"]] = True
    # otherwise the types are the graph's
    typing = {"strongly_typed": True} if ENGINE.get("typing") == "strong" else {}
    network = NetworkFromOnnxPath("model.onnx", **typing)
    with TrtRunner(EngineFromNetwork(network, make_config(**options))) as runner:
        return {name: np.asarray(value) for name, value in runner.infer(inputs).items()}""",
    "": """\
from pathlib import Path
from buildsys.backends.interface import BuildRequest, load_backend
from buildsys.onnx_graphs.tensors import load_tensors

def run():
    backend, tensors = load_backend(ENGINE["backend"]), load_tensors(Path("inputs.npz"))
    ports = {n: {"shape": [*t.shape], "dtype": t.dtype} for n, t in tensors.items()}
    file = Path("built", FILE).absolute()
    file.parent.mkdir(exist_ok=True)
    backend.build(BuildRequest("m", Path("model.onnx").absolute(), file, ENGINE, ports, {}))
    return {name: t.typed() for name, t in backend.load(file, ENGINE).run(tensors).items()}""",
}
_SCRIPT = '''\
"""The expected values are those of ONNX Runtime without optimizations. Exits with 1 if it fails."""

import os
import sys

import numpy as np

os.chdir(os.path.dirname(os.path.abspath(__file__)))
ENGINE, FILE, LIMIT = {constants}
inputs, expected = (
    {{name: array for name, array in np.load(file).items() if name[:2] != "__"}}
    for file in ("inputs.npz", "expected.npz")
)

{run}

if __name__ == "__main__":
    actual = run()  # fails, if the failure is no wrong value
    wrong = False
    for name, value in expected.items():
        if actual[name].shape != value.shape:
            print(f"{{name}}: shape {{actual[name].shape}} instead of {{value.shape}}")
            wrong = True
            continue
        difference = np.abs(np.subtract(actual[name], value, dtype=np.float64))
        scale = max(float(np.abs(np.asarray(value, np.float64)).max(initial=0)), 1e-30)
        relative = float(difference.max(initial=0)) / scale
        limit = LIMIT if value.dtype.kind == "f" else 0.0
        print(f"{{name}}: largest difference / largest value = {{relative:.3g}} (limit {{limit}})")
        wrong |= not relative <= limit
    sys.exit(wrong)
'''
_README = """\
# {title}

Failure: {kind}, as of the whole graph of {total} nodes. What is left:

{nodes}

Run `python repro.py` here; it exits with 1 if it fails.

Versions: {versions}

{contents}
"""


def write_reproduction(
    folder: Path,
    name: str,
    engine: Mapping[str, Any],
    file: str,
    reduced: Reduced,
    versions: Mapping[str, str],
    cures: Sequence[str],
) -> None:
    """Write ``repro.py`` and ``README.md`` next to the graph and its tensors."""
    script = engine["backend"].removesuffix("_rtx")
    script = script if script in _RUN else ""
    constants = dict(engine), file, reduced.last["limits"].get("rtol") or 0.0
    text = _SCRIPT.format(constants=constants, run=_RUN[script])
    (folder / "repro.py").write_text(text, encoding="utf-8")
    readme = _README.format(
        title=f"{name}: {reduced.failure['text']}".splitlines()[0],
        kind=reduced.failure["kind"],
        total=reduced.total,
        nodes="\n".join(f"- {operator} `{node}`" for node, operator in reduced.last["nodes"]),
        versions=", ".join(f"{tool} {version}" for tool, version in sorted(versions.items())),
        contents="\n\n".join((private_contents(reduced), *cures)),
    )
    (folder / "README.md").write_text(readme, encoding="utf-8")


def private_contents(reduced: Reduced) -> str:
    """Say which contents are the user's."""
    kinds = ("weights", "inputs") if reduced.last["weights"] else ("inputs",)
    own = [kind for kind in kinds if kind not in reduced.random]
    if reduced.nodes is None:
        return "No part of the graph fails in this way: weights and inputs are the model's."
    if not own:
        return "Weights and inputs are random numbers of the same range, not the model's."
    return f"The {' and '.join(own)} are the model's: with random ones it does not fail."


def is_reproduced(
    folder: Path,
    failure: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
    python: str = sys.executable,
) -> bool:
    """Run ``repro.py``, and check that it fails in the same way."""
    script = [python, str(folder / "repro.py")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    has_raised = "Traceback" in done.stderr
    if failure["kind"] == WRONG:
        return done.returncode == 1 and not has_raised
    if failure["kind"] == CRASH:
        return done.returncode < 0
    return has_raised and shares_words(failure["text"], done.stderr)
