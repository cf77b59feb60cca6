"""Single mistakes in a manifest: exactly one error each, in the line of the mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from manifest_files import ProjectFolder

from buildsys.errors import ManifestErrors

MANIFEST = """\
model: net
source:
  python: net.py:make
  randomize: true
inputs:
  x:
    shape: [batch, 3, height, 32]
    dtype: float32
    data:
      random: uniform
      low: 0
      high: 1
  ids:
    shape: [batch, length]
    dtype: int64
    keyword: ids
    data:
      random: integers
      high: 100
outputs:
  scores:
    shape: [batch, 5]
    dtype: float32
  boxes:
    shape: [batch, 4]
    key: boxes
dims:
  batch:
    min: 1
    opt: 4
    max: 8
  length:
    min: 2
    opt: 16
    max: 32
    odd: 7
  height:
    min: 32
    opt: 64
    max: 128
    multiple_of: 32
export:
  exporter: dynamo
  opset: 18
  optimize: true
simplify:
  tool: onnxsim
  fuse: false
surgery:
  - rename:
      scores: logits
validate:
  rtol: 0.001
  cases: [min, opt]
verify:
  fp16:
    rtol: 0.01
  cases: [opt, max]
calibration:
  algorithm: minmax
  batches: 2
  data:
    x:
      random: normal
    ids:
      random: integers
      high: 100
quantize:
  per_channel: false
  exclude: [head]
bench:
  duration: 100ms
  warmup: 10ms
  baselines: [torch]
  cases: [opt]
engines:
  - use: ort-cpu
    intra_op_threads: 2
  - use: ort-fp16
    tolerance:
      rtol: 0.02
  - backend: onnxruntime
    name: ort-int8
    precision: int8
  - backend: tensorrt_rtx
    name: rtx
    precision: fp16
    required: false
    workspace: 1GiB
  - backend: tensorrt
    name: trt
    precision: fp16
    builder_optimization_level: 3
"""
LINES = MANIFEST.splitlines()
_KEY = re.compile(r"(?P<indent> *(?:- )?)(?P<key>\w+):(?P<value>.*)")


def transposed(word: str) -> str:
    """Return a word with two letters exchanged."""
    if len(word) == 1:
        return "q"
    at = next((i for i in range(1, len(word) - 1) if word[i] != word[i + 1]), 0)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def parents(number: int) -> list[str]:
    """Return the keys around a line, the innermost last."""
    found: list[str] = []
    indent = len(LINES[number]) - len(LINES[number].lstrip(" -"))
    for line in reversed(LINES[:number]):
        depth = len(line) - len(line.lstrip(" -"))
        if depth < indent:
            indent = depth
            found.insert(0, line.strip(" -").partition(":")[0])
    return found


def mistakes() -> Iterator[tuple[str, int, str]]:
    """Yield a title, the index of a line, and the line with a mistake."""
    for number, line in enumerate(LINES):
        match = _KEY.fullmatch(line)
        assert match, line
        indent, key, value = match["indent"], match["key"], match["value"]
        around = parents(number)
        path = ".".join([*around, key])
        yield f"{path}: transposed", number, f"{indent}{transposed(key)}:{value}"
        yield f"{path}: one more letter", number, f"{indent}{key}x:{value}"
        yield f"{path}: upper case", number, f"{indent}{key.upper()}:{value}"
        if value:
            yield f"{path}: a list of maps", number, f"{indent}{key}: [{{a: 1}}]"
            yield f"{path}: null in a list", number, f"{indent}{key}: [null]"
            for old in re.findall(r"[a-z]+\d*", value) if not value.strip()[0].isdigit() else []:
                if len(old) > 2 and around[:1] not in (["source"], ["surgery"]):
                    wrong = value.replace(old, transposed(old), 1)
                    yield f"{path}: {wrong.strip()}", number, f"{indent}{key}:{wrong}"


MISTAKES = list(mistakes())
ACCEPTED = re.compile(  # names that the user chooses, and sizes that follow from others
    r"(model|inputs\.ids\.keyword|outputs\.boxes(\.key)?|engines\.name|quantize\.exclude): .*"
    r"|outputs\.\w+\.shape: null in a list"
)


def test_there_are_at_least_200_mistakes() -> None:
    assert len(MISTAKES) >= 200


def test_the_manifest_is_valid(project: ProjectFolder) -> None:
    project.write("net.py", "def make(): ...\n")
    project.write("configs/models/net.yaml", MANIFEST)
    assert list(project.load().models) == ["net"]


def test_one_mistake_is_one_error(project: ProjectFolder) -> None:
    """Load one manifest per mistake together, as a project of one takes twice as long."""
    project.write("net.py", "def make(): ...\n")
    for index, (_, number, line) in enumerate(MISTAKES):
        lines = [f"model: net{index}", *LINES[1:]]
        lines[number] = line
        project.write(f"configs/models/{index}.yaml", "\n".join(lines) + "\n")
    with pytest.raises(ManifestErrors) as caught:
        project.load()
    found: dict[str, list[str]] = {}
    for error in caught.value.errors:
        found.setdefault(Path(error.file).stem, []).append(str(error))
    wrong = {
        title: errors
        for index, (title, *_) in enumerate(MISTAKES)
        if len(errors := found.get(str(index), [])) != 1
        and (errors or not ACCEPTED.fullmatch(title))
    }
    assert wrong == {}
