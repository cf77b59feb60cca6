"""Networks that keep something between calls."""

from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
from stage_jobs import manifest, stage_job

from buildsys.errors import CheckFailed
from buildsys.stages.reference import stage as reference

HEAD = """\
import datetime
import time
import random
import numpy as np
import torch
from torch import nn

CALLS = []


def mean_of(x, calls=[]):
    calls.append(1)
    return x.mean()


def counting():
    count = [0]

    def next_count():
        count[0] += 1
        return count[0]

    return next_count


next_count = counting()


class Average(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):  # of Average
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x


class Net(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.inner, self.hidden = nn.Sequential(Average()), [Average()]
        self.dropout, self.norm = nn.Dropout(1e-6), nn.BatchNorm1d(4)
        self.count, self.table = [0], None
        self.numbers = np.random.default_rng(0)

    def forward(self, x):
"""


def run(folder: Path, body: str, file: str = "net.py") -> list[dict[str, Any]]:
    (folder / file).write_text(HEAD + indent(dedent(body), " " * 8) + "\n")
    spec = manifest(source={"python": f"{file}:Net"})
    doubts = reference.run(stage_job("reference", spec, folder, folder)).figures["doubts"]
    return [doubt for doubt in doubts if doubt["kind"] == "state"]


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ("self.count[0] += 1\nreturn x * (2 if self.count[0] > 100 else 1)", "count"),
        ("CALLS.append(1)\nreturn x", "CALLS (net.py)"),
        ("Net.calls += 1\nreturn x", "Net (net.py:"),
        ("return x + 0 * next_count()", "next_count (net.py)"),
        ("return x + 1e-9 * self.numbers.normal()", "numbers (net.py:"),
        ("self.norm.weight.data.mul_(0.999)\nreturn x", "norm.weight (net.py:"),
        ("return x - mean_of(x)", "mean_of (net.py)"),
        ("return self.inner(x)", "inner.0.mean"),
        ("return self.hidden[0](x)", "hidden"),
        ("return x + 1e-9 * np.random.rand()", "numpy.random (net.py:"),
        ("return x + 1e-9 * random.random()", "random"),
        (
            "self.norm.train()\nreturn self.norm(torch.cat([x, x + 1]))[: len(x)]",
            "norm.running_mean, norm.running_var, norm.num_batches_tracked (net.py:",
        ),
    ],
)
def test_changed_state_is_named(tmp_path: Path, body: str, changed: str) -> None:
    [doubt] = run(tmp_path, body)
    assert f"forward changes {changed}" in doubt["text"]


def test_changed_state_outside_of_the_project_is_named(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    [doubt] = run(tmp_path / "project", "CALLS.append(1)\nreturn x", "../net.py")
    assert "forward changes CALLS (../net.py)" in doubt["text"]


@pytest.mark.parametrize(
    "body", ["return x + 0 * time.time()", "return x * min(datetime.date.today().year, 1)"]
)
def test_a_clock_is_named(tmp_path: Path, body: str) -> None:
    [doubt] = run(tmp_path, body)
    assert doubt["text"].startswith("forward reads the time (net.py:")
    assert doubt["place"].startswith("net.py:")


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_a_script_module_is_called_again(tmp_path: Path) -> None:
    make = "def make(): return torch.jit.script(nn.ReLU())\n"
    (tmp_path / "net.py").write_text(f"import torch\nfrom torch import nn\n{make}")
    spec = manifest(source={"python": "net.py:make"})
    assert reference.run(stage_job("reference", spec, tmp_path, tmp_path)).status == "passed"


def test_the_place_is_the_forward_of_the_layer(tmp_path: Path) -> None:
    [doubt] = run(tmp_path, "return self.inner(x)")
    line = next(n for n, text in enumerate(HEAD.splitlines(), 1) if "# of Average" in text)
    assert doubt["place"] == f"net.py:{line}"


@pytest.mark.parametrize(
    "body",
    [
        "return self.norm(self.dropout(x))",
        "if self.table is None or len(self.table) < len(x):\n"
        "    self.table = torch.arange(len(x), dtype=x.dtype)\n"
        "return x + self.table[: len(x), None]",
        "self.last_shape = x.shape\nreturn x",
        "torch.rand(3)\nreturn x",
    ],
)
def test_caches_and_unused_draws_are_no_state(tmp_path: Path, body: str) -> None:
    assert run(tmp_path, body) == []


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("return x + torch.rand(4)", "forward draws random numbers (torch.random): output"),
        ("return x + np.random.rand()", "forward draws random numbers (numpy.random): output"),
        ("self.count[0] += 1\nreturn x * self.count[0]", "it changes count (net.py:"),
        ("y = x if self.table is None else x + self.table\nself.table = x.mean()\nreturn y", ""),
        ("self.count[0] = max(self.count[0], float(x.max()))\nreturn x / self.count[0]", "s count"),
        ("import time\nreturn x + time.time() % 7", "it may read the time"),
    ],
)
def test_a_second_call_that_differs_fails(tmp_path: Path, body: str, cause: str) -> None:
    with pytest.raises(CheckFailed, match="differs in a second call on the inputs") as error:
        run(tmp_path, body)
    assert cause in str(error.value)
