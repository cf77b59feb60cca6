"""`buildsys run`: the choice of an engine, mistakes in arguments, and what is printed."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_doubles import make_session, run_in

from buildsys.cli import command, engine_checks
from buildsys.cli.session import BuildSession
from buildsys.errors import UsageError
from buildsys.execution.freshness import Freshness
from buildsys.system.backend_registry import Reason
from buildsys.workers.pool import JobReply, WorkerPool

OPTIONS: dict[str, Any] = {"input": ["x=x.npy"]}
INPUTS = {
    "x": {"shape": ["batch", 3, 8, 8], "preprocess": {}},
    "mask": {"shape": ["batch", 1, 8, 8]},
    "scale": {"shape": [1]},
}
OUTPUTS = {"y": {"labels": {"file": "labels.txt"}}, "z": {}}
DIMS = {"batch": {"min": 1, "opt": 2, "max": 4}}


class Project:
    """A model whose engines ort and rtx are built, with scripted reasons and results."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.reasons: dict[str, str] = {}  # by engine
        self.recommended = ""
        self.report_state = "fresh"
        self.jobs: list[Any] = []
        self.outputs: dict[str, Any] = {}
        self.files = ["photo.jpg"]
        self.session, _ = make_session(root, "net", inputs=INPUTS, outputs=OUTPUTS, dims=DIMS)
        for engine in ("ort", "rtx"):
            self.engine(engine).parent.mkdir(parents=True)
            self.engine(engine).touch()
        monkeypatch.setattr(command, "_started_in", [])
        monkeypatch.setattr(BuildSession, "read_only", lambda *_: self.session)
        monkeypatch.setattr(self.session, "explain", self._explain)
        monkeypatch.setattr(self.session, "result", self._result)
        monkeypatch.setattr(engine_checks, "project_reasons", self._reasons)
        monkeypatch.setattr(WorkerPool, "run", lambda _, job, **__: self._work(job))
        monkeypatch.chdir(root)
        (root / "labels.txt").write_text("cat\ndog\n", encoding="utf-8")
        for name in ("x.npy", "all.npz", "photo.jpg", "mask.npy"):
            (root / name).touch()

    def engine(self, name: str) -> Path:
        outputs = self.session.actions[f"engine:net:{name}"].outputs
        return self.session.project.build / outputs["engine"].path

    def run(self, *names: str, **options: Any) -> int:
        return run_in(self.root, "run", *(names or ("net",)), **{**OPTIONS, **options})

    def refusal(self, *names: str, **options: Any) -> str:
        with pytest.raises(UsageError) as error:
            self.run(*names, **options)
        assert "\n" not in str(error.value)
        assert self.jobs == []
        return str(error.value)

    def _explain(self, targets: Any, **_: Any) -> dict[str, Freshness]:
        return {one: Freshness(one, self.report_state == "fresh") for one in targets}

    def _result(self, target: str) -> dict[str, Any]:
        engine = {"engine": self.recommended}
        return {"recommendation": engine} if target == "report:net" else {"status": "passed"}

    def _reasons(self, _: BuildSession, engine: Any, **__: Any) -> Any:
        reason = self.reasons.get(engine.variant)
        yield from [] if reason is None else [Reason("stale", reason, "")]

    def _work(self, job: Any) -> JobReply:
        self.jobs.append(job)
        stage = job.stage.rpartition(".")[2]
        answers = {
            "inputs": {"inputs": {"x": {
                "files": self.files, "dtype": "float32", "shape": [1, 3, 8, 8],
                "preprocess": "resized to 8 x 8",
            }}, "labels": {}},
            "engine": {"latency_ms": 1.25, "outputs": self.outputs},
        }  # fmt: skip
        job.outputs["result"].write_text(json.dumps(answers[stage]))
        if stage == "engine":
            job.outputs["outputs"].write_bytes(b"arrays")
        return JobReply("passed", "", "", {}, 0.0)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def chosen(project: Project) -> str:
    return str(project.jobs[-1].variant)


