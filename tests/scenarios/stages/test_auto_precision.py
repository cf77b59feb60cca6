"""``precision: auto`` through doit: searched once, cached, explained, searched again."""

import json

from project_folder import ProjectFolder

NETWORK = """\
import torch


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x) * 6e4) / 6e4)
"""
SAMPLES = """\
import numpy


def samples():
    for row in numpy.random.default_rng(0).standard_normal((300, 4), "float32"):
        yield {"x": row}, int(row[0] > 0)
"""
BY_METRIC = """
evaluate: {data: {python: "plugins/samples.py:samples"}, metric: top1, drop: 20%}
search: {limit: metric}
"""


def test_a_search_runs_once_is_explained_and_runs_again_for_other_limits(
    project: ProjectFolder,
) -> None:
    (project.root / "plugins/models/small.py").write_text(NETWORK)
    manifest = project.add_model("net", "Wide")
    text = manifest.read_text().replace(
        "[{backend: onnxruntime, name: ort}]",
        "[{backend: onnxruntime, name: ort, precision: auto-fp16}]\nverify: {fp16: {rtol: 0.02}}",
    )
    manifest.write_text(text)
    first = project.doit()
    assert first.code == 0, first.out
    assert {"search:net:auto-fp16", "convert:net:auto-fp16", "verify:net:ort"} <= first.passed
    assert "3 of 5 nodes in fp32: relative error not finite → " in first.out
    assert project.doit().ran == set()

    explained = project.buildsys("explain", "engine:net:ort").out
    assert "search:net:auto-fp16: 3 of 5 nodes in fp32: relative error not finite →" in explained
    assert (
        "in fp32: /Mul, /Relu, /Div (build/net/search/auto-fp16/search.json has all)" in explained
    )
    search = json.loads((project.root / "build/net/search/auto-fp16/search.json").read_text())
    names = [name for name, _ in search["nodes"]]
    assert names == ["/Mul", "/Relu", "/Div"]
    report = (project.root / "build/net/report/report.md").read_text()
    assert "3 of 5 nodes in fp32: relative error not finite → " in report
    page = (project.root / "build/report/net.html").read_text()
    assert "Mixed precision" in page
    asked = project.buildsys("debug", "--fp32-nodes", "net:ort")
    assert asked.code == 3
    assert "the builder of net:ort or a tool chooses the precision" in asked.err

    manifest.write_text(text + "search: {margin: 0.3}\n")
    assert project.doit().ran == {"search:net:auto-fp16", "report:net"}  # the same nodes
    manifest.write_text(text.replace("0.02", "1e-6"))
    tight = project.doit()
    assert {"search:net:auto-fp16", "convert:net:auto-fp16", "engine:net:ort"} <= tight.ran
    assert "all nodes stay in fp32: no choice of nodes in fp16 is within the limits" in tight.out
    assert tight.code == 0
    manifest.write_text(text)
    back = project.doit()
    assert "search:net:auto-fp16" in back.restored

    (project.root / "plugins/samples.py").write_text(SAMPLES)
    manifest.write_text(text + BY_METRIC)
    verified = project.doit("verify:net:ort")
    assert {"predict:net", "search:net:auto-fp16"} <= verified.passed
    doubted = project.buildsys("doctor", "net:ort")
    assert doubted.code == 1
    assert "evaluate:net:ort has not run on the current files" in doubted.out
    assert "evaluate:net:ort" in project.doit().passed
    explained = project.buildsys("explain", "search:net:auto-fp16").out
    assert " in fp32: top-1 loses — → 0.0 % (loss of 16.0 % allowed)" in explained
    title = "nodes in fp32   top-1  loss (interval of other samples)  verdict"
    assert title in explained
    assert "failed: the output y is NaN for sample " in explained
    assert project.buildsys("doctor", "net:ort").code == 0
