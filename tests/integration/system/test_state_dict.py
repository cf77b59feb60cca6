"""The digest of a state dict without torch, on files that the real torch writes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from buildsys.system.torch_checkpoint import tensors_digest


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3))


def digest_of(folder: Path, value: object, name: str = "w.pth", **options: Any) -> str | None:
    path = folder / name
    torch.save(value, path, **options)
    return tensors_digest(str(path))


def test_saving_again_changes_the_file_and_not_the_digest(tmp_path: Path) -> None:
    state = network().state_dict()
    first = digest_of(tmp_path, state, "a.pth")
    assert first is not None
    assert first.startswith("tensors:")
    assert digest_of(tmp_path, torch.load(tmp_path / "a.pth"), "another-name.pth") == first
    assert (tmp_path / "a.pth").read_bytes() != (tmp_path / "another-name.pth").read_bytes()
    assert digest_of(tmp_path, dict(state), "plain.pth") == first
    assert digest_of(tmp_path, OrderedDict(reversed(state.items())), "order.pth") == first
    assert (
        digest_of(tmp_path, {name: tensor.clone() for name, tensor in state.items()}, "copies.pth")
        == first
    )
    assert (
        digest_of(
            tmp_path, {name: nn.Parameter(t, False) for name, t in state.items()}, "parameters.pth"
        )
        == first
    )


def test_every_value_of_every_tensor_counts(tmp_path: Path) -> None:
    state = network().state_dict()
    seen = {digest_of(tmp_path, state)}
    for name, tensor in state.items():
        for index in {0, tensor.numel() - 1}:
            changed = {key: value.clone() for key, value in state.items()}
            changed[name].view(-1)[index] += 1
            seen.add(digest_of(tmp_path, changed))
    assert None not in seen
    assert len(seen) == 1 + sum(len({0, tensor.numel() - 1}) for tensor in state.values())


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {**state, "extra": torch.zeros(1)},
        lambda state: {name: tensor for name, tensor in state.items() if name != "0.bias"},
        lambda state: {**state, "0.bias": state["0.bias"].double()},
        lambda state: {**state, "0.bias": state["0.bias"].view(2, 2)},
        lambda state: {**state, "0.bias": state["2.bias"], "2.bias": state["0.bias"]},
        lambda state: {**state, "note": "text"},
    ],
)
def test_names_types_and_shapes_count(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    state = network().state_dict()
    assert digest_of(tmp_path, change(state)) not in (None, digest_of(tmp_path, state))


def test_of_a_checkpoint_only_what_is_loaded_counts(tmp_path: Path) -> None:
    state = network().state_dict()
    plain = digest_of(tmp_path, state)
    for wrapper in ("state_dict", "model_state_dict", "model"):
        assert (
            digest_of(tmp_path, {wrapper: state, "epoch": 3, "optimizer": {"lr": torch.rand(9)}})
            == plain
        )
    assert digest_of(tmp_path, {"weights": state}) != plain


DTYPES = [name for name in (
    "float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
) if hasattr(torch, name)]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_layout_is_understood(tmp_path: Path, dtype: str) -> None:
    base = torch.arange(48).to(getattr(torch, dtype))
    views = {
        "whole": base.view(4, 12),
        "part": base[8:24].view(4, 4),
        "transposed": base.view(4, 12).t(),
        "steps": base[::5],
        "gaps": base.view(4, 12)[:, 1:4],
        "expanded": base[3:4].expand(2, 3),
        "scalar": base[3],
        "none": base[:0],
        "channels last": base.view(2, 3, 4, 2).to(memory_format=torch.channels_last),
        "ones": base.view(1, 48, 1)[:, ::3],
    }
    found = {name: digest_of(tmp_path, {"x": view}) for name, view in views.items()}
    assert None not in found.values()
    assert len(set(found.values())) == len(views)
    for name in ("steps", "gaps", "expanded", "part", "ones"):  # a copy has the same values
        copy = torch.empty(views[name].shape, dtype=base.dtype).copy_(views[name])
        assert digest_of(tmp_path, {"x": copy}) == found[name], name


def test_what_lies_beside_a_view_does_not_count(tmp_path: Path) -> None:
    base = torch.arange(48.0).view(4, 12)
    first = digest_of(tmp_path, {"x": base[:, ::2]})
    base[:, 1::2] = 7
    assert digest_of(tmp_path, {"x": base[:, ::2]}) == first
    base[1, 2] = 7
    assert digest_of(tmp_path, {"x": base[:, ::2]}) != first


def test_tied_weights_count_as_what_they_are(tmp_path: Path) -> None:
    tensor = torch.rand(3, 4)
    tied = digest_of(tmp_path, {"a": tensor, "b": tensor, "c": tensor.t()})
    assert tied == digest_of(tmp_path, {"a": tensor, "b": tensor.clone(), "c": tensor.t()})
    assert tied != digest_of(tmp_path, {"a": tensor, "b": tensor + 1, "c": tensor.t()})


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/buildsys-was-here",)


def _scripted(folder: Path) -> Path:
    path = folder / "script.pt"
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), path)
    return path


def _saved(value: object, **options: Any) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        torch.save(value, folder / "w.pth", **options)
        return folder / "w.pth"

    return save


def _cut(folder: Path) -> Path:
    path = _saved(network().state_dict())(folder)
    path.write_bytes(path.read_bytes()[:-400])
    return path


def _packed(folder: Path) -> Path:
    path = _saved(network().state_dict())(folder)
    with (
        zipfile.ZipFile(path) as old,
        zipfile.ZipFile(folder / "z.pth", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    return folder / "z.pth"


def _selfish(folder: Path) -> Path:
    value: dict[str, Any] = {"x": torch.zeros(1)}
    value["again"] = value
    return _saved(value)(folder)


def _text(folder: Path) -> Path:
    (folder / "w.pth").write_bytes(b"not a zip file")
    return folder / "w.pth"


@pytest.mark.parametrize(
    "make",
    [
        _scripted, _cut, _packed, _selfish, _text,
        _saved(network()),
        _saved({"x": Hostile()}),
        _saved({"x": torch.zeros(3).to_sparse()}),
        _saved(network().state_dict(), _use_new_zipfile_serialization=False),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_what_is_not_understood_is_left_to_the_digest_of_the_file(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    assert tensors_digest(str(make(tmp_path))) is None
    assert not Path("/tmp/buildsys-was-here").exists()


@pytest.mark.parametrize(
    "name", ["torch.FloatStorage", "collections.OrderedDict", "torch._utils._rebuild_tensor_v2"]
)
def test_a_pickle_cannot_change_the_stand_ins(tmp_path: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    state = pickle.dumps({"make": 1})[2:-1]
    code = b"\x80\x04" + f"c{module}\n{attribute}\n".encode() + state + b"b."
    with zipfile.ZipFile(tmp_path / "w.pth", "w") as archive:
        archive.writestr("w/data.pkl", code)
    assert tensors_digest(str(tmp_path / "w.pth")) is None
    assert digest_of(tmp_path, network().state_dict(), "good.pth") is not None


def test_it_reads_without_torch(tmp_path: Path) -> None:
    torch.save(network().state_dict(), tmp_path / "w.pth")
    code = (
        "import sys; from buildsys.system.torch_checkpoint import tensors_digest\n"
        f"print(tensors_digest({str(tmp_path / 'w.pth')!r}), 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [tensors_digest(str(tmp_path / "w.pth")), "False", "False"]
