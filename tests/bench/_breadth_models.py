"""The models of breadth.py: small configurations with random weights, and their manifests.

This file is copied into each project as the file of ``source: {python: …}``. A suite is a library;
the name of a model is the library's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

OPSET = {"torchscript": 17, "dynamo": 18}
IMAGE = 96  # small enough for two cores

DETECTION = {  # keyword arguments that keep detections of random weights
    "fasterrcnn_mobilenet_v3_large_320_fpn": {"box_score_thresh": 0.0, "box_detections_per_img": 8},
    "fasterrcnn_mobilenet_v3_large_fpn": {"box_score_thresh": 0.0, "box_detections_per_img": 8},
    "fasterrcnn_resnet50_fpn": {"box_score_thresh": 0.0, "box_detections_per_img": 8},
    "fasterrcnn_resnet50_fpn_v2": {"box_score_thresh": 0.0, "box_detections_per_img": 8},
    "fcos_resnet50_fpn": {"score_thresh": 0.0, "detections_per_img": 8, "topk_candidates": 50},
    "keypointrcnn_resnet50_fpn": {"box_score_thresh": 0.0, "box_detections_per_img": 4},
    "maskrcnn_resnet50_fpn": {"box_score_thresh": 0.0, "box_detections_per_img": 4},
    "maskrcnn_resnet50_fpn_v2": {"box_score_thresh": 0.0, "box_detections_per_img": 4},
    "retinanet_resnet50_fpn": {"score_thresh": 0.0, "detections_per_img": 8, "topk_candidates": 50},
    "retinanet_resnet50_fpn_v2": {
        "score_thresh": 0.0, "detections_per_img": 8, "topk_candidates": 50,
    },
    "ssd300_vgg16": {"score_thresh": 0.0, "detections_per_img": 8, "topk_candidates": 50},
    "ssdlite320_mobilenet_v3_large": {
        "score_thresh": 0.0, "detections_per_img": 8, "topk_candidates": 50,
    },
}  # fmt: skip
SEGMENTATION = (
    "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "deeplabv3_resnet101", "fcn_resnet50",
    "fcn_resnet101", "lraspp_mobilenet_v3_large",
)  # fmt: skip
VIDEO = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v1_b", "mvit_v2_s", "swin3d_t")
CLIP = {  # frames and side; s3d takes no less, the others need minutes for more on two cores
    "s3d": (16, 224), "mvit_v1_b": (4, 64), "mvit_v2_s": (4, 64), "swin3d_t": (4, 64),
}  # fmt: skip
FLOW = ("raft_small", "raft_large")
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
    "vocab_size": 200,
}  # fmt: skip
_DECODER = {**_ENCODER, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "bert": _ENCODER,
    "albert": {**_ENCODER, "embedding_size": 32},
    "distilbert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 200},
    "roberta": _ENCODER,
    "electra": {**_ENCODER, "embedding_size": 64},
    "deberta": _ENCODER,
    "deberta-v2": _ENCODER,
    "mpnet": _ENCODER,
    "squeezebert": {**_ENCODER, "embedding_size": 64},
    "mobilebert": {**_ENCODER, "embedding_size": 32, "intra_bottleneck_size": 32},
    "convbert": {**_ENCODER, "embedding_size": 64},
    "fnet": _ENCODER,
    "funnel": {
        "block_sizes": [1, 1], "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128,
        "architectures": ["FunnelModel"],  # there are two
        "vocab_size": 200,
    },
    "xlnet": {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128, "vocab_size": 200},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 200},
    "gpt_neo": {
        "hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 200,
        "attention_types": [[["global", "local"], 1]],
    },
    "opt": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128,
        "vocab_size": 200, "word_embed_proj_dim": 64,
    },
    "llama": _DECODER,
    "mistral": _DECODER,
    "qwen2": _DECODER,
    "t5": {
        "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 200,
    },
    "bart": {
        "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
        "vocab_size": 200,
    },
    "vit": {**_ENCODER, "image_size": 64, "patch_size": 16},
    "segformer": {"hidden_sizes": [16, 32, 48, 64], "decoder_hidden_size": 32},
}  # fmt: skip
_PADDED = ("bert", "roberta", "electra", "deberta", "deberta-v2")
_IMAGES = ("vit", "segformer")
_PAIRS = ("t5", "bart")  # encoder and decoder
REMEDIES: dict[str, dict[str, Any]] = {  # SUITE/MODEL -> sections of the manifest to replace
    "timm/mixer_s32_224": {
        "source": {
            "python": "breadth_models.py:make",
            "kwargs": {"suite": "timm", "name": "mixer_s32_224"},
            "randomize": True,
        }
    },
}
SUITES = {
    "detection": tuple(DETECTION),
    "segmentation": SEGMENTATION,
    "video": VIDEO,
    "flow": FLOW,
    "timm": tuple(TIMM),
    "transformers": tuple(TRANSFORMERS),
}


class Called(nn.Module):
    """A network with tensors only, for the plain script; ``names`` are its inputs."""

    def __init__(self, network: nn.Module, call: dict[str, Any], names: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.call, self.names = network, call, names

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = dict(zip(self.names, tensors, strict=True))
        positional = [
            [given[name] for name in value] if isinstance(value, list) else given[value]
            for value in self.call["args"]
        ]
        return self.network(*positional, **self.call.get("kwargs", {}))


class FirstOutput(nn.Module):
    """A model of transformers with tensors only; ``names`` are its inputs."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        inputs = dict(zip(self.names, tensors, strict=True))
        return self.model(**inputs, return_dict=False)[0]


