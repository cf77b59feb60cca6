"""Errors in the policies of outputs, with their positions."""

from __future__ import annotations

import re

import pytest
from manifest_files import ProjectFolder

CASES = [
    (
        "y: {compare: detection}",
        'outputs.y.compare.policy: unknown policy "detection"; did you mean detections?',
    ),
    (
        "y: {compare: {policy: topk}}",
        'outputs.y.compare.policy: unknown policy "topk"; did you mean top_k?',
    ),
    (
        "y: {compare: {k: 5}}",
        "outputs.y.compare: the map has no policy; add policy: auto, elementwise, per_channel, "
        "top_k, detections, tokens or set",
    ),
    ("y: {compare: 5}", "outputs.y.compare: expected a map, found 5"),
    (
        "y: {compare: {policy: top_k, axes: 1}}",
        "outputs.y.compare.axes: unknown field; did you mean axis?",
    ),
    (
        "y: {shape: [batch, 4], compare: {policy: per_channel, axis: 2}}",
        "outputs.y.compare.axis: axis 2 is outside the shape of the output (2 dimensions);"
        " name one of its axes",
    ),
    (
        "y: {compare: {policy: detections, iou: 2}}",
        "outputs.y.compare.iou: expected at most 1, found 2",
    ),
    (
        "y: {compare: {policy: detections, labels: label}}, labels: {}",
        'outputs.y.compare.labels: no output is named "label"; did you mean labels?',
    ),
    (
        "y: {compare: {policy: detections, scores: s, rows: [s]}}, s: {}",
        'outputs.y.compare.rows.0: output "s" is already matched with "y"; remove one of them',
    ),
    (
        "y: {compare: {policy: detections, scores: s}}, s: {compare: tokens}",
        'outputs.y.compare.scores: output "s" has a policy, and is matched with "y"; '
        "remove outputs.s.compare",
    ),
    (
        "y: {compare: {policy: detections, scores: s, score_column: 4}}, s: {}",
        "outputs.y.compare.score_column: scores already names the output with the scores; "
        "remove one of them",
    ),
]


@pytest.mark.parametrize(("outputs", "problem"), CASES)
def test_a_wrong_policy_is_located(project: ProjectFolder, outputs: str, problem: str) -> None:
    project.model(f"outputs: {{{outputs}}}\n")
    lines = project.errors()
    assert any(line.endswith(problem) for line in lines), lines
    assert len([line for line in lines if re.match(r"\S+:\d+:\d+: ", line)]) == 1


def test_the_name_of_a_policy_stands_for_its_defaults(project: ProjectFolder) -> None:
    project.model("outputs: {y: {compare: top_k}, z: {}}\n")
    outputs = project.load().models["net"].data["outputs"]
    assert outputs["y"]["compare"] == {
        "policy": "top_k", "k": 5, "axis": -1, "agreement": 1.0, "rtol": None, "allow_zero": False,
    }  # fmt: skip
    assert outputs["z"]["compare"] is None
