import hashlib
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_networks import Affine, Small
from stage_jobs import ROOT, manifest
from torch import nn

from buildsys.errors import StageError
from buildsys.models.random_weights import draw_parameters, measuring_layers
from buildsys.models.sources.source_module import make_module
from buildsys.models.torch_model import example_inputs, make_network
from buildsys.project.plan import plan_model

IMAGE = {"x": {"shape": ["batch", 3, 32, 32]}}


def options(source: dict[str, Any], inputs: Any = IMAGE) -> Any:
    return next(iter(plan_model(manifest(source=source, inputs=inputs)))).options


def digest(module: nn.Module) -> str:
    state = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        state.update(name.encode() + tensor.numpy().tobytes())
    return state.hexdigest()


def drawn(seed: int = 0, name: str = "shufflenet_v2_x0_5") -> nn.Module:
    return make_network(options({"torchvision": name, "seed": seed}), ROOT).module


# --- random weights ---


def test_weights_depend_on_the_seed_only() -> None:
    threads = torch.get_num_threads()
    first = digest(drawn())
    torch.manual_seed(123)
    torch.set_num_threads(1)
    try:
        assert digest(drawn()) == first
    finally:
        torch.set_num_threads(threads)
    assert digest(drawn(seed=1)) != first


def test_weights_are_equal_on_every_machine() -> None:
    layer = nn.Linear(4, 3)
    draw_parameters(layer, 0)
    expected = torch.tensor([[0.1908, -1.1391, -0.4401, 0.0270]])
    assert torch.allclose(layer.weight[:1], expected, atol=1e-4), layer.weight


def test_batch_norm_statistics_fit_the_inputs_of_the_layer() -> None:
    module = Small().eval()
    draw_parameters(module, 0)
    images = 100 * torch.randn(2, 3, 16, 16)
    with torch.no_grad(), measuring_layers(module, 0):
        module(images)
    first = module[1]
    reaching = module[0](images)
    scale = 2.0 ** torch.log2(reaching.square().mean()).round()
    assert ((first.running_var / scale >= 0.5) & (first.running_var / scale <= 1.5)).all()
    assert first.running_var.unique().numel() == 8
    assert (first.running_mean.abs() <= 0.25 * scale.sqrt()).all()
    assert not first._forward_pre_hooks
    with torch.no_grad():
        assert 0.1 < module(images).abs().max() < 30


