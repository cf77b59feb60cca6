"""Objects in checkpoints: settings and modules are read, and nothing of them runs."""

import argparse
import functools
import struct
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.models.weights_files import load_weights


class Settings(dict[str, Any]):
    """A dictionary of a class, as trainers save settings."""


class Net(nn.Module):
    """A module with what its state dict leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU())
        self.other = self.inner
        self.act = nn.ReLU
        self.register_buffer("window", torch.ones(2), persistent=False)
        self.register_parameter("none", None)


SETTINGS = Settings(
    lr=0.1, place=Path("a"), best=np.float64(1), history=np.zeros(2), loss=functools.partial(int),
    arguments=argparse.Namespace(a=1), kind=nn.ReLU, dtype=torch.float16, nested=Settings(a=[1]),
)  # fmt: skip


@pytest.mark.parametrize(
    ("wrap", "key"),
    [
        (lambda net: net, ""),
        (nn.DataParallel, "module"),
        (torch.compile, ""),
        (lambda net: {"model": net, "epoch": 3}, "model"),
        (lambda net: {"state_dict": net.state_dict(), "hyper_parameters": SETTINGS}, "state_dict"),
        (lambda net: Settings(net=net.state_dict()), "net"),
    ],
    ids=["module", "parallel", "compiled", "in a dictionary", "settings", "of a class"],
)
def test_weights_are_read_without_the_classes_of_the_file(
    tmp_path: Path, wrap: Any, key: str
) -> None:
    saved, net = Net(), Net()
    torch.save(wrap(saved), tmp_path / "w.ckpt")
    weights = {"file": "w.ckpt", "sha256": None, "key": None, "strict": True}
    loaded = load_weights(net, weights, tmp_path, "net")
    assert (loaded.key or loaded.prefix, loaded.missing) == (key, [])
    for name, tensor in saved.state_dict().items():
        assert torch.equal(net.state_dict()[name], tensor), name


_WATCHED: list[str] = []
_is_watching = [False]
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.", "socket.", "ctypes.dlopen")


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if not _is_watching[0]:
        return
    writes = event == "open" and isinstance(args[1], str) and not {*"wax+"}.isdisjoint(args[1])
    loads = event == "import" and args[0] == "trap_of_a_checkpoint"
    if writes or loads or event in ("exec", "compile") or event.startswith(_FORBIDDEN):
        _WATCHED.append(f"{event} {args!r:.200}")


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record what a file does while it is loaded."""
    if not _WATCHED and not getattr(sys, "_checkpoint_hook", False):
        sys.addaudithook(_watch)
        sys._checkpoint_hook = True  # type: ignore[attr-defined]
    (tmp_path / "trap_of_a_checkpoint.py").write_text(
        "from pathlib import Path\nPath('trapped').touch()\ndef call(*_): Path('trapped').touch()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    load(tmp_path, state_pickle(b"N"))  # imports what torch needs
    load(tmp_path, b"")  # and what messages need
    _WATCHED.clear()
    yield _WATCHED
    assert not (tmp_path / "trapped").exists()


def archive(file: Path, data: bytes, **records: bytes) -> None:
    with zipfile.ZipFile(file, "w") as writer:
        for name, content in {"data.pkl": data, "version": b"3\n", **records}.items():
            writer.writestr(f"archive/{name}", content)


def load(folder: Path, data: bytes, **records: bytes) -> str:
    """Load a pickle as a checkpoint; return the error, "" without one."""
    archive(folder / "w.pth", data, **{"data/0": FLOATS, "data/1": FLOATS, **records})
    weights = {"file": "w.pth", "sha256": None, "key": None, "strict": True}
    module = nn.Linear(2, 2, bias=False)
    _is_watching[0] = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_weights(module, weights, folder, "net")
    except StageError as error:
        return str(error)
    finally:
        _is_watching[0] = False
    assert module.weight.tolist() == [[1, 2], [3, 4]]
    return ""


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


FLOATS = struct.pack("<4f", 1, 2, 3, 4)
STORAGE = b"".join(
    (b"(", text("storage"), b"ctorch\nFloatStorage\n", text("0"), text("cpu"), b"K\x04tQ")
)
TENSOR = b"".join(
    (
        b"ctorch._utils\n_rebuild_tensor_v2\n(", STORAGE, b"K\x00K\x02K\x02\x86K\x02K\x01\x86",
        b"\x89ccollections\nOrderedDict\n)RtR",
    )
)  # fmt: skip


def state_pickle(extra: bytes) -> bytes:
    """Pickle a state dict with ``extra`` next to it."""
    state = b"}(" + text("weight") + TENSOR + b"u"
    return b"\x80\x02}(" + text("net") + state + text("extra") + extra + b"u."


TRAP = b"ctrap_of_a_checkpoint\ncall\n"
SYSTEM = b"cposix\nsystem\n"
EVAL = b"c__builtin__\neval\n"
ARGUMENTS = b"(" + text("open('trapped', 'w')") + b"t"
LOADED, REFUSED = True, False
OTHER = STORAGE.replace(text("0"), text("1"))
ATTACKS: dict[str, tuple[bytes, bool]] = {
    "none": (b"N", LOADED),
    "REDUCE": (EVAL + ARGUMENTS + b"R", LOADED),
    "REDUCE of another module": (TRAP + ARGUMENTS + b"R", LOADED),
    "REDUCE of a blocked module": (SYSTEM + b"(" + text("touch trapped") + b"tR", REFUSED),
    "a name with dots": (b"ctrap_of_a_checkpoint\nPath.cwd\n)R", LOADED),
    "a module with dots": (b"cos.path\nos.system\n(" + text("touch trapped") + b"tR", LOADED),
    "an allowed module": (b"ctorch\nos.system\n(" + text("touch trapped") + b"tR", LOADED),
    "another function of torch": (b"ctorch\nload\n(" + text("w.pth") + b"tR", LOADED),
    "INST": (b"(" + text("x") + b"itrap_of_a_checkpoint\ncall\n", REFUSED),
    "OBJ": (b"(" + TRAP + text("x") + b"o", REFUSED),
    "NEWOBJ": (TRAP + ARGUMENTS + b"\x81", LOADED),
    "NEWOBJ_EX": (TRAP + ARGUMENTS + b"}\x92", REFUSED),
    "BUILD": (TRAP + b")\x81}(" + text("__setstate__") + EVAL + b"ub" + ARGUMENTS + b"b", REFUSED),
    "BUILD twice": (
        TRAP + b")\x81}(" + text("__setstate__") + TRAP + b"ub}(" + text("a") + b"Nub", LOADED
    ),
    "BUILD of a class": (TRAP + b"}(" + text("__new__") + EVAL + b"ub", REFUSED),
    "BUILD of torch's class": (b"ctorch\nTensor\n}(" + text("add") + EVAL + b"ub", REFUSED),
    "BUILD of torch's function": (
        b"ctorch._utils\n_rebuild_parameter\nN}(" + text("__defaults__") + b")u\x86b", REFUSED
    ),
    "BUILD of numpy's": (b"cnumpy\ndtype\n)R(K\x03" + EVAL + b"tb", LOADED),
    "a class from its instance": (
        TRAP + b")R}(" + text("__class__") + b"ctorch\nTensor\nub", LOADED
    ),
    "methods of a dictionary": (
        b"".join(
            [TRAP, b")R}(", *(text(name) + TRAP for name in ("items", "keys", "get")), b"ub"]
        ),
        LOADED,
    ),
    "a function called by torch": (
        b"ctorch._tensor\n_rebuild_from_type_v2\n(" + EVAL + b"ctorch\nTensor\n" + ARGUMENTS
        + b"}tR",
        REFUSED,
    ),
    "a wrapper of a class": (
        b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._dynamo.eval_frame\nOptimizedModule\n"
        b"ctorch\nTensor\nctorch\nTensor\n\x85}(" + text("add") + EVAL + b"utR",
        REFUSED,
    ),
    "a wrapper of nothing": (b"ctorch._dynamo.eval_frame\nOptimizedModule\n)R", REFUSED),
    "a persistent id": (text("trap") + b"Q", REFUSED),
    "a persistent id of text": (b"Ptrap\n", REFUSED),
    "a persistent id of a class": (
        b"(" + text("storage") + TRAP + text("0") + text("cpu") + b"K\x04tQ", REFUSED
    ),
    "a storage elsewhere": (STORAGE.replace(text("0"), text("../../0")), REFUSED),
    "a larger storage": (OTHER.replace(b"K\x04", b"J\xff\xff\xff\x7f"), REFUSED),
    "a negative storage": (OTHER.replace(b"K\x04", b"J\xff\xff\xff\xff"), REFUSED),
    "a tensor beyond its storage": (
        TENSOR.replace(b"K\x00K\x02", b"K\x00J\xff\xff\xff\x7f"), REFUSED
    ),
    "STACK_GLOBAL": (text("trap_of_a_checkpoint") + text("call") + b"\x93)R", REFUSED),
    "STACK_GLOBAL with dots": (text("os") + text("path.os.system") + b"\x93)R", REFUSED),
    "an extension": (b"\x82\x07", REFUSED),
    "an extension of 4 bytes": (b"\x84\x07\x00\x00\x00", REFUSED),
    "the memo": (TRAP + b"q\x05" + ARGUMENTS + b"Rq\x05h\x05" + ARGUMENTS + b"R", REFUSED),
    "an empty memo": (b"h\x63", REFUSED),
    "a memo of 4 bytes": (TRAP + b"r\xff\xff\xff\xffj\xff\xff\xff\xff" + b")R0", REFUSED),
    "a dictionary in itself": (b"}q\x07(" + text("a") + b"h\x07u", LOADED),
    "a module in itself": (
        b"".join(
            (
                TRAP, b")\x81q\x07}(", text("_parameters"), b"}", text("_buffers"), b"}",
                text("_modules"), b"}(", text("a"), b"h\x07uub",
            )
        ),
        LOADED,
    ),
    "no module": (
        TRAP + b")\x81}(" + text("_parameters") + b"N" + text("_buffers") + EVAL
        + text("_modules") + b"K\x01ub",
        LOADED,
    ),
    "an empty stack": (b"0000000R", REFUSED),
    "a long string": (b"X\xff\xff\xff\xffabc", REFUSED),
    "a long integer": (b"\x8b\xff\xff\xff\x7f", REFUSED),
    "a frame": (b"\x95\xff\xff\xff\xff\xff\xff\xff\xff", REFUSED),
    "a codec": (b"c_codecs\nencode\n(" + text("a") + text("trap_of_a_checkpoint") + b"tR", REFUSED),
    "a key of no hash": (b"}(" + TRAP + b")RNu", REFUSED),
    "an unpickler": (b"cpickle\nloads\n(" + text("cposix\nsystem\n.") + b"tR", LOADED),
    "a stand-in": (
        b"cbuildsys.models.state_dicts\n_Wrapper\n(" + EVAL + b"tR" + ARGUMENTS + b"R", REFUSED
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_of_a_checkpoint_runs(tmp_path: Path, watched: list[str], name: str) -> None:
    attack, is_loaded = ATTACKS[name]
    error = load(tmp_path, state_pickle(attack))
    assert not watched
    assert (not error) is is_loaded, error
    assert "\n" not in error
