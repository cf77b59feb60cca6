"""Models of timm and transformers, and files of the Hugging Face Hub."""

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from stage_jobs import ROOT, manifest
from torch import nn

from buildsys.errors import StageError
from buildsys.models.sources.transformers import checkpoint_digest
from buildsys.models.torch_model import Network, example_inputs, make_network
from buildsys.models.weights_files import is_present, load_weights, locate, pinned
from buildsys.project.plan import plan_model
from buildsys.stages.reference import proposal
from buildsys.workers.job import Job

BERT = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "vocab_size": 30, "max_position_embeddings": 16,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 30,
}  # fmt: skip
MAMBA = {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 30}
IDS = {"shape": [2, 4], "dtype": "int64"}


def options(source: dict[str, Any], **inputs: Any) -> Any:
    return next(iter(plan_model(manifest(source=source, inputs=inputs, dims={})))).options


def network(source: dict[str, Any], project: Path = ROOT, **inputs: Any) -> Network:
    return make_network(options(source, **(inputs or {"input_ids": IDS})), project)


def outputs(source: dict[str, Any], project: Path = ROOT, **inputs: Any) -> dict[str, torch.Tensor]:
    made = options(source, **(inputs or {"input_ids": IDS}))
    with torch.no_grad():
        return make_network(made, project)(example_inputs(made, project))


def test_a_torchvision_of_another_build_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    text = 'raise RuntimeError("operator torchvision::nms does not exist")\n'
    (package / "__init__.py").write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(StageError, match="operator torchvision::nms does not exist") as error:
        network({"torchvision": "resnet18"})
    assert error.value.hint.endswith("pip install --force-reinstall torch torchvision")


@pytest.mark.parametrize(
    ("name", "source"),
    [("timm", {"timm": "resnet10t"}), ("transformers", {"transformers": "A", "config": BERT})],
)
def test_a_missing_library_is_reported_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, name: str, source: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(StageError) as error:
        network(source)
    assert str(error.value).startswith(f"importing {name} failed: ModuleNotFoundError: ")
    assert error.value.hint == f"pip install {name}"


def test_without_a_gpu_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    resolved = manifest(source={"torchvision": "resnet18", "device": "cuda"})
    for action in list(plan_model(resolved))[:2]:
        with pytest.raises(StageError) as error:
            make_network(action.options, ROOT)
        assert str(error.value) == (
            f"source.device is cuda, but torch {torch.__version__} finds no GPU here; build on a"
            " machine with an NVIDIA GPU, or take the results of one from a shared cache"
        )
        assert type(error.value) is StageError  # failed: without a graph nothing can follow


# --- timm ---


def test_a_timm_model_has_weights_of_the_seed() -> None:
    pytest.importorskip("timm")
    image = {"shape": [1, 3, 32, 32]}
    source = {"timm": "resnet10t", "kwargs": {"num_classes": 5}}
    [first] = outputs(source, image=image).values()
    assert first.shape == (1, 5)
    assert torch.equal(first, outputs(source, image=image)["output0"])
    assert not torch.equal(first, outputs({**source, "seed": 1}, image=image)["output0"])


def test_an_unknown_timm_model_suggests_similar_names() -> None:
    pytest.importorskip("timm")
    for name in ("resnet11t", "hf-hub:timm/resnet10t", "local-dir:/tmp"):
        with pytest.raises(StageError, match=f"timm has no model {name}"):
            network({"timm": name})
    with pytest.raises(StageError, match="did you mean resnet1"):
        network({"timm": "resnet11t"})


# --- transformers ---


def test_a_task_and_its_auto_class_give_the_same_model() -> None:
    pytest.importorskip("transformers")
    by_class = outputs({"transformers": "AutoModelForMaskedLM", "config": BERT})
    by_task = outputs({"transformers": "fill-mask", "config": BERT})
    assert by_class.keys() == {"logits"}
    assert torch.equal(by_class["logits"], by_task["logits"])


