"""The share of models that plain torch.onnx.export and ONNX Runtime run and that also pass here.

    python tests/bench/breadth.py --only 'timm/res*' --results /tmp/breadth

Each model has random weights, a small configuration, and a project with a generated manifest.
First a plain script exports it, with torchscript or else dynamo, and runs the file in ONNX Runtime;
then doit validates it and verifies an engine, with the same exporter. Results are kept as JSON, so
a run can be continued. A suite is a library; the name of a model is the library's own. This file is
copied into each project as the file of ``source: {python: …}``. Needs the extra ``[breadth]``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

HERE = Path(__file__).resolve()
OPSET = {"torchscript": 17, "dynamo": 18}
IMAGE = 96  # small enough for two cores
_SCORED = {"score_thresh": 0.0, "detections_per_img": 8, "topk_candidates": 50}
DETECTION = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_mobilenet_v3_large_fpn",
    "fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2", "fcos_resnet50_fpn",
    "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn_v2",
    "retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2", "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)  # fmt: skip
SEGMENTATION = (
    "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "deeplabv3_resnet101", "fcn_resnet50",
    "fcn_resnet101", "lraspp_mobilenet_v3_large",
)  # fmt: skip
CLIP = {  # frames and side; s3d takes no less, the others need minutes for more on two cores
    "r3d_18": (8, 64), "mc3_18": (8, 64), "r2plus1d_18": (8, 64), "s3d": (16, 224),
    "mvit_v1_b": (4, 64), "mvit_v2_s": (4, 64), "swin3d_t": (4, 64),
}  # fmt: skip
TIMM = {  # name -> size of the image
    "resnet18": 96, "resnext26ts": 96, "seresnet18": 96, "res2net50_14w_8s": 96, "resnest14d": 96,
    "skresnet18": 96, "regnetx_002": 96, "regnety_002": 96, "densenet121": 96, "dla34": 96,
    "efficientnet_lite0": 96, "mobilenetv2_050": 96, "mobilenetv3_small_050": 96,
    "mobilenetv4_conv_small": 96, "mnasnet_small": 96, "ghostnet_100": 96, "hrnet_w18_small": 96,
    "inception_v3": 96, "cspresnet50": 96, "dpn48b": 96, "selecsls42": 96, "repvgg_a0": 96,
    "convnext_atto": 96, "convnextv2_atto": 96, "nf_regnet_b0": 96, "vit_tiny_patch16_224": 224,
    "swin_tiny_patch4_window7_224": 224, "swinv2_tiny_window8_256": 256,
    "eva02_tiny_patch14_224": 224, "cait_xxs24_224": 224, "coat_tiny": 224,
    "crossvit_tiny_240": 240, "levit_128s": 224, "mixer_s32_224": 224, "poolformer_s12": 96,
    "pvt_v2_b0": 96, "twins_pcpvt_small": 224, "volo_d1_224": 224, "xcit_nano_12_p16_224": 224,
    "mobilevit_xxs": 128,
}  # fmt: skip
_ENCODER = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
_EMBEDDED = {**_ENCODER, "embedding_size": 64}
_DECODER = {**_ENCODER, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bert", "roberta", "deberta", "deberta-v2", "mpnet", "fnet"), _ENCODER),
    **dict.fromkeys(("electra", "squeezebert", "convbert"), _EMBEDDED),
    **dict.fromkeys(("llama", "mistral", "qwen2"), _DECODER),
    "albert": {**_ENCODER, "embedding_size": 32},
    "distilbert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    "mobilebert": {**_ENCODER, "embedding_size": 32, "intra_bottleneck_size": 32},
    "funnel": {
        "block_sizes": [1, 1], "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128,
        "architectures": ["FunnelModel"],  # there are two
    },
    "xlnet": {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4},
    "gpt_neo": {
        "hidden_size": 64, "num_layers": 2, "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
    },
    "opt": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128,
        "word_embed_proj_dim": 64,
    },
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "bart": {
        "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    },
    "vit": {**_ENCODER, "image_size": 64, "patch_size": 16},
    "segformer": {"hidden_sizes": [16, 32, 48, 64], "decoder_hidden_size": 32},
}  # fmt: skip
_IMAGES = ("vit", "segformer")
_PADDED = ("bert", "roberta", "electra", "deberta", "deberta-v2")
SUITES = {
    "detection": DETECTION, "segmentation": SEGMENTATION, "video": tuple(CLIP),
    "flow": ("raft_small", "raft_large"), "timm": tuple(TIMM), "transformers": tuple(TRANSFORMERS),
}  # fmt: skip
CALLS = {
    "detection": {"args": [["image"]]},  # a list of images
    "flow": {"args": ["first", "second"], "kwargs": {"num_flow_updates": 2}},
}
DIMS = {
    "batch": {"min": 1, "opt": 2, "max": 3},
    "length": {"min": 8, "opt": 16, "max": 32, "multiple_of": 8},
}


class Called(nn.Module):
    """A network that takes tensors only, for the plain script; ``names`` are its inputs."""

    def __init__(self, network: nn.Module, call: Mapping[str, Any], names: list[str]) -> None:
        super().__init__()
        self.network, self.call, self.names = network, call, names

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Pass the tensors as the manifest's section ``call`` says."""
        inputs = dict(zip(self.names, tensors, strict=True))
        positional = [
            [inputs[name] for name in value] if isinstance(value, list) else inputs[value]
            for value in self.call["args"]
        ]
        return self.network(*positional, **self.call.get("kwargs", {}))