def test_the_recommended_engine_runs_if_none_is_named(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.recommended = "rtx"
    assert project.run() == 0
    assert chosen(project) == "rtx"
    assert capsys.readouterr().out.startswith("net:rtx (recommended): 1.25 ms, the first call")
    project.report_state = "stale"  # its recommendation may be of an earlier build
    assert project.run() == 0
    assert chosen(project) == "ort"
    assert capsys.readouterr().out.startswith("net:ort (the first that can run): 1.25 ms")
    assert project.run("net:rtx") == 0
    assert capsys.readouterr().out.startswith("net:rtx: 1.25 ms")


def test_an_engine_that_is_not_ready_is_refused_with_the_command(project: Project) -> None:
    project.reasons = {"ort": "verify:net:ort has not run on the current files: never built"}
    assert project.run() == 0
    assert chosen(project) == "rtx"
    project.jobs.clear()
    assert project.refusal("net:ort").startswith("no engine of net can run (ort: verify:net:ort h")
    project.reasons["rtx"] = "it is stale"
    project.engine("rtx").unlink()
    assert project.refusal() == (
        "no engine of net can run (ort: verify:net:ort has not run on the current files: never "
        "built; rtx: not built); `buildsys build net` builds and verifies them"
    )


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["net", "net"], {}, "run takes one MODEL or MODEL:ENGINE; `buildsys help run` explains"),
        (["nett"], {}, "there is no engine 'nett'; nearest: net"),
        (["net:otr"], {}, "there is no engine 'net:otr'; nearest: net:ort"),
        (["net"], {"input": []}, "run needs values for x, mask, scale: add --input NAME=FILE; "
            "to build, type `buildsys build net`"),
        (["net"], {"input": ["X=x.npy"]}, "there is no input 'X'; nearest: x"),
        (["net"], {"input": ["x=foto.jpg"]}, "there is no image, .npy or .npz file foto.jpg; "
            "did you mean photo.jpg?"),
        (["net"], {"input": ["x.npy"]}, "net has several inputs; write --input NAME=x.npy; inputs"),
        (["net"], {"input": ["x=labels.txt"]}, "there is no image, .npy or .npz file labels.txt"),
        (["net"], {"input": ["mask=photo.jpg"]}, "the manifest of net has no preprocessing of image"
            "s for mask; add inputs.NAME.preprocess to it, or give an .npz file"),
        (["net"], {"output": "out.txt"}, "--output out.txt is not an .npz file in an"),
        (["net"], {"output": "no/out.npz"}, "--output no/out.npz is not an .npz file in"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(
    project: Project, names: list[str], options: dict[str, Any], message: str
) -> None:
    assert project.refusal(*names, **options).startswith(message)


def test_files_are_inputs_by_name_or_all_of_them(project: Project) -> None:
    (project.root / "a=b.npz").touch()
    project.run(input=["x=photo.jpg", "mask=mask.npy", "all.npz", "a=b.npz"])
    options = project.jobs[0].options
    assert [(name, shown) for name, _, shown in options["files"]] == [
        ("x", "photo.jpg"), ("mask", "mask.npy"), ("", "all.npz"), ("", "a=b.npz"),
    ]  # fmt: skip
    assert options["inputs"]["x"]["preprocess"]["divide"] == 255
    assert options["dims"]["batch"]["max"] == 4
    assert project.jobs[1].options == {
        "labels": {"y": {"activation": "softmax", "count": 2}}, "top": 5,
    }  # fmt: skip


def test_classes_and_ranges_are_printed_and_outputs_written(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.outputs = {
        "y": {"dtype": "float32", "shape": [2, 2], "min": -1.0, "max": 2.0, "non_finite": 0,
              "rows": 2,
              "top": [{"index": [1, 0], "score": [0.8127, 0.1873]},
                      {"index": [0], "score": [None]}]},
        "z": {"dtype": "int64", "shape": [2], "min": -3, "max": 12345, "non_finite": 0},
        "w": {"dtype": "float32", "shape": [], "non_finite": 1},
    }  # fmt: skip
    assert project.run("net:ort", output="out.npz") == 0
    assert (project.root / "out.npz").read_bytes() == b"arrays"
    assert capsys.readouterr().out.splitlines() == [
        "net:ort: 1.25 ms, the first call after loading",
        "  x: photo.jpg, resized to 8 x 8",
        "",
        "y, row 1 of 2",
        "    81.27 %  dog (1)",
        "    18.73 %  cat (0)",
        "",
        "y, row 2 of 2",
        "        NaN  cat (0)",
        "",
        "output  type        min     max",
        "z       int64 [2]    -3  12,345",
        "w       float32 []    —       —  1 value NaN or infinite",
        "wrote out.npz",
    ]
    assert project.run("net:ort", json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "buildsys/run/1"
    assert (document["engine"], document["chosen"], document["output"]) == ("ort", "named", None)
    assert document["outputs"]["y"]["top"][0]["label"] == ["dog", "cat"]