class Branches(nn.Module):
    """A network without norms whose sums grow from layer to layer, to scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))
        self.scores = nn.Linear(16, 40)
        self.tied = nn.Linear(16, 16, bias=False)
        self.tied.weight = self.layers[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + 3 * layer(x)
        return self.scores(x)


def test_large_outputs_are_scaled_by_powers_of_two_so_that_scores_differ() -> None:
    module, plain = Branches().eval(), Branches()
    draw_parameters(module, 0)
    draw_parameters(plain, 0)
    x = torch.randn(64, 16)
    with torch.no_grad():
        assert plain(x).sigmoid().eq(1).sum() > 100
        with measuring_layers(module, 0):
            measured = module(x)
        assert torch.equal(module(x), measured)
    assert 0.25 < measured.square().mean() <= 4
    assert measured.sigmoid().unique().numel() > 0.99 * measured.numel()
    factors = module.scores.weight / plain.scores.weight
    assert factors.unique().numel() == 1
    assert factors[0, 0].log2() == factors[0, 0].log2().round() < 0
    assert torch.equal(module.tied.weight, plain.tied.weight)
    assert torch.equal(module.scores.bias, plain.scores.bias)


def test_every_kind_of_parameter_has_its_range() -> None:
    module = nn.ModuleDict(
        {
            "norm": nn.LayerNorm(64),
            "prelu": nn.PReLU(64),
            "embed": nn.Embedding(64, 64),
            "rnn": nn.LSTM(16, 16),
            "up": nn.ConvTranspose2d(8, 4, 3),
        }
    )
    scalar = nn.Parameter(torch.tensor(7.0))
    module.register_parameter("scalar", scalar)
    draw_parameters(module, 0)
    state = module.state_dict()
    assert ((state["norm.weight"] > 0.9) & (state["norm.weight"] < 1.1)).all()
    assert (state["norm.bias"].abs() < 0.1).all()
    assert ((state["prelu.weight"] > 0.1) & (state["prelu.weight"] < 0.4)).all()
    assert state["embed.weight"].std() == pytest.approx(1.0, rel=0.05)
    assert state["rnn.weight_ih_l0"].std() == pytest.approx(0.25, rel=0.05)
    assert state["up.weight"].std() == pytest.approx((2 / 72) ** 0.5, rel=0.1)
    assert scalar.item() == 7.0


def test_parameters_of_other_types_are_drawn_and_shared_ones_once() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).half()
    module[1].weight = module[0].weight
    draw_parameters(module, 0)
    assert module[0].weight is module[1].weight
    assert 0.1 < module[0].weight.float().std() < 2


def test_a_parameter_without_shape_is_an_error() -> None:
    with pytest.raises(StageError, match="weight has no shape before the first forward"):
        draw_parameters(nn.LazyLinear(3), 0)


def test_a_python_source_is_drawn_only_on_request() -> None:
    source = {"python": "tests/integration/sample_networks.py:Affine"}
    kept = make_network(options(source, {"x": {"shape": ["batch", 4]}}), ROOT)
    torch.manual_seed(0)
    assert torch.equal(kept.module.linear.weight, Affine().linear.weight)
    assert "initialized by tests/integration/sample_networks.py:Affine" in kept.weights
    asked = make_network(
        options({**source, "randomize": True}, {"x": {"shape": ["batch", 4]}}), ROOT
    )
    assert asked.weights == "random, seed 0"
    assert not torch.equal(kept.module.linear.weight, asked.module.linear.weight)
    assert not asked.module.training


def test_example_inputs_suit_embeddings_lengths_and_masks() -> None:
    inputs = {
        "ids": {"shape": [2, 3], "dtype": "int64"},
        "mask": {"shape": [2], "dtype": "bool"},
        "x": {"shape": [9]},
    }
    example = example_inputs(options({"torchvision": "resnet18"}, inputs), ROOT)
    assert example["ids"].tolist() == [[1, 1, 1]] * 2
    assert example["mask"].tolist() == [True, True]
    assert example["x"].unique().numel() == 9


# --- weights from files ---


LINEAR = "from torch import nn\ndef make(): return nn.Linear(4, 3)\n"


def made(folder: Path, state: Any, code: str = LINEAR, **weights: Any) -> tuple[Any, str]:
    (folder / "net.py").write_text(code)
    if state is not None:
        torch.save(state, folder / "w.pth")
    source = {"python": "net.py:make", "seed": 0, "kwargs": {}, "randomize": False}
    weights = {"file": "w.pth", "sha256": None, "key": None, "strict": True, **weights}
    module = make_module({**source, "weights": weights}, folder)
    return module.module, module.weights


def loaded(tmp_path: Path, state: Any, **weights: Any) -> nn.Module:
    module: nn.Module = made(tmp_path, state, **weights)[0]
    return module


def linear_state(features: int = 3, prefix: str = "") -> dict[str, torch.Tensor]:
    return {
        f"{prefix}weight": torch.full((features, 4), 2.0),
        f"{prefix}bias": torch.ones(features),
    }


HALVES = {name: tensor.half() for name, tensor in linear_state().items()}
ADAM = {"state": {0: {"exp_avg": torch.ones(3, 4)}}, "param_groups": [{"lr": 0.1}]}


@pytest.mark.parametrize(
    ("state", "origin"),
    [
        (linear_state(), ""),
        (linear_state(prefix="module."), ", key module"),
        (linear_state(prefix="_orig_mod.module."), ", key _orig_mod.module"),
        ({"n": torch.tensor(3), **linear_state(prefix="module.")}, ", key module, without 1 other"),
        ({"epoch": 3, "state_dict": linear_state(prefix="model.")}, ", key state_dict.model"),
        ({**linear_state(prefix="backbone."), "head.w": torch.ones(1)}, ", key backbone, without"),
        ({"net": linear_state(), "optimizer": ADAM}, ", key net, without 1 other"),
        ({"generator": linear_state(), "critic": linear_state(5)}, ", key generator, without 2"),
        ({"a": {"b": HALVES}, "config": {"lr": 0.1}}, ", key a.b"),
        ({**linear_state(), "config": {"lr": 0.1}, "epoch": 3}, ""),
    ],
)
def test_the_state_dict_in_a_checkpoint_is_loaded(tmp_path: Path, state: Any, origin: str) -> None:
    module, weights = made(tmp_path, state)
    assert (module.weight == 2.0).all()
    assert weights.startswith(f"from w.pth{origin}")
    assert origin or weights == "from w.pth"


def test_one_of_several_state_dicts_is_chosen_by_its_key(tmp_path: Path) -> None:
    state = {"model": linear_state(prefix="module."), "model_ema": {"weight": 2, **linear_state()}}
    state["model_ema"]["bias"] = torch.full((3,), 7.0)
    with pytest.raises(StageError) as error:
        loaded(tmp_path, state)
    assert str(error.value) == (
        "w.pth has 2 state dicts of this network; which one is it?\n"
        "  weights: {file: w.pth, key: model.module}\n  weights: {file: w.pth, key: model_ema}"
    )
    assert (loaded(tmp_path, state, key="model").bias == 1.0).all()
    assert (loaded(tmp_path, state, key="model_ema").bias == 7.0).all()
    with pytest.raises(StageError, match="no state dict of this network at the key ema; correct"):
        loaded(tmp_path, state, key="ema")


@pytest.mark.parametrize(
    ("parameters", "changes"),
    [
        ("features=3, bias=True", ['source: {kwargs: {"features": 5}}']),
        ("features", ['source: {kwargs: {"features": 5}}']),
        ("", []),
    ],
)
def test_arguments_that_training_saved_with_the_weights_are_proposed(
    tmp_path: Path, parameters: str, changes: list[str]
) -> None:
    code = (
        f"from torch import nn\ndef make({parameters}): return nn.Linear(4, {parameters[:8] or 3})"
    )
    saved = {"features": 5, "bias": True, "lr": 0.1, "loss": torch.nn.MSELoss()}
    with pytest.raises(StageError) as error:
        made(tmp_path, {"state_dict": linear_state(5), "hyper_parameters": saved}, code)
    assert error.value.changes == changes


def test_the_key_of_names_outside_all_keys_is_empty(tmp_path: Path) -> None:
    state = {**linear_state(), "ema": {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}}
    with pytest.raises(StageError, match=r"key: \"\"\}\n.*key: ema\}$"):
        loaded(tmp_path, state)
    assert (loaded(tmp_path, state, key="").bias == 1.0).all()
    assert (loaded(tmp_path, state, key="ema").bias == 0.0).all()


@pytest.mark.parametrize(
    "section",
    [
        *({"key": "a.model"}, {"key": "a", "prefix": "model."}, {"prefix": "a.model"}),
        *({"key": "a"}, {"prefix": "model."}),
    ],
)
def test_a_prefix_is_joined_to_the_key(tmp_path: Path, section: Any) -> None:
    state = {"a": linear_state(prefix="model."), "b": HALVES}
    assert made(tmp_path, state, **section)[1] == "from w.pth, key a.model, without 2 other tensors"


def test_a_wrong_key_proposes_the_only_fitting_one(tmp_path: Path) -> None:
    with pytest.raises(StageError) as error:
        loaded(tmp_path, {"a b": linear_state(prefix="n.")}, key="c", prefix="d")
    assert error.value.changes == ['source: {weights: {key: "a b.n", prefix: null}}']
    with pytest.raises(StageError, match=": it lacks bias"):
        loaded(tmp_path, {"a": {"weight": torch.ones(3, 4)}}, key="a")


def test_other_tensors_are_left_out_and_missing_ones_stay_unless_strict(tmp_path: Path) -> None:
    state = {"a.weight": torch.full((3, 4), 2.0), "a.head": torch.ones(1), "b.x": torch.ones(1)}
    with pytest.raises(StageError, match="it lacks bias; the network has no head") as error:
        loaded(tmp_path, state)
    assert not error.value.changes
    module, origin = made(tmp_path, state, strict=False)
    torch.manual_seed(0)
    assert torch.equal(module.bias, nn.Linear(4, 3).bias)
    assert (module.weight == 2.0).all()
    assert origin == "from w.pth, key a, without 2 other tensors"
    with pytest.raises(StageError, match="size mismatch for weight"):
        loaded(tmp_path, {**state, "a.weight": torch.ones(5, 4)}, strict=False)
    with pytest.raises(StageError, match="it lacks bias, weight"):
        loaded(tmp_path, {"other": torch.ones(1)}, strict=False)
    with pytest.raises(StageError, match="2 state dicts of this network; which"):
        loaded(tmp_path, {**state, "ema.weight": torch.ones(3, 4)}, strict=False)
    with pytest.raises(StageError) as error:
        loaded(tmp_path, {**linear_state(), "head": torch.ones(1)})
    assert error.value.changes == ["source: {weights: {strict: false}}"]


def test_counters_of_batches_are_not_needed(tmp_path: Path) -> None:
    norm = "from torch import nn\ndef make(): return nn.BatchNorm1d(3)\n"
    state = nn.BatchNorm1d(3).state_dict()
    state["running_mean"] += 5.0
    halves = {name: tensor.half() for name, tensor in state.items()}
    del state["num_batches_tracked"]
    for checkpoint in (state, halves, {"state_dict": state}):
        module = made(tmp_path, checkpoint, norm)[0]
        assert (module.running_mean == 5.0).all()
        assert module.num_batches_tracked.dtype == torch.int64


def test_the_digest_is_compared(tmp_path: Path) -> None:
    torch.save(linear_state(), tmp_path / "w.pth")
    right = hashlib.sha256((tmp_path / "w.pth").read_bytes()).hexdigest()
    assert (loaded(tmp_path, None, sha256=right).weight == 2.0).all()
    with pytest.raises(
        StageError, match=f"w.pth has the sha256 {right}, the manifest expects {'0' * 64}"
    ):
        loaded(tmp_path, None, sha256="0" * 64)


class Trap:
    """Writes a file when unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("open('trapped', 'w')",)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            linear_state(5),
            "w.pth does not fit net.py:make: size mismatch for weight: copying a param with shape",
        ),
        (
            {"weight": torch.ones(3, 4), "scale": torch.ones(1)},
            "does not fit net.py:make: it lacks bias; the network has no scale; weights.strict: "
            "false leaves others out and keeps missing ones as created; name weights of",
        ),
        ([1, 2], "w.pth holds an object of type list without tensors"),
        ({"epoch": 3}, "w.pth holds an object of type dict without tensors"),
        (Trap(), "w.pth holds an object of type OrderedDict without tensors"),
        (
            nn.BatchNorm1d(3),
            "fit net.py:make: the network has no num_batches_tracked, running_mean",
        ),
        (None, "w.pth does not exist in the project; check the path"),
    ],
    ids=["shape", "names", "list", "no tensors", "code", "module", "missing"],
)
def test_a_file_of_another_network_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StageError) as error:
        loaded(tmp_path, state)
    assert message in str(error.value)
    assert not (tmp_path / "trapped").exists()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html><html><body>404</body></html>"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LFS, "w.pth is a Git LFS pointer, not the file itself; run `git lfs pull`"),
        (PAGE, "w.pth is a web page; download the file itself"),
        (b"", "w.pth is empty; copy or download it again"),
        (b"PK\x05\x06" + bytes(18), "w.pth is an empty archive; copy"),
        ("constants.pkl", "w.pth is a TorchScript archive; save torch.jit.load(FILE).state_dict()"),
        ("a.npy", "w.pth is an archive of numpy; save a state dict"),
        (None, "w.pth is the beginning of a file; copy or download all of it"),
    ],
    ids=["pointer", "page", "empty", "no members", "script", "numpy", "truncated"],
)
@pytest.mark.parametrize("digest", [None, "0" * 64])
def test_a_file_that_is_something_else_is_named(
    tmp_path: Path, content: bytes | str | None, message: str, digest: str | None
) -> None:
    file = tmp_path / "w.pth"
    torch.save(linear_state(), file)
    if isinstance(content, str):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(f"net/{content}", b"")
    else:
        file.write_bytes(file.read_bytes()[:-99] if content is None else content)
    with pytest.raises(StageError) as error:
        loaded(tmp_path, None, sha256=digest)
    assert str(error.value).startswith(message)