class FirstOutput(nn.Module):
    """A model of transformers that takes and returns tensors only."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Return the first output."""
        output: torch.Tensor = self.model(
            **dict(zip(self.names, tensors, strict=True)), return_dict=False
        )[0]
        return output


def make(suite: str, name: str) -> nn.Module:
    """Make the network of a model."""
    if suite == "timm":
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10)
    if suite == "transformers":
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.for_model(name, vocab_size=200, **TRANSFORMERS[name])
        for switch in ("use_cache", "output_attentions", "output_hidden_states"):
            if hasattr(config, switch):
                setattr(config, switch, False)
        return FirstOutput(AutoModel.from_config(config), list(inputs_of(suite, name)))
    from torchvision import models

    random: dict[str, Any] = {"weights": None}
    if name.startswith("mvit"):  # its builder fixes the size
        builder, (frames, side) = models.video.mvit._mvit, CLIP[name]
        size = {"spatial_size": (side, side), "temporal_size": frames}
        models.video.mvit._mvit = lambda **arguments: builder(**{**arguments, **size})
    if suite in ("detection", "segmentation"):
        random["weights_backbone"] = None
    return models.get_model(name, **random, **torchvision_kwargs(suite, name))


def torchvision_kwargs(suite: str, name: str) -> dict[str, Any]:
    """Choose the arguments of a builder; they keep detections of random weights."""
    if suite != "detection":
        return {}
    sizes = {} if "ssd" in name else {"min_size": IMAGE, "max_size": IMAGE}
    if "rcnn" not in name:
        return {**_SCORED, **sizes}
    boxes = 8 if name.startswith("faster") else 4
    return {"box_score_thresh": 0.0, "box_detections_per_img": boxes, **sizes}


def inputs_of(suite: str, name: str) -> dict[str, dict[str, Any]]:
    """Write the section ``inputs`` of a model's manifest."""
    if suite == "detection":
        size = 320 if "ssdlite" in name else 300 if "ssd" in name else IMAGE
        return {"image": {"shape": [3, size, size], "data": {"random": "uniform"}}}
    if suite == "video":
        frames, side = CLIP[name]
        return {"clip": {"shape": ["batch", 3, frames, side, side]}}
    if suite == "flow":
        return {image: {"shape": ["batch", 3, 128, 128]} for image in ("first", "second")}
    if suite in ("segmentation", "timm"):
        side = TIMM.get(name, IMAGE)
        return {"image": {"shape": ["batch", 3, side, side]}}
    if name in _IMAGES:
        return {"pixel_values": {"shape": ["batch", 3, 64, 64]}}
    text = {"shape": ["batch", "length"], "dtype": "int64"}
    ids = {**text, "data": {"random": "integers", "low": 3, "high": 200}}
    inputs = {"input_ids": ids}
    if name != "fnet":
        # padding in encoders; a decoder's rows would be masked entirely
        padded = {"random": "integers", "low": 0, "high": 2}
        inputs["attention_mask"] = {**text, "data": padded if name in _PADDED else {"constant": 1}}
    if name in ("t5", "bart"):
        inputs["decoder_input_ids"] = ids
    return inputs