def make(suite: str, name: str) -> nn.Module:
    """Return the network of a model."""
    if suite == "timm":
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10)
    if suite == "transformers":
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.for_model(name, **TRANSFORMERS[name])
        for switch in ("use_cache", "output_attentions", "output_hidden_states"):
            if hasattr(config, switch):
                setattr(config, switch, False)
        return FirstOutput(AutoModel.from_config(config), tuple(inputs_of(suite, name)))
    from torchvision import models

    random: dict[str, Any] = {"weights": None}
    if suite in ("detection", "segmentation"):
        random["weights_backbone"] = None
    if name.startswith("mvit"):
        frames, side = CLIP[name]
        sizes = {"spatial_size": (side, side), "temporal_size": frames}
        with _replaced_arguments(models.video.mvit, "_mvit", sizes):
            return models.get_model(name, **random)
    return models.get_model(name, **random, **torchvision_kwargs(suite, name))


@contextmanager
def _replaced_arguments(module: Any, function: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Call a function of a module with other arguments: builders fix them."""
    original = getattr(module, function)
    setattr(module, function, lambda **given: original(**{**given, **arguments}))
    try:
        yield
    finally:
        setattr(module, function, original)


def torchvision_kwargs(suite: str, name: str) -> dict[str, Any]:
    """Return the arguments of a model's builder."""
    if suite != "detection":
        return {}
    sizes = {} if "ssd" in name else {"min_size": IMAGE, "max_size": IMAGE}
    return {**DETECTION[name], **sizes}


def inputs_of(suite: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the section ``inputs`` of a model's manifest."""
    if suite == "detection":
        size = 320 if "ssdlite" in name else 300 if "ssd" in name else IMAGE
        data = {"random": "uniform"}
        return {"image": {"shape": [3, size, size], "data": data}}
    if suite == "segmentation":
        return {"image": {"shape": ["batch", 3, IMAGE, IMAGE]}}
    if suite == "video":
        frames, side = CLIP.get(name, (8, 64))
        return {"clip": {"shape": ["batch", 3, frames, side, side]}}
    if suite == "flow":
        return {each: {"shape": ["batch", 3, 128, 128]} for each in ("first", "second")}
    if suite == "timm":
        return {"image": {"shape": ["batch", 3, TIMM[name], TIMM[name]]}}
    if name in _IMAGES:
        return {"pixel_values": {"shape": ["batch", 3, 64, 64]}}
    shape = ["batch", "length"]
    ids = {"random": "integers", "low": 3, "high": 200}
    inputs = {"input_ids": {"shape": shape, "dtype": "int64", "data": ids}}
    if name not in ("fnet",):
        # padding in encoders; a decoder's rows would be masked entirely
        padded = {"random": "integers", "low": 0, "high": 2}
        mask = padded if name in _PADDED else {"constant": 1}
        inputs["attention_mask"] = {"shape": shape, "dtype": "int64", "data": mask}
    if name in _PAIRS:
        inputs["decoder_input_ids"] = {"shape": shape, "dtype": "int64", "data": ids}
    return inputs


def call_of(suite: str) -> dict[str, Any] | None:
    """Return the section ``call`` of a model's manifest."""
    return {
        "detection": {"args": [["image"]]},  # a list of images
        "flow": {"args": ["first", "second"], "kwargs": {"num_flow_updates": 2}},
    }.get(suite)


def dims_of(inputs: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the section ``dims`` for inputs."""
    ranges = {
        "batch": {"min": 1, "opt": 2, "max": 3},
        "length": {"min": 8, "opt": 16, "max": 32, "multiple_of": 8},
    }
    names = {size for tensor in inputs.values() for size in tensor["shape"]}
    return {name: span for name, span in ranges.items() if name in names}


def manifest_of(suite: str, name: str, exporter: str) -> dict[str, Any]:
    """Return the manifest of a model, with an ONNX Runtime engine."""
    inputs = inputs_of(suite, name)
    manifest: dict[str, Any] = {
        "model": name.replace(".", "_"),
        "source": (
            {"python": "breadth_models.py:make", "kwargs": {"suite": suite, "name": name}}
            if suite in ("timm", "transformers") or name.startswith("mvit")
            else {"torchvision": name, "kwargs": torchvision_kwargs(suite, name)}
        ),
        "inputs": inputs,
        "engines": [{"name": "ort", "backend": "onnxruntime"}],
        "export": {"exporter": exporter, "opset": OPSET[exporter]},
    }
    if dims := dims_of(inputs):
        manifest["dims"] = dims
    if call := call_of(suite):
        manifest["call"] = call
    if suite == "detection":
        manifest["outputs"] = detection_outputs(name)
    return manifest


def detection_outputs(name: str) -> dict[str, dict[str, Any]]:
    """Return the section ``outputs`` of a detector, in the order of its results."""
    names = ["boxes", "labels", "scores"]
    if name.startswith("maskrcnn"):
        names.append("masks")
    if name.startswith("keypointrcnn"):
        names += ["keypoints", "keypoints_scores"]
    if name.startswith(("retinanet", "ssd", "fcos")):
        names = ["boxes", "scores", "labels"]
    policy = {"policy": "detections", "labels": "labels", "scores": "scores"}
    rows = names[3:]
    boxes = {"compare": {**policy, **({"rows": rows} if rows else {})}}
    return {each: boxes if each == "boxes" else {} for each in names}