@pytest.fixture
def linear(tmp_path: Path) -> bytes:
    """Write the weights of a linear layer as safetensors."""
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(linear_state(), tmp_path / "w.safetensors")
    return (tmp_path / "w.safetensors").read_bytes()


def test_safetensors_are_loaded(tmp_path: Path, linear: bytes) -> None:
    module = loaded(tmp_path, None, file="w.safetensors")
    assert torch.equal(module.weight, torch.full((3, 4), 2.0))
    assert torch.equal(module.bias, torch.ones(3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: struct.pack("<Q", 100 * 10**9) + content[8:], "header too large"),
        (lambda content: content[:-4], "incomplete metadata, file not fully covered"),
        (lambda content: b"\x80\x04\x8c\x02os\x94.", "or name it .pth"),
        (lambda content: LFS, "w.safetensors is a Git LFS pointer, not the file itself; run `git"),
        (
            lambda content: content.replace(b'"F32"', b'"I32"', 1),
            "does not fit net.py:make: bias is integer in the file and float in the network",
        ),
    ],
    ids=["100 GB", "truncated", "pickle", "pointer", "integers"],
)
def test_bad_safetensors_are_one_sentence(
    tmp_path: Path, linear: bytes, change: Any, message: str
) -> None:
    (tmp_path / "w.safetensors").write_bytes(change(linear))
    with pytest.raises(StageError) as error:
        loaded(tmp_path, None, file="w.safetensors")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def sharded(folder: Path, suffix: str = ".safetensors") -> str:
    safetensors = pytest.importorskip("safetensors.torch")
    save = torch.save if suffix == ".bin" else safetensors.save_file
    table = {"weight": f"a{suffix}", "bias": f"b{suffix}"}
    for name, tensor in linear_state().items():
        save({name: tensor}, folder / table[name])
    index = folder / f"m{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": table}))
    return index.name