def dims_of(inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Write the section ``dims`` for inputs."""
    sizes = {size for tensor in inputs.values() for size in tensor["shape"]}
    return {name: span for name, span in DIMS.items() if name in sizes}


def manifest_of(suite: str, name: str, exporter: str) -> dict[str, Any]:
    """Write the manifest of a model, with an ONNX Runtime engine."""
    inputs = inputs_of(suite, name)
    is_own = suite in ("timm", "transformers") or name.startswith("mvit")
    return {
        "model": name.replace(".", "_"),
        "source": {"python": f"{HERE.name}:make", "kwargs": {"suite": suite, "name": name}}
        if is_own
        else {"torchvision": name, "kwargs": torchvision_kwargs(suite, name)},
        "inputs": inputs,
        "engines": [{"name": "ort", "backend": "onnxruntime"}],
        "export": {"exporter": exporter, "opset": OPSET[exporter]},
        **({"dims": dims} if (dims := dims_of(inputs)) else {}),
        **({"call": CALLS[suite]} if suite in CALLS else {}),
        **({"outputs": detection_outputs(name)} if suite == "detection" else {}),
    }


def detection_outputs(name: str) -> dict[str, dict[str, Any]]:
    """Write the section ``outputs`` of a detector, in the order of its results."""
    rows = ["masks"] if name.startswith("mask") else []
    rows = ["keypoints", "keypoints_scores"] if name.startswith("keypoint") else rows
    names = ["labels", "scores"] if "rcnn" in name else ["scores", "labels"]
    policy = {"policy": "detections", "labels": "labels", "scores": "scores"}
    boxes = {"compare": {**policy, **({"rows": rows} if rows else {})}}
    return {"boxes": boxes, **{output: {} for output in [*names, *rows]}}


def tensors(inputs: Mapping[str, Any], point: str) -> Iterator[torch.Tensor]:
    """Yield an example of each input, at a point of the dimensions."""
    for tensor in inputs.values():
        shape = [DIMS[size][point] if isinstance(size, str) else size for size in tensor["shape"]]
        data = tensor.get("data", {})
        if "constant" in data:
            yield torch.full(shape, data["constant"])
        elif "low" in data:
            yield torch.randint(data["low"], data["high"], shape)
        else:
            yield torch.rand(shape) if data else torch.randn(shape)


def run_plain(suite: str, name: str) -> str:
    """Export to ``plain.onnx`` and run the file with two batch sizes; return the exporter."""
    import numpy as np
    import onnxruntime as ort

    inputs = inputs_of(suite, name)
    dims = dims_of(inputs)
    torch.manual_seed(0)
    network = make(suite, name).eval()
    if suite in CALLS:
        network = Called(network, CALLS[suite], list(inputs))
    axes = {
        key: {axis: size for axis, size in enumerate(tensor["shape"]) if size in dims}
        for key, tensor in inputs.items()
    }
    shapes: Any = tuple(axes.values())
    shapes = (shapes,) if suite in CALLS or suite == "transformers" else shapes  # variadic
    for exporter in OPSET:
        is_dynamo = exporter == "dynamo"
        ranges = {"dynamic_shapes": shapes} if is_dynamo else {"dynamic_axes": axes}
        try:
            torch.onnx.export(
                network, tuple(tensors(inputs, "opt")), "plain.onnx", dynamo=is_dynamo,
                opset_version=OPSET[exporter], input_names=list(inputs), **(ranges if dims else {}),
            )  # fmt: skip
            session = ort.InferenceSession("plain.onnx", providers=["CPUExecutionProvider"])
            ports = {port.name for port in session.get_inputs()}
            for point in ("opt", "min"):
                feeds = zip(inputs, map(np.asarray, tensors(inputs, point)), strict=True)
                session.run(None, {key: value for key, value in feeds if key in ports})
        except Exception as error:
            print(f"{exporter}: {type(error).__name__}: {error}")
        else:
            return exporter
    return ""


def run_model(suite: str, name: str, folder: Path, timeout_s: float) -> dict[str, Any]:
    """Run a model both ways: the exporter ("" if plain export fails), success here, seconds."""
    manifest = manifest_of(suite, name, "torchscript")
    file = folder / f"configs/models/{manifest['model']}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    for source in (HERE, HERE.parents[2] / "dodo.py", HERE.parents[2] / "pyproject.toml"):
        (folder / source.name).write_bytes(source.read_bytes())

    def run(side: str, *command: str) -> tuple[bool, str, float]:
        start = time.perf_counter()
        with (folder / f"{side}.log").open("w") as log:
            command = ("timeout", f"{timeout_s}", *command)
            ended = subprocess.run(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        lines = (folder / f"{side}.log").read_text().strip().splitlines() or ["no output"]
        last = next((line for line in lines if line.startswith("failed ")), lines[-1])
        return not ended.returncode, last, round(time.perf_counter() - start, 1)

    passed, exporter, plain_s = run("plain", sys.executable, HERE.name, "--plain", suite, name)
    if not passed or exporter not in OPSET:
        return {"exporter": "", "passed": False, "plain_s": plain_s, "problem": exporter[:160]}
    file.write_text(json.dumps({**manifest_of(suite, name, exporter)}))  # JSON is YAML
    model = manifest["model"]
    passed, problem, here_s = run("doit", "doit", f"validate:{model}", f"verify:{model}:ort")
    return {"exporter": exporter, "passed": passed, "plain_s": plain_s, "here_s": here_s,
            "problem": "" if passed else problem}  # fmt: skip


def summary(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the table of all results and the failures as Markdown."""
    libraries = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxruntime")
    lines = [
        f"Versions: {', '.join(f'{library} {version(library)}' for library in libraries)}.",
        "",
        "| suite | models | plain runs | pass here | share | plain, median s | here, median s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for suite in (*SUITES, ""):
        own = [result for name, result in results.items() if name.startswith(suite)]
        plain = [result for result in own if result["exporter"]]
        passed = sum(result["passed"] for result in plain)
        cells = [suite or "**all**", len(own), len(plain), passed]
        cells.append(f"{100 * passed / len(plain):.1f} %" if plain else "-")
        for side in ("plain_s", "here_s"):
            seconds = [result[side] for result in plain]
            cells.append(f"{statistics.median(seconds):.0f}" if seconds else "-")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "## Failures", ""]
    for name, result in results.items():
        if not result["passed"]:
            side = "here" if result["exporter"] else "plain script"
            lines.append(f"- **{name}**, {side}: {result['problem']}")
    return "\n".join(lines)


def main() -> None:
    """Run the selected models and print all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of SUITE/MODEL")
    parser.add_argument("--results", type=Path, default=Path(".buildsys/breadth"))
    parser.add_argument("--timeout", type=float, default=900, help="seconds for each side")
    parser.add_argument("--plain", nargs=2, metavar=("SUITE", "MODEL"), help="export only")
    options = parser.parse_args()
    if options.plain:
        print(run_plain(*options.plain))
        return
    results: dict[str, dict[str, Any]] = {}
    for suite, name in ((suite, name) for suite, names in SUITES.items() for name in names):
        folder = options.results.resolve() / suite / name
        file = folder / "result.json"
        if not file.exists() and any(fnmatch(f"{suite}/{name}", text) for text in options.only):
            result = run_model(suite, name, folder, options.timeout)
            file.write_text(json.dumps(result))
            print(f"{suite}/{name}", result, flush=True)
        if file.exists():
            results[f"{suite}/{name}"] = json.loads(file.read_text())
    print(summary(results))


if __name__ == "__main__":
    main()
