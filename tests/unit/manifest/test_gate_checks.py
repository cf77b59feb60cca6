"""Errors in gates, with their positions."""

from __future__ import annotations

import pytest

from buildsys.manifest.resolved_yaml import resolved_text

ENGINES = """\
engines:
  - {name: a, backend: onnxruntime}
  - {name: b, backend: onnxruntime}
  - {name: gpu, backend: tensorrt_rtx}
"""


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ("{latency: {tolerance: 5}}", "10:30: gates.latency.tolerance: expected a percentage such"),
        (
            "{latency: {tolerance: 5%%}}",
            "gates.latency.tolerance: expected a percentage such as 5%",
        ),
        ("{latency: {tolerance: 0%}}", "gates.latency.tolerance: expected more than 0%, found"),
        ("{latency: {tolerance: 500%}}", "gates.latency.tolerance: expected at most 100%, found"),
        ("{latency: {tolerance: 0}}", "gates.latency.tolerance: expected more than 0, found"),
        ("{latency: {limit: fast}}", "gates.latency.limit: expected a duration such as 3s"),
        ("{size: {limit: 5miles}}", "gates.size.limit: expected a size such as 8GiB"),
        (
            "{latency: {limit: 5}}",
            "gates.latency.limit: expected a duration such as 3s, 200ms or 2min, with its unit"
            " (us, ms, s, min, h, d), found 5",
        ),
        ('{build_time: {limit: "5"}}', "gates.build_time.limit: expected a duration such as 3s"),
        (
            "{size: {limit: 50}}",
            "gates.size.limit: expected a size such as 8GiB or 512MiB, with its unit"
            " (B, kB, MB, GB, KiB, MiB, GiB), found 50",
        ),
        ("{memory: {limit: 0.5}}", "gates.memory.limit: expected a size such as 8GiB or 512MiB,"),
        ("{latancy: {tolerance: 5%}}", "gates.latancy: unknown field; did you mean latency?"),
        ("{rounds: 3, size: {limit: 1MB}}", "gates.rounds: "),
        ("{}", "gates: no gate: nothing is limited; add one, such as latency: {tolerance: 5%}"),
        ("{latency: {}}", "gates.latency: the gate limits nothing; add a tolerance such as 5%"),
        (
            "{revision: v1, size: {tolerance: 5%}}",
            "gates.revision: gates do not compare with a git revision any more; remove it to"
            " compare with the last build that passed, or set `engine`, or a `limit`",
        ),
        (
            "{engine: bb, size: {tolerance: 5%}}",
            'gates.engine: there is no engine "bb" in this model; did you mean b?',
        ),
        (
            "{engine: a, size: {tolerance: 5%}}",
            'gates.engine: "gpu" and "a" differ in backend or toolchain; only engines of one',
        ),
    ],
)
def test_a_wrong_gate_is_one_error_at_its_place(project, gates, expected):
    project.model(f"{ENGINES}gates: {gates}\n")
    (error,) = project.errors()
    assert expected in error


def test_an_engine_is_not_its_own_baseline(project):
    own = "{name: a, backend: onnxruntime, gates: {engine: a, size: {tolerance: 5%}}}"
    project.model(f"engines: [{own}]\n")
    (error,) = project.errors()
    assert 'engines.0.gates.engine: the engine "a" is its own baseline' in error


def test_right_gates_are_read_in_si_units(project):
    project.model(
        "engines: [{name: a, backend: onnxruntime}, {name: b, backend: onnxruntime}]\n"
        "gates: {engine: a, latency: {tolerance: 5%, limit: 2ms}, size: {limit: 50MB}}\n"
    )
    gates = project.load().models["net"].data["gates"]
    assert gates["latency"] == {"tolerance": 0.05, "limit": 0.002}
    assert gates["size"] == {"tolerance": None, "limit": 50_000_000}


def test_the_limits_of_a_resolved_manifest_have_units(project):
    gates = "{latency: {limit: 2us}, build_time: {limit: 3min}, size: {limit: 50kB}}"
    project.model(f"engines: [{{name: a, backend: onnxruntime, gates: {gates}}}]\n")
    model = project.load().models["net"]
    text = resolved_text(model)
    for limit in ('"0.000002s"', '"180s"', '"50000B"'):
        assert f"limit: {limit}" in text
    (project.root / "configs/models/net.yaml").write_text(text)
    assert project.load().models["net"].data == model.data
