"""``buildsys history`` and ``buildsys compare`` on a recorded history, without builds."""

import json
import re
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_doubles import run_in

from buildsys.errors import UsageError
from buildsys.history.builds import HOST, Build, Measurement
from buildsys.history.database import History, digest_of
from buildsys.history.recorder import machine_id
from buildsys.report.formatting import TIMES

MANIFEST = """\
model: {0}
source: {{python: "net.py:make"}}
inputs: {{x: {{shape: [1, 4]}}}}
engines: [{{name: ort, backend: onnxruntime}}, {{name: fast, backend: onnxruntime}}]
"""
ENVIRONMENT = {"device:cpu.model": "Zen", "device:cpu.cores": "2", "tool:onnxruntime": "1.22"}
Run = Callable[..., str]


class Recorded:
    """A project with a history; each run records the targets of one engine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "configs/models").mkdir(parents=True)
        (root / "net.py").write_text("def make(): ...\n")
        for model in ("m", "other"):
            file = root / "configs/models" / f"{model}.yaml"
            file.write_text(MANIFEST.format(model))
        self.history = History(root / ".buildsys" / "history.db")
        self.count = 0

    def add(self, target: str, run: int, *measured: Measurement, **fields: Any) -> Build:
        self.count += 1
        stage, model, *variant = target.split(":")
        environment = json.dumps(fields.pop("environment", ENVIRONMENT))
        manifest = json.dumps(fields.pop("manifest", {}))
        values = {
            "id": f"{self.count:032x}"[::-1], "run": str(run), "project": "", "target": target,
            "model": model, "stage": stage, "variant": "".join(variant), "key": "k", "how": "ran",
            "status": "passed", "started": f"2020-01-02T03:{self.count:02d}:00Z",
            "position": 1000.0 + self.count, "seconds": 1.0, "machine": "ci",
            "machine_id": machine_id(), "environment": digest_of(environment),
            "manifest": digest_of(manifest),
        }  # fmt: skip
        build = Build(**{**values, **fields})
        self.history.add(build, measured, [environment, manifest])
        return build

    def add_run(
        self, run: int, p50_ms: float, engine: str = "ort", model: str = "m", **fields: Any
    ) -> Build:
        names = f"{model}:{engine}"
        self.add(
            f"engine:{names}", run, figures={"bytes": 1000 * run, "build_seconds": 2.0}, **fields
        )
        self.add(f"verify:{names}", run, figures={"relative": run * 1e-6}, **fields)
        span = (p50_ms * 0.99, p50_ms * 1.01)
        figures = {"latency_p50_ms": p50_ms, "latency_interval_ms": list(span)}
        one = Measurement("opt", "engine", HOST, 3, p50_ms, span, {"batch": 1}, 1, {})
        return self.add(f"bench:{names}", run, one, figures=figures, **fields)


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def printed(command: str, *names: str, as_json: bool = False, **options: Any) -> str:
        assert run_in(tmp_path, command, *names, json=as_json, **options) == 0
        return capsys.readouterr().out

    return printed


def test_an_engine_has_a_row_per_run(recorded: Recorded, run: Run) -> None:
    recorded.add_run(1, 1.0, revision="abcdef0123", dirty=True)
    last = recorded.add_run(2, 1.2, revision="fedcba9876", dirty=False)
    lines = run("history", "m:ort").splitlines()
    assert lines[0] == f"m:ort on ci, 2 {TIMES} Zen"
    assert lines[2].split() == [
        last.short_id, "2020-01-02", "03:06", "fedcba98", "1.20", "1.0", "%", "2.00", "kB",
        "2.0e-06",
    ]  # fmt: skip
    assert "abcdef01+" in lines[3]
    assert max(map(len, lines)) <= 80


def test_cold_starts_have_a_column(recorded: Recorded, run: Run) -> None:
    recorded.add_run(1, 1.0)
    for number, noisy in ((2, None), (3, ["load_ms"])):
        figures = {"load_ms": 23.4, "first_call_ms": 3.0, "noisy_starts": noisy}
        recorded.add("bench:m:ort", number, figures={"latency_p50_ms": 1.0, **figures})
    titles, noisy_row, steady, without = run("history", "m:ort").splitlines()[1:5]
    column = slice(titles.index("start ms"), titles.index("start ms") + len("start ms"))
    cells = [row[column].strip() for row in (noisy_row, steady, without)]
    assert cells == ["26", "26.4", ""]
    assert noisy_row.endswith("start noisy")


def test_failures_are_listed_with_their_sentence(recorded: Recorded, run: Run) -> None:
    recorded.add_run(1, 1.0)
    failed = recorded.add("verify:m:ort", 2, status="failed", reason="numbers differ " * 20)
    printed = run("history", "m")
    assert f"{failed.short_id} verify failed: numbers differ" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_an_acceptance_is_listed_with_its_reason(recorded: Recorded, run: Run) -> None:
    recorded.add_run(1, 1.0)
    recorded.add("gate:m:ort", 1, status="failed", reason="latency is 6 % worse " * 9)
    accepted = recorded.add("gate:m:ort", 2, status="accepted", reason="a wider network")
    newest, rejected = run("history", "gate:m:ort").splitlines()[1:]
    assert newest.split("gate:m:ort")[1].split("  ")[-2:] == ["accepted", "a wider network"]
    assert rejected.endswith(" latency is 6 …")
    assert f"{accepted.short_id} gate accepted: a wider network" in run("history", "m:ort")


def test_machines_of_one_name_and_other_hardware_have_tables_of_their_own(
    recorded: Recorded, run: Run
) -> None:
    recorded.add_run(1, 1.0)
    recorded.add_run(2, 2.0, machine_id="bbbb", environment={"device:cpu.model": "Core"})
    printed = run("history", "m:ort")
    assert "m:ort on ci (bbbb), Core" in printed
    assert f"m:ort on ci ({machine_id()}), 2 {TIMES} Zen" in printed


def test_the_number_of_builds_is_limited(recorded: Recorded, run: Run) -> None:
    for number in range(4):
        recorded.add_run(number, 1.0)
    printed = run("history", "m:ort", count=3)
    assert "and 1 older (-n 4 shows all)" in printed
    found = json.loads(run("history", "bench:m:ort", count=2, as_json=True))
    assert [one["target"] for one in found["builds"]] == ["bench:m:ort"] * 2
    assert found["builds"][0]["measurements"][0]["p50_ms"] == 1.0
    assert found["environments"][found["builds"][0]["environment"]] == ENVIRONMENT


def test_a_filter_keeps_the_models_of_a_tag_and_an_owner(recorded: Recorded, run: Run) -> None:
    for model, text in (("m", "tags: [nightly]\nowner: Ann\n"), ("other", "tags: [weekly]\n")):
        file = recorded.root / "configs/models" / f"{model}.yaml"
        file.write_text(MANIFEST.format(model) + text)
        recorded.add_run(1, 1.0, model=model)
        recorded.add_run(2, 2.0, model=model)
    answer = json.loads(run("compare", as_json=True, tag=["nightly"], owner=["Ann"]))
    assert [pair["first"]["model"] for pair in answer["comparisons"]] == ["m"]
    with pytest.raises(UsageError, match="there is no tag 'weekyl'; nearest: weekly"):
        run("compare", tag=["weekyl"])
    with pytest.raises(UsageError, match=r"takes m or the tag weekly, not both; name one"):
        run("compare", "m", tag=["weekly"])


def test_single_targets_and_the_overview(recorded: Recorded, run: Run) -> None:
    assert "the history has no builds yet" in run("history")
    export = recorded.add("export:m", 1)
    recorded.add("export:gone", 1)  # no longer in the manifests
    lines = run("history", "export:m").splitlines()
    assert lines[1].split() == [
        export.short_id, "2020-01-02", "03:01", "export:m", "1.00", "s", "passed",
    ]  # fmt: skip
    assert run("history", "m").splitlines()[1:] == lines[1:]
    assert "export:gone" in run("history", "gone")
    assert "2 builds of 1 machine" in run("history")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (("m",), "the history has no builds of m"),
        (("n",), "there is no model or engine 'n'"),
        (("m", "other"), "history takes one name"),
        (("import", "none.db"), "there is no file none.db"),
        (("import",), "history import takes a file"),
    ],
)
def test_wrong_names_are_errors(
    recorded: Recorded, run: Run, names: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        run("history", *names)


@pytest.mark.parametrize(
    ("command", "names"), [("history", []), ("history", ["m"]), ("compare", []), ("compare", ["m"])]
)
def test_an_unreadable_history_is_an_error_of_one_sentence(
    recorded: Recorded, run: Run, command: str, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.add_run(1, 1.0)
    recorded.history.close()
    with sqlite3.connect(recorded.history.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(UsageError, match=r"a newer buildsys wrote it .*; update buildsys\)$"):
        run(command, *names)
    assert capsys.readouterr() == ("", "")


def test_a_history_is_imported_from_a_file(recorded: Recorded, run: Run, tmp_path: Path) -> None:
    other = Recorded(tmp_path / "elsewhere")
    other.add_run(1, 1.0, machine_id="bbbb")
    recorded.add("export:m", 1)
    printed = run("history", "import", str(other.history.path))
    assert printed.splitlines()[0] == "2 builds added, 1 known already"
    again = json.loads(run("history", "import", str(other.history.path), as_json=True))
    assert (again["added"], again["known"]) == (0, 3)


def test_previous_and_last_are_compared_by_default(recorded: Recorded, run: Run) -> None:
    recorded.add_run(1, 1.0, manifest={"export": {"opset": 17}})
    newer = {**ENVIRONMENT, "tool:onnxruntime": "1.23"}
    recorded.add_run(2, 1.2, manifest={"export": {"opset": 18}}, environment=newer)
    printed = run("compare")
    for line in (
        "manifest      export.opset: 17 → 18",
        "environment   onnxruntime 1.22 → 1.23",
        "accuracy      verify:m:ort: relative error 1.0e-06 → 2.0e-06",
        "size          engine:m:ort: 1.00 kB → 2.00 kB (+100.0 %)",
        "latency       bench:m:ort opt: 1.00 [0.990, 1.01] → 1.20 [1.19, 1.21] ms "
        "(+20.0 %, +17.6 to +22.4 %): slower",
    ):
        assert f"  {line}\n" in printed
    assert run("compare", "m", as_json=True) == run("compare", "@previous", "@last", as_json=True)


def test_builds_of_other_hardware_are_not_comparable(recorded: Recorded, run: Run) -> None:
    first = recorded.add_run(1, 1.0)
    other = {**ENVIRONMENT, "device:cpu.model": "Core"}
    recorded.add_run(2, 2.0, environment=other)
    printed = run("compare", f"@{first.short_id}", "@last")
    assert "1.00 [0.990, 1.01] → 2.00 [1.98, 2.02] ms, not comparable" in printed
    assert "cpu.model is Zen and Core" in printed


def test_a_failed_build_differs_from_its_repair(recorded: Recorded, run: Run) -> None:
    recorded.add_run(1, 1.0)
    failed: dict[str, Any] = {"status": "error", "reason": "axis 1 is 4, the manifest declares 5"}
    recorded.add("export:m", 2, manifest={"dims": 5}, **failed)
    recorded.add("report:m", 3, manifest={"dims": 4})  # with an earlier graph
    printed = run("compare", "m")
    assert "dims: 5 → 4" in printed
    assert "  failures      export:m, in the first build: axis 1 is 4, the ma" in printed
    assert "in the second build" not in printed
    answer = json.loads(run("compare", "m", as_json=True))["comparisons"][0]
    assert answer["failures"] == {"export:m": [failed["reason"], ""]}


def test_engines_and_models_are_compared(recorded: Recorded, run: Run) -> None:
    engines = [{"name": "ort", "precision": "fp32"}, {"name": "fast", "precision": "fp16"}]
    for engine, p50_ms in (("ort", 1.0), ("fast", 0.5)):
        recorded.add_run(1, p50_ms, engine, manifest={"engines": engines})
    recorded.add_run(2, 1.0, "ort", model="other")
    between = run("compare", "m:ort", "m:fast")
    assert 'manifest      engine.precision: "fp32" → "fp16"' in between
    assert "(-50.0 %, -51.0 to -49.0 %): faster" in between
    models = run("compare", "m", "other")
    assert "engines       fast: only in the first" in models
    assert "size          engine:other:ort: 1.00 kB → 2.00 kB" in models


def test_builds_are_named_by_their_ids(recorded: Recorded, run: Run) -> None:
    recorded.add_run(1, 1.0)
    build = recorded.add_run(2, 1.5, "ort", model="other")
    with pytest.raises(UsageError, match=f"the build {build.short_id} is one of other, not of m"):
        run("compare", f"m@{build.short_id}", "m")
    name = f"@{build.short_id}"
    for pair in (("m:ort", name), (name, "m:ort"), ("m:ort", "other:ort@last")):
        assert re.search(r"\+50\.0 %|-33\.3 %", run("compare", *pair))


def test_revisions_are_compared(recorded: Recorded, run: Run, tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", *identity, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    commits = []
    for text in "abc":
        (tmp_path / "net.py").write_text(f"def make(): ...  # {text}\n")
        git("add", "net.py")
        git("commit", "-qm", text)
        commits.append(git("rev-parse", "HEAD"))
    recorded.add_run(1, 1.0, revision=commits[0])
    recorded.add_run(2, 1.2, revision=commits[2])
    printed = run("compare", "@HEAD~1", "m@HEAD")
    assert f"HEAD~1 was not built; shown is its ancestor {commits[0][:8]}" in printed
    assert "(+20.0 %" in printed
    assert "no difference" in run("compare", "@HEAD", "@last")
    with pytest.raises(UsageError, match="no build or git revision 'nothing'"):
        run("compare", "@nothing", "@last")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ((), "the history has only one run of m"),
        (("m", "other"), "the history has no builds of other"),
        (("n@last",), "there is no model or engine 'n'"),
        (("m", "ort"), "there is no model or engine 'ort'; nearest: m:ort"),
        (("m@v9",), "git revision 'v9'"),  # outside of git as well
        (("@deadbeef", "m"), "git revision 'deadbeef'"),
        (("a", "b", "c"), "at most two names"),
    ],
)
def test_what_cannot_be_compared_is_an_error(
    recorded: Recorded, run: Run, names: tuple[str, ...], problem: str
) -> None:
    recorded.add_run(1, 1.0)
    with pytest.raises(UsageError, match=problem):
        run("compare", *names)


@pytest.mark.parametrize("broken", ["configs/models/m.yaml", "configs/project.yaml"])
def test_broken_manifests_do_not_hide_what_is_recorded(
    recorded: Recorded, run: Run, tmp_path: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.add_run(1, 1.0)
    recorded.add_run(2, 1.2)
    (tmp_path / broken).write_text("model: [")
    for command, name, expected in (
        ("history", "m:ort", "m:ort on ci"),
        ("history", "bench:m:ort", "bench:m:ort"),
        ("history", "m", "m:ort on ci"),
        ("compare", "m", "slower"),
        ("compare", "m:ort", "slower"),
    ):
        assert run_in(tmp_path, command, name) == 0
        printed = capsys.readouterr()
        assert expected in printed.out
        (warning,) = printed.err.splitlines()
        assert warning.startswith("buildsys: warning: broken and left out: ")
        assert broken in warning


def test_deleted_manifests_keep_their_history(recorded: Recorded, run: Run, tmp_path: Path) -> None:
    for number in (1, 2):
        recorded.add_run(number, float(number))
        recorded.add("export:m", number)
    (tmp_path / "configs/models/m.yaml").unlink()
    assert "m:ort on ci" in run("history", "m")
    assert "1.00 s  passed" in run("history", "bench:m:ort")
    assert "1.00 s  passed" in run("history", "export:m")
    assert "slower" in run("compare", "m")
    (tmp_path / "configs/models/other.yaml").unlink()
    (tmp_path / "configs/models").rmdir()
    assert "m:ort on ci" in run("history", "m")
    assert "1 machine" in run("history")


STAGES = ("export", "surgery:after_export", "simplify", "surgery:after_simplify", "convert:fp16")


def add_graphs(recorded: Recorded, run: int, **digests: str) -> None:
    """Record a run with a graph per stage, ``convert_fp16="digest"``."""
    for stage in [name for name in STAGES if name.replace(":", "_") in digests]:
        name, _, variant = stage.partition(":")
        target, digest = f"{name}:m:{variant}".rstrip(":"), digests[stage.replace(":", "_")]
        recorded.add(target, run, outputs={"model": digest})


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "no difference"),
        ({"export": "new"}, "graph         first differs in export: `buildsys compare m:export@"),
        ({"convert_fp16": "n"}, "first differs in convert:fp16: `buildsys compare m:convert:fp16@"),
        ({"export": "n", "simplify": "x", "convert_fp16": "y"}, "then differs in simplify, conv"),
        ({"surgery_after_export": "a"}, "surgery:after_export: only in the second"),
        ({"surgery_after_simplify": "a"}, "surgery:after_simplify: only in the second"),
    ],
)
def test_the_first_stage_with_another_graph_is_named(
    recorded: Recorded, run: Run, changes: dict[str, str], line: str
) -> None:
    before = {"export": "e", "simplify": "s", "convert_fp16": "c"}
    add_graphs(recorded, 1, **before)
    add_graphs(recorded, 2, **{**before, **changes})
    assert line in run("compare", "m")
    (pair,) = json.loads(run("compare", "m", as_json=True))["comparisons"]
    stages = [graph["stage"] for graph in pair["graphs"]]
    assert stages == [stage for stage in STAGES if stage in stages]


def test_an_engine_is_compared_by_what_it_is_built_from(recorded: Recorded, run: Run) -> None:
    file = recorded.root / "configs/models/m.yaml"
    file.write_text(file.read_text().replace("{name: fast,", "{name: fast, precision: fp16,"))
    for number, digest in enumerate(("c", "d")):
        add_graphs(recorded, number, export="e", simplify="s", convert_fp16=digest)
    for name in ("ort", "fast"):
        recorded.add(f"engine:m:{name}", 9)
    assert "graph" not in run("compare", "m:ort@previous", "m:ort")
    between = json.loads(run("compare", "m:ort", "m:fast", as_json=True))["comparisons"][0]
    states = {graph["stage"]: graph["state"] for graph in between["graphs"]}
    assert states == {"export": "equal", "simplify": "equal", "convert:fp16": "only in the second"}
