"""buildsys new and import: manifests from the figures of trial runs, or a refusal."""

from pathlib import Path
from typing import Any

import pytest

from buildsys.cli import command
from buildsys.cli.commands import new
from buildsys.cli.main import run
from buildsys.errors import StageError
from buildsys.project.load import load_project

COMMIT = "0123456789" * 4
TRY_MODEL = new.try_model
FOUND: dict[str, Any] = {
    "inputs": {"x:0": {"shape": ["N", 3, "h"], "dtype": "float32", "keyword": None}},
    "outputs": {
        "on": {"shape": ["N", None], "dtype": "int64", "key": None},
        "x_0_out": {"shape": ["N"], "dtype": "float32", "key": "x:0"},
    },
    "dims": {"N": {"min": 1, "opt": 4, "max": 8}, "h": {"min": 16, "opt": 16, "max": 32}},
    "fixed": {"length": 16},
    "guessed": True,
    "call": None,
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project with ONNX files; trial runs of `bad.onnx` fail."""

    def try_(project: object, model: str, source: Any, inputs: Any) -> Any:
        if "bad" in source.get("onnx", ""):
            raise StageError("ONNX Runtime cannot load it", "write another one")
        completed = {"transformers": source["transformers"] or "BertModel"} if hf(source) else {}
        return {**FOUND, "inputs": inputs or FOUND["inputs"], "source": source | completed}

    def hf(source: Any) -> bool:
        return "transformers" in source

    monkeypatch.setattr(command, "_started_in", [])
    monkeypatch.setattr(new, "try_model", try_)
    monkeypatch.chdir(tmp_path)
    assert run(["init"]) == 0
    for name in ("bad.onnx", "a/net.onnx", "b/net.onnx", "a/1 (2).onnx"):
        (tmp_path / "networks" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "networks" / name).touch()
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/net.py").write_text("def make(): ...")
    (tmp_path / "networks/net.pt2").touch()
    (tmp_path / "networks/bert").mkdir()
    (tmp_path / "networks/bert/config.json").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("networks/a/net.onnx", {"onnx": "networks/a/net.onnx"}),
        ("plugins/net.py:make", {"python": "plugins/net.py:make"}),
        ("torchvision:resnet18", {"torchvision": "resnet18"}),
        ("timm:resnet10t", {"timm": "resnet10t"}),
        ("networks/net.pt2", {"exported_program": "networks/net.pt2", "trusted": True}),
        ("hf:networks/bert/", {"transformers": "BertModel", "checkpoint": "networks/bert"}),
        ("hf:fill-mask:networks/bert/config.json",
         {"transformers": "fill-mask", "config": "networks/bert/config.json"}),
        (f"hf:owner/net@{COMMIT}",
         {"transformers": "BertModel", "checkpoint": f"hf://owner/net@{COMMIT}"}),
        (f"hf:AutoModel:hf://networks/net@{COMMIT}/config.json",
         {"transformers": "AutoModel", "config": f"hf://networks/net@{COMMIT}/config.json"}),
    ],
)  # fmt: skip
def test_a_manifest_is_valid_and_has_what_was_found(
    project: Path, place: str, source: dict[str, Any]
) -> None:
    trust = ["--trusted"] if "trusted" in source else []
    assert run(["new", "first", "--from", place, *trust]) == 0
    data = load_project(project).models["first"].data
    assert source.items() <= data["source"].items()
    assert {name: one["shape"] for name, one in data["inputs"].items()} == {"x:0": ["N", 3, "h"]}
    found = {
        name: (one["shape"], one["dtype"], one["key"]) for name, one in data["outputs"].items()
    }
    assert found == {
        "on": (["N", None], "int64", None), "x_0_out": (["N"], "float32", "x:0"),
    }  # fmt: skip
    ranges = {
        name: [one[end] for end in ("min", "opt", "max")] for name, one in data["dims"].items()
    }
    assert ranges == {"N": [1, 4, 8], "h": [16, 16, 32]}
    text = (project / "configs/models/first.yaml").read_text()
    assert "inputs:  # guessed, and accepted by the network\n" in text
    assert "dims:  # dynamic axes; it ran at both ends\n" in text
    assert "\n# length is fixed to 16: no other size ran\n" in text
    assert [engine["name"] for engine in data["engines"]] == ["ort-cpu"]


def test_a_model_outside_of_the_project_is_named_as_it_was_typed(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("shared") / "net.onnx"
    outside.touch()
    (project / "networks/link.onnx").symlink_to(outside)
    relative = f"../{outside.parent.name}/net.onnx"
    for number, place in enumerate((relative, str(outside), "networks/link.onnx")):
        assert run(["new", f"net{number}", "--from", place]) == 0
        assert load_project(project).models[f"net{number}"].data["source"]["onnx"] == place


def test_inputs_can_be_described(project: Path) -> None:
    arguments = ["--input", "N=N,3,h", "--input", "ids=7:int64:0..99", "--input", "scale="]
    arguments += ["--input", "level=3:float32:-1..0.5"]
    assert run(["new", "first", "--from", "plugins/net.py:make", *arguments]) == 0
    inputs = load_project(project).models["first"].data["inputs"]
    found = {name: (one["shape"], one["dtype"]) for name, one in inputs.items()}
    assert found == {
        "N": (["N", 3, "h"], "float32"), "ids": ([7], "int64"), "scale": ([], "float32"),
        "level": ([3], "float32"),
    }  # fmt: skip
    ranges = {
        name: one["data"] and (one["data"]["random"], one["data"]["low"], one["data"]["high"])
        for name, one in inputs.items()
    }
    assert ranges == {
        "N": None, "ids": ("integers", 0, 100), "scale": None, "level": ("uniform", -1, 0.5),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["m"], 3, "new takes one name and --from SOURCE, or a folder; SOURCE is tor"),
        (["a/b", "--from", "networks/a/net.onnx"], 3, "'a/b' is not the name of a model; use let"),
        (["resnet18", "--from", "torchvision:resnet18"], 3,
         "configs/models/resnet18.yaml exists already; choose another name, or remove it"),
        (["m", "--from", "networks/c.onnx"], 3, "there is no file networks/c.onnx"),
        (["m", "--from", "networks/net.pt2"], 3, "torch can run code of networks/net.pt2 when it l"
         "oads the file; if you trust its author, add --trusted"),
        (["m", "--from", "timm:resnet10t", "--trusted"], 3, "--trusted is not for models of this"),
        (["m", "--from", "hf:gpt2"], 3, "there is no checkpoint gpt2; write hf:FOLDER, hf:FO"),
        (["m", "--from", "net.txt"], 3, "net.txt is not a source; write torchvision:NAME, "),
        (["m", "--from", "networks/a/net.onnx", "--input", "x=1:flot32"], 3,
         "there is no dtype 'flot32'; nearest: float32"),
        (["m", "--from", "networks/bad.onnx"], 2, "ONNX Runtime cannot load it; write another one"),
        (["m", "--from", "networks/a/net.onnx", "--input", "x=1:int8:5..1"], 3,
         "--input x=1:int8:5..1 has no valid range; write whole numbers for integers, the smal"),
        (["m", "--from", "networks/a/net.onnx", "--input", "x=1,b c"], 3,
         "--input x=1,b c is not NAME=SHAPE[:DTYPE][:LOW..HIGH]; write for example --input image="),
        (["m", "--from", "timm:resnet10t", "--weights", "w.pth"], 3, "there is no file w.pth; the"),
        (["m", "--from", "timm:resnet10t", "--weights", "{file: w.pth, kye: a}"], 3,
         "--weights {file: w.pth, kye: a} is not a section `weights`; write FILE, hf://OWNER"),
        (["m", "--from", "networks/a/net.onnx", "--weights", "networks/a/net.onnx"], 3,
         "--weights is not for models of this kind; remove it"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_sentence_and_writes_nothing(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    capsys.readouterr()
    before = sorted((project / "configs").rglob("*"))
    assert run(["new", *arguments]) == code
    printed = capsys.readouterr()
    assert printed.err.startswith(f"ERROR: {sentence}")
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert sorted((project / "configs").rglob("*")) == before


def test_a_folder_of_onnx_files(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["new", "networks"]) == 2
    note = "  # length is fixed to 16: no other size ran"
    assert capsys.readouterr().out.splitlines() == [
        "wrote configs/models/a-1-2-.yaml", note,
        "wrote configs/models/a-net.yaml", note,
        "wrote configs/models/b-net.yaml", note,
        "failed networks/bad.onnx: ONNX Runtime cannot load it; write another one",
    ]  # fmt: skip
    assert {"a-1-2-", "a-net", "b-net"} < set(load_project(project).models)
    assert run(["new", "networks/a"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "wrote configs/models/1-2-.yaml", note,
        "wrote configs/models/net.yaml", note,
    ]  # fmt: skip
    assert run(["new", "plugins"]) == 3
    assert "there are no ONNX files in plugins; name a folder" in capsys.readouterr().err


def test_arguments_saved_with_weights_are_taken_if_the_network_needs_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_stage(project: object, stage: str, target: str, options: Any) -> Any:
        if not options["source"]["kwargs"]:
            raise StageError("it does not fit", changes=['source: {kwargs: {"width": 8}}'])
        return {**FOUND, "source": options["source"]}

    monkeypatch.setattr(new, "try_model", TRY_MODEL)
    monkeypatch.setattr(new, "run_stage", run_stage)
    assert run(["new", "first", "--from", "plugins/net.py:make"]) == 0
    assert load_project(project).models["first"].data["source"]["kwargs"] == {"width": 8}


def test_an_interrupted_command_leaves_no_manifest(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(new, "_try_exports", interrupt)
    assert run(["new", "first", "--from", "plugins/net.py:make"]) == 130
    assert not (project / "configs/models/first.yaml").exists()


VERIFIED = "export: {opset: 17}  # it leads to a verified engine"
TRIED = "# tried export: {opset: 17}: it does not lead to a verified engine"


@pytest.mark.parametrize(
    ("verified", "shapes", "dims", "fixed", "note"),
    [
        ("h: 16", ["N", 3, 16], {"N"}, ["h"], VERIFIED),
        ("N: 4", [4, 3, 16], set(), ["N", "h"], VERIFIED),
        ("none", ["N", 3, "h"], {"N", "h"}, [], TRIED),
        ("killed", ["N", 3, "h"], {"N", "h"}, [],
         f"{TRIED}; not tried: export: {{opset: 18}} (the worker was killed)"),
    ],
)  # fmt: skip
def test_sizes_are_fixed_if_no_export_takes_dynamic_ones(
    project: Path, monkeypatch: pytest.MonkeyPatch, verified: str, shapes: Any, dims: set[str],
    fixed: list[str], note: str,
) -> None:  # fmt: skip
    def try_exports(tried: Any, model: str, changes: Any) -> dict[str, bool | str]:
        text = (tried.configs / f"models/{model}.yaml").read_text()
        if verified == "killed" and text.count("N, 3, h"):
            return {"export: {opset: 17}": False, "export: {opset: 18}": "the worker was killed"}
        sizes = {"none": "never", "h: 16": "[N, 3, 16]"}.get(verified, "[4, 3, 16]")
        return {"export: {opset: 17}": sizes in text}

    monkeypatch.setattr(new, "_try_exports", try_exports)
    assert run(["new", "first", "--from", "plugins/net.py:make"]) == 0
    data = load_project(project).models["first"].data
    assert data["inputs"]["x:0"]["shape"] == shapes
    assert {*data.get("dims", {})} == dims
    text = (project / "configs/models/first.yaml").read_text()
    comments = [line for line in text.splitlines() if "no export of other sizes" in line]
    assert [line.split()[1] for line in comments] == fixed
    notes = [line for line in text.splitlines() if line.startswith(("export", "# tried"))]
    assert notes == [note]
