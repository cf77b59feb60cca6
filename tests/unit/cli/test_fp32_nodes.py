"""Arguments and answers of ``buildsys debug --fp32-nodes``, without a search."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_doubles import run_in
from documents import check_printed

from buildsys.cli.commands import debug
from buildsys.errors import UsageError

MANIFEST = """\
model: m
source: {python: "net.py:make"}
inputs: {x: {shape: [1, 4]}}
calibration: {data: {x: {random: normal}}}
quantize: {exclude: ["*/head"]}
engines:
  - {name: full, backend: onnxruntime}
  - {name: half, backend: onnxruntime, precision: fp16}
  - {name: small, backend: onnxruntime, precision: int8}
  - {name: weak, backend: tensorrt, precision: int8, typing: weak}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "configs/models").mkdir(parents=True)
    (tmp_path / "configs/models/m.yaml").write_text(MANIFEST)
    (tmp_path / "net.py").write_text("def make(): ...\n")
    return tmp_path


def run(root: Path, *names: str, **options: Any) -> int:
    return run_in(root, "debug", *names, fp32_nodes=True, **options)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ((), "debug --fp32-nodes takes the name of one target"),
        (("m:ful",), "there is no target 'm:ful'; nearest: m:full"),
        (
            ("m:full",),
            "m:full is not an engine of low precision, so no node is rounded; `buildsys d",
        ),
        (("m:weak",), "the builder of m:weak or a tool chooses the precision of each layer"),
        (("m:half",), "simplify:m is not up to date; run `buildsys build convert:m:fp16` first"),
    ],
)
def test_engines_without_a_search_are_refused(
    root: Path, names: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(UsageError) as raised:
        run(root, *names)
    assert str(raised.value).startswith(problem)


def test_the_list_continues_the_one_of_the_manifest(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, Any] = {
        "without": {"passed": False, "relative": 0.5, "reason": "y differs"},
        "with": {"passed": True, "relative": 0.1, "reason": ""},
        "nodes": [["/a: b", "Conv"]], "is_smallest": False, "trials": 3, "exclude": ["*/head"],
        "seconds": 2.0,
    }  # fmt: skip
    model = debug.BuildSession.read_only(root)
    convert = model.actions["convert:m:int8"]
    monkeypatch.setattr(debug, "_conversion", lambda *_: convert)
    monkeypatch.setattr(debug, "_search", lambda *_: found)
    assert run(root, "m:small") == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "quantize:", "  exclude:", '    - "*/head"', '    - "/a: b"',
    ]  # fmt: skip
    assert run(root, "m:small", json=True) == 0
    printed = capsys.readouterr().out
    check_printed(printed)
    assert json.loads(printed)["yaml"].startswith("quantize:\n  exclude:\n")
    found["nodes"] = None
    assert run(root, "m:small") == 1
    assert (
        "no list of nodes was found within the limits (3 trials in 2 s)" in capsys.readouterr().out
    )