def test_past_key_values_are_inputs_and_outputs() -> None:
    pytest.importorskip("transformers")
    source = {"transformers": "text-generation", "config": LLAMA, "cache": True}
    made = network(source)
    ids = torch.tensor([[5, 6, 7, 8]])
    past = {
        f"past_key_values.{layer}.{kind}": {"shape": [1, 1, 3, 8]}
        for layer in (1, 0)
        for kind in ("value", "key")
    }
    step = network(source, input_ids={"shape": [1, 1], "dtype": "int64"}, **past)
    step = replace(step, module=made.module)  # random weights are scaled by the inputs
    with torch.no_grad():
        whole = made({"input_ids": ids})
        begun = made({"input_ids": ids[:, :3]})
        cached = {name.replace("present", "past_key_values"): t for name, t in begun.items()}
        cached.pop("logits")
        last = step({**cached, "input_ids": ids[:, 3:]})
    assert [*whole] == ["logits", *(f"present.{n}.{k}" for n in (0, 1) for k in ("key", "value"))]
    assert torch.allclose(last["logits"], whole["logits"][:, 3:], atol=1e-5)
    assert torch.allclose(last["present.1.key"], whole["present.1.key"], atol=1e-5)


def test_an_incomplete_cache_is_one_sentence() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(StageError, match=r"layer 0 .* add past_key_values.0.key and past_key_val"):
        outputs(
            {"transformers": "LlamaForCausalLM", "config": LLAMA, "cache": True},
            **{"input_ids": IDS, "past_key_values.0.key": {"shape": [2, 1, 3, 8]}},
        )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            {"transformers": "AutoModelForMaskLM"},
            "has no model class AutoModelForMaskLM; did you mean AutoModelForMaskedLM",
        ),
        ({"transformers": "AutoTokenizer"}, "has no model class AutoTokenizer"),
        (
            {"transformers": "fill-msk"},
            "has no task fill-msk for models of type bert; did you mean",
        ),
        ({"transformers": "image-segmentation"}, "no task image-segmentation for models of type b"),
        ({"config": {**BERT, "hiden_size": 3}}, "bert has no field hiden_size; did you mean hidd"),
        ({"config": {**BERT, "model_type": "brt"}}, "has no model_type brt; did you mean bert"),
        ({"config": {"hidden_size": 3}}, "has no model_type None"),
        ({"kwargs": {"dtype": "float31"}}, "torch has no dtype float31"),
        ({"cache": True}, "BertModel is not a decoder with past key values; remove source.cache"),
        (
            {"transformers": "MambaModel", "config": MAMBA, "cache": True},
            "MambaModel is not a decoder with past key values; remove source.cache",
        ),
    ],
)
def test_a_wrong_source_is_one_sentence(source: dict[str, Any], message: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(StageError) as error:
        outputs({"transformers": "BertModel", "config": BERT, **source})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def saved(folder: Path, **options: Any) -> Any:
    """Save a checkpoint of a small model with a tied head; return the model."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig.from_dict(BERT))
    model.save_pretrained(folder, **options)
    return model.eval()


@pytest.mark.parametrize("sizes", [{}, {"max_shard_size": "3KB"}], ids=["one file", "shards"])
def test_a_checkpoint_has_its_weights(tmp_path: Path, sizes: dict[str, Any]) -> None:
    model = saved(tmp_path / "bert", **sizes)
    assert (tmp_path / "bert/model.safetensors").exists() is not bool(sizes)
    source = {"transformers": "AutoModelForMaskedLM", "checkpoint": "bert/"}
    with torch.no_grad():
        expected = model(torch.ones(2, 4, dtype=torch.int64)).logits
    assert torch.equal(outputs(source, tmp_path)["logits"], expected)
    assert network(source, tmp_path).weights.startswith("from bert/model.safetensors")
    made = network(
        {**source, "transformers": "AutoModel", "kwargs": {"add_pooling_layer": False}}, tmp_path
    )
    assert made.weights.endswith("without 5 unused tensors")
    lacking = {**source, "checkpoint": None, "config": "bert/config.json", "weights": {}}
    if not sizes:
        lacking["weights"] = {"file": "bert/model.safetensors"}
        lacking["transformers"] = "BertForSequenceClassification"
        with pytest.raises(StageError, match="no weights of this shape for bert"):
            network(lacking, tmp_path)
        lacking["weights"]["strict"] = False
        missing = network(lacking, tmp_path).missing
        assert {"classifier.bias", "classifier.weight"} <= {*missing}


@pytest.mark.parametrize("sizes", [{}, {"max_shard_size": "3KB"}], ids=["one file", "shards"])
def test_a_pinned_checkpoint_refuses_changed_files(tmp_path: Path, sizes: dict[str, Any]) -> None:
    saved(tmp_path / "bert", **sizes)
    source = {"transformers": "AutoModelForMaskedLM", "checkpoint": "bert/"}
    pinned = {**source, "sha256": checkpoint_digest("bert", tmp_path)}
    assert outputs(pinned, tmp_path).keys() == {"logits"}
    shard = max((tmp_path / "bert").glob("*.safetensors"))
    for changed in (shard, tmp_path / "bert/config.json"):
        content = changed.read_bytes()
        damaged = content[:-3] + b"\x01" + content[-2:] if changed is shard else content + b"\n"
        changed.write_bytes(damaged)
        assert outputs(source, tmp_path)  # as valid as before
        with pytest.raises(StageError, match=r"has the sha256 .*; restore its files, or update"):
            outputs(pinned, tmp_path)
        changed.write_bytes(content)


def propose(folder: Path, **fields: Any) -> Any:
    defaults = {"config": None, "weights": None, "cache": False, "kwargs": {}, "seed": 0}
    options = {"source": {**defaults, **fields}, "inputs": {}, "outputs": {}}
    result = {"result": folder / "result.json"}
    return proposal.run(Job("new:m", "", "m", "", options, {}, result, folder)).figures


def test_manifests_are_proposed_from_the_configuration(tmp_path: Path) -> None:
    saved(tmp_path / "bert")
    found = propose(tmp_path, transformers="", checkpoint="bert")
    assert found["source"]["transformers"] == "BertForMaskedLM"  # saved it
    ids = {"shape": ["batch", "length"], "dtype": "int64"}
    assert found["inputs"] == {"input_ids": ids, "attention_mask": {**ids, "data": {"constant": 1}}}
    assert found["outputs"]["logits"]["shape"] == ["batch", "length", 30]
    ends = {name: (span["min"], span["max"]) for name, span in found["dims"].items()}
    assert ends == {"batch": (1, 8), "length": (8, 16)}  # of 16 positions


@pytest.mark.parametrize(
    ("fields", "inputs"),
    [
        ({"model_type": "vilt", "vocab_size": 20, "image_size": 32},
         {"input_ids": ["batch", "length"], "attention_mask": ["batch", "length"],
          "pixel_values": ["batch", 3, 32, 32]}),
        ({"model_type": "audio-spectrogram-transformer", "max_length": 48, "num_mel_bins": 32},
         {"input_values": ["batch", 48, 32]}),
    ],
)  # fmt: skip
def test_images_and_spectrograms_are_proposed(
    tmp_path: Path, fields: dict[str, Any], inputs: dict[str, Any]
) -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "intermediate_size": 8, **fields}))
    proposed = propose(tmp_path, transformers="", checkpoint=None, config="config.json")["inputs"]
    assert {name: port["shape"] for name, port in proposed.items()} == inputs


def test_a_decoder_with_a_cache(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes, **ids}))
    found = propose(
        tmp_path,
        transformers="text-generation",
        checkpoint=None,
        config="config.json",
        cache=True,
    )
    assert {name: port["shape"] for name, port in found["inputs"].items()} == {
        "input_ids": ["batch", "length"],
        "past_key_values.0.key": ["batch", 2, "past", 4],
        "past_key_values.0.value": ["batch", 2, "past", 4],
    }
    assert {name: port["shape"] for name, port in found["outputs"].items()} == {
        "logits": ["batch", "length", 20],
        "present.0.key": ["batch", 2, None, 4],
        "present.0.value": ["batch", 2, None, 4],
    }
    ends = {name: (span["min"], span["max"]) for name, span in found["dims"].items()}
    assert ends == {"batch": (1, 8), "length": (1, 32), "past": (16, 32)}


def test_a_checkpoint_without_the_head_is_an_error(tmp_path: Path) -> None:
    saved(tmp_path / "bert")
    source = {"transformers": "text-classification", "checkpoint": "bert"}
    with pytest.raises(StageError, match=r"not fit BertForSeq.* for bert\.pooler.*saved by BertF"):
        network(source, tmp_path)


def test_code_and_pickles_of_a_checkpoint_are_never_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    model = saved(folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForMaskedLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("open('trapped', 'w')\nclass Model: ...\n")
    source = {"transformers": "AutoModelForMaskedLM", "checkpoint": "bert"}
    network(source, tmp_path)
    config["model_type"] = "evil"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(StageError, match="has no model_type evil"):
        network(source, tmp_path)
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(StageError, match=r"bert has neither .* save safetensors with"):
        network(source, tmp_path)
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(StageError, match=r"cannot read the configuration bert/config.json"):
        network(source, tmp_path)
    assert not Path("trapped").exists()


# --- files of the Hugging Face Hub, from a server on this machine ---

COMMIT = "0123456789" * 4
NAME = f"hf://owner/net@{COMMIT}"


class Hub(BaseHTTPRequestHandler):
    """The part of the Hub's API that serves files at a commit."""

    files: dict[str, bytes]

    def do_HEAD(self) -> None:
        self.answer(is_head=True)

    def do_GET(self) -> None:
        self.answer(is_head=False)

    def answer(self, *, is_head: bool) -> None:
        place = self.path.replace("/resolve/main/", f"/resolve/{COMMIT}/")
        content = self.files.get(place.removeprefix(f"/owner/net/resolve/{COMMIT}/"))
        self.send_response(404 if content is None else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound")
            content = b""
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not is_head:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Serve files by their paths; yield them."""
    constants = pytest.importorskip("huggingface_hub.constants")
    Hub.files = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(variable, "127.0.0.1")
    yield Hub.files
    server.shutdown()
    server.server_close()


def test_weights_of_a_commit_are_downloaded_once(
    tmp_path: Path, served: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"weight": torch.full((2, 2), 2.0), "bias": torch.ones(2)}, tmp_path / "w.pth")
    served["weights/net.pth"] = (tmp_path / "w.pth").read_bytes()
    module = nn.Linear(2, 2)
    weights = {"file": f"{NAME}/weights/net.pth", "sha256": None, "key": None, "strict": True}
    load_weights(module, weights, tmp_path, "net")
    assert (module.weight == 2.0).all()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    load_weights(module, weights, tmp_path, "net")


def test_a_missing_file_differs_from_an_unreachable_hub(
    tmp_path: Path, served: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_present(f"{NAME}/net.pth", tmp_path)
    with pytest.raises(StageError, match=r"the Hub has no file hf://.*; check the name and the co"):
        locate(f"{NAME}/net.pth", tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda _: None)  # the library tries again for 20 s
    with pytest.raises(StageError) as error:
        locate(f"{NAME}/other.pth", tmp_path)
    assert f"{NAME}/other.pth is not in the cache, and http://127.0.0.1:9 did" in str(error.value)
    assert "check the name; go online, " in str(error.value)
    assert "\n" not in str(error.value)


def test_a_branch_is_pinned_to_its_commit_also_offline(
    served: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    served["config.json"] = b"{}"
    assert pinned("owner/net", "main", "config.json") == f"{NAME}/config.json"
    with pytest.raises(StageError, match=r"the Hub has no x\.json of owner/net at main; check the"):
        pinned("owner/net", "main", "x.json")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert pinned("owner/net", "main", "config.json") == f"{NAME}/config.json"


def test_a_damaged_cached_file_is_an_error(tmp_path: Path, served: dict[str, bytes]) -> None:
    served["net.pth"] = b"weights"
    file = locate(f"{NAME}/net.pth", tmp_path)
    file.resolve().write_bytes(b"WEIGHTS")
    with pytest.raises(StageError, match=r"the cached file .* is damaged; delete it"):
        locate(f"{NAME}/net.pth", tmp_path)


def test_a_checkpoint_of_a_commit_is_loaded(tmp_path: Path, served: dict[str, bytes]) -> None:
    model = saved(tmp_path / "saved", max_shard_size="3KB")
    served |= {file.name: file.read_bytes() for file in (tmp_path / "saved").iterdir()}
    shutil.rmtree(tmp_path / "saved")
    made = network({"transformers": "fill-mask", "checkpoint": NAME}, tmp_path)
    assert torch.equal(
        made.module.state_dict()["cls.predictions.bias"], model.state_dict()["cls.predictions.bias"]
    )
    assert made.weights == f"from {NAME}/model.safetensors.index.json"
