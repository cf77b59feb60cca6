"""Sources on the command line of build, and refusals before anything is written."""

from pathlib import Path

import pytest

from buildsys.cli import command
from buildsys.cli.main import run
from buildsys.cli.one_shot import _model_name

NET = "my nets/net 1.onnx"


@pytest.mark.parametrize(
    ("source", "model"),
    [
        (NET, "net-1"),
        ("torchvision:resnet18", "resnet18"),
        ("timm:resnet50.a1_in1k", "resnet50.a1_in1k"),
        ("hf:owner/bert-tiny@main", "bert-tiny"),
        ("hf:fill-mask:nets/bert/config.json", "bert"),
        ("../nets/net.v2.pt2", "net.v2"),
        ("plugins/net.py:make.small", "small"),
        ("package.module:Net", "Net"),
    ],
)
def test_a_model_has_the_name_of_its_source(source: str, model: str) -> None:
    assert _model_name(source) == model


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nets.onnx"], "there is no file nets.onnx; the path is relative to your folder"),
        (["my nets"], "my nets is a folder, not a source; write torchvision:NAME, "),
        (["a.pt"], "a.pt has weights, but no network; name the network, too: FILE.py:CALLABLE"),
        (["net.py"], "net.py is not a source; write torchvision:NAME, "),
        (["taken.onnx"], "taken exists, and engines would be written there; move it away, or"),
        ([NET, "--engine", "ort-gpu"], "there is no engine 'ort-gpu'; nearest: o"),
        ([NET, "--calibration", "x.npz"], "--calibration x.npz is not a folder of images, FILE."),
        ([NET, "taken.onnx"], f"{NET} is a source, not a target; build it alone"),
        ([NET, "--since", "HEAD"], "build takes no --since with a source; leave it out"),
        (["resnet18", "--engine", "ort-cpu"], " is not in a project "),
        (["engine:net"], " is not in a project "),
    ],
)
def test_a_refusal_writes_nothing(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "_started_in", [])
    monkeypatch.chdir(tmp_path)
    for name in (NET, "a.pt", "taken.onnx", "taken/mine.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("x")
    assert run(["build", *words]) == 3
    assert message in capsys.readouterr().err
    assert not Path(".buildsys").exists()


def test_a_target_takes_no_option_of_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "buildsys.toml").touch()
    assert run(["build", "net", "--engine", "ort-cpu"]) == 3
    message = (
        "ERROR: build takes no --engine; it is for a source; a manifest says that of a model\n"
    )
    assert capsys.readouterr().err == message
