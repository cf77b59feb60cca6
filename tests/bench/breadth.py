"""The share of models that pass as proposed by ``buildsys new``, of those that plain export runs.

    python tests/bench/breadth.py --jobs 14 --seconds 540 --results /tmp/breadth

Models have random weights and small configurations; nothing is downloaded. Each has a project of
its own with an unedited manifest of ``buildsys new``, and is built up to the verified engine of
ONNX Runtime. Next to it a plain script exports it with fixed sizes, by dynamo or else torchscript,
and compares ONNX Runtime with PyTorch (of detectors only shapes: the scores of random weights are
nearly equal). Results are kept as JSON lines: a run continues the last.
Needs the extra ``[breadth]``.
"""

import argparse
import inspect
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
LIBRARIES = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxruntime")
_SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
_TOKENS = {"vocab_size": 200, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TEXT = {**_SIZES, **_TOKENS}
_EMBEDDED = {**_TEXT, "embedding_size": 64}
_DECODER = {**_TEXT, "num_key_value_heads": 2, "head_dim": 16}
_GPT = {**_TOKENS, "hidden_size": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
_MAMBA = {**_TOKENS, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
_T5 = {
    "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2,
    "num_heads": 4, "vocab_size": 200,
}  # fmt: skip
_BART = {
    **_TOKENS, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128, "decoder_start_token_id": 1,
}  # fmt: skip
_SPEECH = {
    **_SIZES, "vocab_size": 40, "conv_dim": [32, 32, 32], "conv_kernel": [10, 8, 4],
    "conv_stride": [5, 4, 4], "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_IMAGE = {**_SIZES, "image_size": 64, "patch_size": 16}
_STAGES = {
    "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "embedding_size": 16,
    "image_size": 64,
}  # fmt: skip
_CLIP = {
    "text_config": {**_TEXT, "max_position_embeddings": 64, "projection_size": 64},
    "vision_config": _IMAGE, "projection_dim": 32,
}  # fmt: skip
TRANSFORMERS: dict[str, dict[str, Any]] = {  # model_type -> fields of config.json
    **dict.fromkeys(
        ("bert", "camembert", "deberta", "deberta-v2", "ernie", "fnet", "layoutlm", "mpnet",
         "nystromformer", "roberta", "xlm-roberta"), _TEXT,
    ),
    **dict.fromkeys(("convbert", "electra", "roformer", "squeezebert"), _EMBEDDED),
    "albert": {**_TEXT, "embedding_size": 32},
    "distilbert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 200},
    "mobilebert": {**_TEXT, "embedding_size": 32, "intra_bottleneck_size": 32},
    "modernbert": {
        **_TEXT, "global_attn_every_n_layers": 2, "local_attention": 16, "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "funnel": {
        "block_sizes": [1, 1], "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128,
        "vocab_size": 200, "architectures": ["FunnelModel"],  # there are two
    },
    "xlnet": {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128, "vocab_size": 200},
    **dict.fromkeys(
        ("cohere", "gemma", "gemma2", "llama", "mistral", "olmo", "phi3", "qwen2", "qwen3",
         "stablelm", "starcoder2"), _DECODER,
    ),
    **dict.fromkeys(("gpt_neox", "phi"), _TEXT),
    **dict.fromkeys(("bloom", "gpt2"), _GPT),
    "falcon": {**_TOKENS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "gpt_neo": {
        **_TOKENS, "hidden_size": 64, "num_layers": 2, "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
    },
    "gptj": {**_GPT, "rotary_dim": 8},
    "opt": {**_TEXT, "ffn_dim": 128, "word_embed_proj_dim": 64},
    "mamba": _MAMBA,
    "falcon_mamba": _MAMBA,
    "mamba2": {**_MAMBA, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 16},
    **dict.fromkeys(("t5", "umt5"), _T5),
    **dict.fromkeys(("bart", "blenderbot-small", "m2m_100", "marian", "mbart", "pegasus"), _BART),
    "prophetnet": {
        "hidden_size": 64, "num_encoder_layers": 2, "num_decoder_layers": 2,
        "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4,
        "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 200,
    },
    **dict.fromkeys(("data2vec-audio", "hubert", "unispeech", "wav2vec2", "wavlm"), _SPEECH),
    "sew": {**_SPEECH, "squeeze_factor": 2},
    "whisper": {
        **_BART, "num_mel_bins": 16, "max_source_positions": 50, "max_target_positions": 64,
    },
    "audio-spectrogram-transformer": {**_SIZES, "num_mel_bins": 32, "max_length": 64},
    **dict.fromkeys(("beit", "deit", "dinov2", "vit"), _IMAGE),
    **dict.fromkeys(("convnext", "poolformer", "resnet"), _STAGES),
    "mobilevit": {
        "hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 24, 32, 48, 64, 80],
        "image_size": 64,
    },
    "segformer": {"hidden_sizes": [16, 32, 48, 64], "decoder_hidden_size": 32, "image_size": 64},
    "swin": {
        "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "image_size": 64,
    },
    **dict.fromkeys(("blip", "chinese_clip", "clip", "clipseg", "siglip"), _CLIP),
    "git": {**_TEXT, "vision_config": _IMAGE},
    "vilt": {**_TEXT, **_IMAGE},
}  # fmt: skip
_TIMM = """
    test_vit lcnet_050 tinynet_e mobilenetv3_small_050 mobilenetv2_050 resnet18 mnasnet_small
    regnetx_002 regnety_002 efficientnet_lite0 mobilenetv4_conv_small legacy_seresnet18 skresnet18
    ese_vovnet19b_dw convnext_atto convnextv2_atto starnet_s1 mambaout_femto fasternet_t0
    inception_next_atto repvgg_a0 ghostnet_100 hardcorenas_a swiftformer_xs efficientvit_b0
    efficientvit_m0 shvit_s1 pvt_v2_b0 edgenext_xx_small efficientformer_l1 efficientformerv2_s0
    mobilevit_xxs mobilevitv2_050 levit_128s pit_ti_224 deit_tiny_patch16_224
    vit_tiny_patch16_224 eva02_tiny_patch14_224 poolformer_s12 mixer_s32_224 resmlp_12_224
    convit_tiny visformer_tiny hgnet_tiny rexnet_100 mixnet_s fastvit_t8 repvit_m0_9 repghostnet_050
    tiny_vit_5m_224 crossvit_tiny_240 xcit_nano_12_p16_224 cait_xxs24_224 coat_tiny dla34
    resnest14d selecsls42 cs3darknet_s nf_regnet_b0 eca_botnext26ts_256 halonet26t res2net50_14w_8s
    densenet121 twins_pcpvt_small nest_tiny gcvit_xxtiny swin_tiny_patch4_window7_224
    swinv2_tiny_window8_256 maxvit_rmlp_pico_rw_256 mvitv2_tiny davit_tiny focalnet_tiny_srf
    hiera_tiny_224 sequencer2d_s tnt_s_patch16_224 rdnet_tiny volo_d1_224 hrnet_w18_small dpn48b
    inception_v3 xception41 convmixer_768_32
"""
_BOXES = {"box_score_thresh": 0.0, "box_detections_per_img": 4}  # random weights have low scores
_SCORED = {"score_thresh": 0.0, "detections_per_img": 8, "topk_candidates": 50}
_SMALL = {"min_size": 96, "max_size": 96}
TORCHVISION: dict[str, tuple[dict[str, Any], str]] = {  # name -> kwargs, options --input
    **dict.fromkeys(
        ("squeezenet1_1", "shufflenet_v2_x0_5", "mobilenet_v2", "mobilenet_v3_small", "resnet18",
         "efficientnet_b0", "regnet_y_400mf", "googlenet", "alexnet", "convnext_tiny", "swin_t",
         "lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large", "vit_b_16", "maxvit_t",
         "fcn_resnet50"), ({}, ""),
    ),
    "r3d_18": ({}, "clip=batch,3,8,64,64"),
    "mc3_18": ({}, "clip=batch,3,8,64,64"),
    "r2plus1d_18": ({}, "clip=batch,3,8,64,64"),
    "swin3d_t": ({}, "clip=batch,3,4,64,64"),
    "ssdlite320_mobilenet_v3_large": (_SCORED, "image=3,320,320"),
    "fasterrcnn_mobilenet_v3_large_320_fpn": ({**_BOXES, **_SMALL}, "image=3,96,96"),
    "keypointrcnn_resnet50_fpn": ({**_BOXES, **_SMALL}, "image=3,96,96"),
    "maskrcnn_resnet50_fpn": ({**_BOXES, **_SMALL}, "image=3,96,96"),
    "fcos_resnet50_fpn": ({**_SCORED, **_SMALL}, "image=3,96,96"),
    "retinanet_resnet50_fpn": ({**_SCORED, **_SMALL}, "image=3,96,96"),
    "raft_small": (
        {}, "image1=batch,3,128,128 image2=batch,3,128,128",
    ),
    "s3d": ({}, "clip=1,3,16,224,224"),
}  # fmt: skip
MODELS = [  # cheap ones first
    *(f"transformers/{name}" for name in TRANSFORMERS),
    *(f"timm/{name}" for name in _TIMM.split()),
    *(f"torchvision/{name}" for name in TORCHVISION),
]


def new_command(model: str, folder: Path) -> list[str]:
    """Write what the model needs into its project; return the arguments of ``buildsys``."""
    library, _, name = model.partition("/")
    if library == "transformers":
        config = {"model_type": name, **TRANSFORMERS[name]}
        (folder / f"{name}.json").write_text(json.dumps(config))
        return ["new", name, "--from", f"hf:{name}.json"]
    kwargs, shape = TORCHVISION[name] if library == "torchvision" else ({}, "")
    options = ["--kwargs", json.dumps(kwargs)] if kwargs else []
    options += [part for text in shape.split() for part in ("--input", text)]
    return ["new", name, "--from", f"{library}:{name}", *options]


def make(model: str) -> tuple[Any, dict[str, Any]]:
    """Make the network of a model, and its example inputs by name."""
    import torch

    torch.manual_seed(0)
    library, _, name = model.partition("/")
    if library == "timm":
        import timm

        network = timm.create_model(name, pretrained=False)
        return network, {"x": torch.rand(2, *network.pretrained_cfg["input_size"])}
    if library == "torchvision":
        from torchvision import models

        kwargs, shape = TORCHVISION[name]
        builder = inspect.signature(models.get_model_builder(name)).parameters
        random = {key: None for key in ("weights", "weights_backbone") if key in builder}
        texts = dict(text.split("=") for text in (shape or "x=batch,3,224,224").split())
        inputs = {
            key: torch.rand([2 if size == "batch" else int(size) for size in text.split(",")])
            for key, text in texts.items()
        }
        return models.get_model(name, **random, **kwargs), inputs
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(name, **TRANSFORMERS[name])
    network = AutoModel.from_config(config)
    for part in (network.config, network.config.get_text_config()):
        part.use_cache = False
    parameters = inspect.signature(network.forward).parameters
    side = getattr(getattr(config, "vision_config", config), "image_size", None)
    ids = torch.randint(3, 40, (2, 16))
    examples = {
        "input_ids": ids,
        "pixel_values": torch.rand(2, 3, side, side) if side else None,
        "input_values": torch.rand(2, 64, 32) if "spectrogram" in name else torch.rand(2, 16000),
        "input_features": torch.rand(2, 16, 100),
        "decoder_input_ids": ids[:, :8] if config.is_encoder_decoder else None,
    }
    chosen = {network.main_input_name, "pixel_values", "decoder_input_ids"} & parameters.keys()
    return network, {key: examples[key] for key in examples if key in chosen}


def run_plain(model: str) -> str:
    """Export the model and compare both runtimes; return the exporter, "" if none works."""
    import numpy as np
    import onnxruntime as ort
    import torch
    from torch.utils import _pytree

    network, inputs = make(model)
    is_list = any(len(tensor.shape) == 3 and tensor.shape[0] == 3 for tensor in inputs.values())

    class Called(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
            """Return all tensors of the result."""
            if model.startswith("transformers/"):
                result = dict(self.network(**dict(zip(inputs, tensors, strict=True))))
            else:
                result = self.network([*tensors]) if is_list else self.network(*tensors)
            leaves = _pytree.tree_leaves(result)
            return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    called = Called().eval()
    feeds = {key: tensor.numpy() for key, tensor in inputs.items()}
    with torch.no_grad():
        expected = [tensor.numpy() for tensor in called(*inputs.values())]
    for is_dynamo in (True, False):
        try:
            torch.onnx.export(
                called, tuple(inputs.values()), "plain.onnx", dynamo=is_dynamo,
                opset_version=18 if is_dynamo else 17, input_names=list(inputs),
            )  # fmt: skip
            session = ort.InferenceSession("plain.onnx", providers=["CPUExecutionProvider"])
            ports = {port.name for port in session.get_inputs()}
            outputs = session.run(None, {key: feeds[key] for key in feeds if key in ports})
            for output, tensor in zip(outputs, expected, strict=True):
                noise = np.inf if is_list else 1e-3 * np.abs(tensor).max(initial=0)
                np.testing.assert_allclose(output, tensor, 1e-3, noise)
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
        else:
            return "dynamo" if is_dynamo else "torchscript"
    return ""


def run_step(folder: Path, step: str, command: Sequence[str], limit_s: float) -> tuple[int, str]:
    """Run a command in a folder; return its exit code and the line that says why it failed."""
    log = folder / f"{step}.log"
    with log.open("w") as stream:
        code = subprocess.run(
            ["timeout", "-k", "10", f"{max(1.0, limit_s)}", sys.executable, *command],
            cwd=folder, stdout=stream, stderr=subprocess.STDOUT,
        ).returncode  # fmt: skip
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else "no output"
    problem = next((line for line in lines if line.startswith(("failed ", "ERROR: "))), last)
    return code, f"more than {limit_s:.0f} s" if code in (124, 137) else problem


def run_model(model: str, root: Path, timeout_s: float, deadline: float, with_plain: bool) -> Any:
    """Propose, build and export a model; return the status of each step and the seconds."""
    folder = root / model
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "configs/models").mkdir(parents=True)
    shutil.copy(HERE.parents[2] / "dodo.py", folder)
    name = model.partition("/")[2]
    result = {"model": model, "new": "", "build": "", "plain": "", "reason": "", "plain_s": 0}
    start = time.monotonic()
    steps = {
        "new": ["-m", "buildsys", *new_command(model, folder)],
        "build": ["-m", "buildsys", "build", name, "--no-bench"],
    }
    for step, command in steps.items():
        limit_s = min(start + timeout_s, deadline) - time.monotonic()
        code, problem = run_step(folder, step, command, limit_s)
        result[step] = "failed" if code else "passed"
        if code:
            result["reason"] = f"{step}: {problem}"
            break
    result["here_s"] = round(time.monotonic() - start, 1)
    start = time.monotonic()
    if with_plain:
        limit_s = min(timeout_s, deadline - start)
        code, problem = run_step(folder, "plain", [str(HERE), "--plain", model], limit_s)
        result["plain"] = "failed" if code else problem
        result["plain_s"] = round(time.monotonic() - start, 1)
    for part in ("build", ".buildsys"):
        shutil.rmtree(folder / part, ignore_errors=True)
    for file in folder.glob("plain.onnx*"):
        file.unlink()
    return result


def run_all(models: Sequence[str], options: argparse.Namespace) -> None:
    """Run models side by side, and append each result to a file."""
    deadline = time.monotonic() + options.seconds
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def run(model: str) -> None:
        if time.monotonic() > deadline:
            return
        result = run_model(
            model, options.results, options.timeout, deadline, not options.skip_plain
        )
        if time.monotonic() > deadline:  # it may have been cut
            return
        with (options.results / "results.jsonl").open("a") as file:
            file.write(f"{json.dumps(result)}\n")
        print(line(result), flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, models))


def line(result: Mapping[str, Any]) -> str:
    """Write a result on one line."""
    seconds = f"{result['here_s']:6.1f} s {result['plain_s']:6.1f} s"
    steps = "".join(f"{result[step] or '-':12}" for step in ("new", "build", "plain"))
    return f"{result['model']:52}{steps}{seconds}  {result['reason'][:300]}".rstrip()


def read_results(file: Path) -> dict[str, dict[str, Any]]:
    """Read the last result of each model."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {result["model"]: result for result in map(json.loads, lines)}


def summary(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of the rates, and the models that are missing."""
    yield f"Versions: {', '.join(f'{library} {version(library)}' for library in LIBRARIES)}."
    yield ""
    yield "| library | models | plain runs | pass here | share | here, median s | plain, median s |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for library in ("transformers/", "timm/", "torchvision/", ""):
        own = [result for model, result in results.items() if model.startswith(library)]
        plain = [result for result in own if result["plain"] not in ("", "failed")]
        passed = sum(result["build"] == "passed" for result in plain)
        share = f"{100 * passed / len(plain):.1f} %" if plain else "-"
        seconds = [
            f"{statistics.median(times):.0f}" if (times := [r[key] for r in plain]) else "-"
            for key in ("here_s", "plain_s")
        ]
        cells = (library[:-1] or "**all**", len(own), len(plain), passed, share, *seconds)
        yield f"| {' | '.join(map(str, cells))} |"
    if missing := [model for model in MODELS if model not in results]:
        yield f"\nnot run: {len(missing)} models: {', '.join(missing)}"


def main() -> None:
    """Run the selected models that have no result, and print all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of LIBRARY/MODEL")
    parser.add_argument("--results", type=Path, default=Path(".buildsys/breadth"))
    parser.add_argument("--jobs", type=int, default=1, help="models at a time, one thread each")
    parser.add_argument("--timeout", type=float, default=240, help="seconds of a model, each way")
    parser.add_argument("--seconds", type=float, default=86_400, help="of all; the rest is not run")
    parser.add_argument("--skip-plain", action="store_true", help="no plain export")
    parser.add_argument("--plain", metavar="LIBRARY/MODEL", help="only the plain export")
    options = parser.parse_args()
    if options.plain:
        print(exporter := run_plain(options.plain))
        sys.exit(not exporter)
    options.results = options.results.resolve()
    options.results.mkdir(parents=True, exist_ok=True)
    results = read_results(file := options.results / "results.jsonl")
    selected = [model for model in MODELS if any(fnmatch(model, text) for text in options.only)]
    run_all([model for model in selected if model not in results], options)
    results = read_results(file)
    print("", *(line(result) for result in results.values() if result["reason"]), sep="\n")
    print("", *summary(results), sep="\n")


if __name__ == "__main__":
    main()