def test_shards_of_torch_are_loaded(tmp_path: Path) -> None:
    index = sharded(tmp_path, ".bin")
    assert (loaded(tmp_path, None, file=index).weight == 2.0).all()
    torch.save(linear_state(), tmp_path / "b.bin")
    with pytest.raises(StageError, match=f"b.bin differs from {index} in weight; download or"):
        loaded(tmp_path, None, file=index)


def test_shards_are_loaded_and_digested_together(tmp_path: Path) -> None:
    index = sharded(tmp_path)
    files = (tmp_path / name for name in (index, "a.safetensors", "b.safetensors"))
    right = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    assert (loaded(tmp_path, None, file=index, sha256=right).weight == 2.0).all()
    altered = bytearray((tmp_path / "b.safetensors").read_bytes())
    altered[-1] ^= 1
    (tmp_path / "b.safetensors").write_bytes(altered)
    with pytest.raises(
        StageError, match=r"m\.safetensors\.index.json with its shards has the sha256"
    ):
        loaded(tmp_path, None, file=index, sha256=right)


def test_a_shard_against_its_index_is_an_error(tmp_path: Path, linear: bytes) -> None:
    index = sharded(tmp_path)
    (tmp_path / "b.safetensors").write_bytes(linear)
    with pytest.raises(StageError, match=f"b.safetensors differs from {index} in weight; down"):
        loaded(tmp_path, None, file=index)
    (tmp_path / "b.safetensors").unlink()
    message = f"b.safetensors, a shard of {index}, does not exist; download or save all files"
    with pytest.raises(StageError, match=message):
        loaded(tmp_path, None, file=index)


