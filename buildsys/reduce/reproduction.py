"""The folder that reproduces a failure without buildsys, where its library has a script."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from buildsys.reduce.search import CRASH, WRONG, Reduced, shares_words

_RUN = {
    "onnxruntime": """\
import onnxruntime

def run():
    session = onnxruntime.InferenceSession("model.onnx", providers=PROVIDERS)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs)))
""",
    "openvino": """\
import openvino

def run():
    core = openvino.Core()
    model = core.compile_model("model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": PRECISION})
    results = model(inputs)
    return {port.get_any_name(): results[port] for port in model.outputs}
""",
    "tensorrt": """\
import subprocess

def load_data():  # called by polygraphy
    yield inputs

def run():
    command = ["polygraphy", "run", "model.onnx", "--trt", *TRT_FLAGS, "--save-outputs", "trt.json"]
    subprocess.run([*command, "--data-loader-script", "repro.py:load_data"], check=True)
    from polygraphy.json import load_json

    (_, iterations), = load_json("trt.json").items()
    return dict(iterations[0])
""",
    "": """\
from pathlib import Path
from buildsys.backends.interface import BuildRequest, load_backend
from buildsys.onnx_graphs.tensors import load_tensors

def run():
    backend, tensors = load_backend(OPTIONS["backend"]), load_tensors(Path("inputs.npz"))
    ports = {n: {"shape": [*t.shape], "dtype": t.dtype} for n, t in tensors.items()}
    engine = Path("built").absolute() / ENGINE
    engine.parent.mkdir(exist_ok=True)
    backend.build(BuildRequest("m", Path("model.onnx").absolute(), engine, OPTIONS, ports, {}))
    actual = backend.load(engine, OPTIONS).run(tensors)
    return {name: tensor.typed() for name, tensor in actual.items()}
""",
}
_TENSORRT = """
```sh
trtexec --onnx=model.onnx{flags}
polygraphy run model.onnx --trt{flags} --onnxrt --data-loader-script repro.py:load_data
```"""
_SCRIPT = '''\
"""{title}

The expected values are those of ONNX Runtime without optimizations. Exits with 1 while it fails.
"""

import os
import sys

import numpy as np

os.chdir(os.path.dirname(os.path.abspath(__file__)))
{constants}
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
        print(f"{{name}}: largest difference / largest value = {{relative:.3g}} (limit {{LIMIT}})")
        wrong |= not relative <= LIMIT
    sys.exit(wrong)
'''


def write_scripts(
    folder: Path,
    name: str,
    engine: Mapping[str, Any],
    file: str,
    reduced: Reduced,
    versions: Mapping[str, str],
    cures: Sequence[str],
) -> None:
    """Write ``repro.py`` and ``README.md`` next to the graph and its tensors."""
    backend, precision = engine["backend"], engine["precision"]
    kind = backend.removesuffix("_rtx")
    script = kind if kind in _RUN and not engine.get("operators") else ""
    limit = reduced.last["limits"].get("rtol")
    constants: dict[str, object] = {"LIMIT": 0.0 if limit is None else limit}
    if script == "onnxruntime":
        constants["PROVIDERS"] = ["CPUExecutionProvider"]
    elif script == "openvino":
        constants["PRECISION"] = {"fp16": "f16", "bf16": "bf16"}.get(precision, "f32")
    elif script == "tensorrt":
        constants["TRT_FLAGS"] = [f"--{precision}"] if precision != "fp32" else []
    else:
        constants |= {"OPTIONS": dict(engine), "ENGINE": file}
    title = f"{name}: {reduced.failure['text']}"
    lines = "\n".join(f"{name} = {value!r}" for name, value in constants.items())
    shown = title.replace("\\", "/").replace('"""', "'''").splitlines()[0]
    text = _SCRIPT.format(title=shown, constants=lines, run=_RUN[script].rstrip())
    (folder / "repro.py").write_text(text, encoding="utf-8")
    readme = "\n".join(_readme(title, reduced, script, precision, versions, cures))
    (folder / "README.md").write_text(f"{readme}\n", encoding="utf-8")


def _readme(
    title: str,
    reduced: Reduced,
    script: str,
    precision: str,
    versions: Mapping[str, str],
    cures: Sequence[str],
) -> Iterator[str]:
    nodes = reduced.last["nodes"]
    yield from (
        f"# {title.splitlines()[0]}",
        "",
        f"Failure: {reduced.failure['kind']}, the same as",
    )
    yield from (f"that of the whole graph of {reduced.total} nodes. What is left:", "")
    yield from (f"- {operator} `{node}`" for node, operator in nodes)
    yield from ("", "Run `python repro.py` here; it exits with 1 while it fails.")
    if script == "tensorrt":
        flags = f" --{precision}" if precision != "fp32" else ""
        yield _TENSORRT.format(flags=flags)
    yield from ("", f"Versions: {', '.join(f'{k} {v}' for k, v in sorted(versions.items()))}")
    yield from ("", private_contents(reduced))
    if cures:
        yield from ("", "Cures:", "", *(f"- {cure}" for cure in cures))


def private_contents(reduced: Reduced) -> str:
    """Say which contents are the user's."""
    own = [name for name in ("weights", "inputs") if name not in reduced.random]
    if reduced.nodes is None:
        return "No part of the graph fails in this way: weights and inputs are the model's."
    if not reduced.last["weights"]:
        own = [name for name in own if name != "weights"]
    if not own:
        return "Weights and inputs are random numbers of the same range, not the model's."
    return f"The {' and '.join(own)} are the model's: with random ones it does not fail."


def is_reproduced(folder: Path, failure: Mapping[str, Any]) -> bool:
    """Run ``repro.py``, and check that it fails in the same way."""
    script = [sys.executable, str(folder / "repro.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    has_raised = "Traceback" in done.stderr
    if failure["kind"] == WRONG:
        return done.returncode == 1 and not has_raised
    if failure["kind"] == CRASH:
        return done.returncode < 0
    return has_raised and shares_words(failure["text"], done.stderr)


def as_json(reduced: Reduced) -> dict[str, Any]:
    """Convert the result for ``--json``."""
    return {
        "case": reduced.case,
        "failure": json.loads(json.dumps(reduced.failure)),
        "nodes_before": reduced.total,
        "nodes": reduced.last["nodes"],
        "random": list(reduced.random),
        "trials": reduced.trials,
    }