def test_a_shared_tensor_may_be_saved_once(tmp_path: Path) -> None:
    (tmp_path / "tied.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))\n"
        "    module[1].weight = module[0].weight\n"
        "    return module\n"
    )
    torch.save({"1.weight": torch.full((2, 2), 2.0)}, tmp_path / "w.pth")
    weights = {"file": "w.pth", "sha256": None, "key": None, "strict": True}
    source = {"python": "tied.py:make", "seed": 0, "kwargs": {}, "randomize": False}
    module: Any = make_module({**source, "weights": weights}, tmp_path).module
    assert (module[0].weight == 2.0).all()


# --- pretrained weights ---


def pretrained(name: str, weights: str) -> nn.Module:
    return make_module(
        {"torchvision": name, "weights": weights, "seed": 0, "kwargs": {}}, ROOT
    ).module


def test_unknown_weights_name_the_known_ones() -> None:
    with pytest.raises(
        StageError,
        match="no weights IMAGENET for resnet50; available: IMAGENET1K_V1, IMAGENET1K_V2, D",
    ):
        pretrained("resnet50", "IMAGENET")


def test_a_failed_download_names_address_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for variable in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(StageError) as error:
        pretrained("resnet18", "DEFAULT")
    file = tmp_path / "hub/checkpoints/resnet18-f37072fd.pth"
    assert f"not at {file}" in error.value.problem
    assert "https://download.pytorch.org/models/resnet18-f37072fd.pth" in error.value.hint
    assert "weights: null" in error.value.hint


def test_a_damaged_cached_file_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = tmp_path / "hub/checkpoints/resnet18-f37072fd.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"half a file")
    with pytest.raises(StageError, match="must start with f37072fd"):
        pretrained("resnet18", "IMAGENET1K_V1")


def test_no_backbone_is_downloaded_for_random_weights() -> None:
    source = {"torchvision": "lraspp_mobilenet_v3_large", "weights": None, "seed": 0, "kwargs": {}}
    assert make_module(source, ROOT).weights == "random, seed 0"
