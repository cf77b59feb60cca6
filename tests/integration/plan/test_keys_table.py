"""The lists of keys_table.md, each entry as an edit of a project.

The keys after an edit are compared with those of the last build. The project is rebuilt where an
edit has effects downstream, and for some representatives of the others. Where all that is stale
gets other outputs, one rebuild per kind of source shows it; the rest follows from the plan.

What cannot be changed for real is changed where it is read: a library's version by a distribution
folder on the module path, the GPU and the CPU model in the functions that return them, our own code
in a copy of the package, which is digested in its place. Running workers do not see such a change,
so their outputs stay the same: these tests are about what runs.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest
from key_project import KeyProject

import buildsys
from buildsys.errors import StageError
from buildsys.execution import action_key
from buildsys.plan.action import Action
from buildsys.stages.table import STAGE_INFO
from buildsys.system import versions
from buildsys.system.toolchains import Interpreter

PAGE = (Path(__file__).parent / "keys_table.md").read_text(encoding="utf-8")
NET = "configs/models/net.yaml"
GIVEN = "configs/models/given.yaml"
CUT = "configs/models/cut.yaml"
CUSTOM = "configs/models/custom.yaml"
SMALL = "configs/models/small.yaml"
# no gates: unit/execution/test_baselines.py and unit/plan/test_plan_gate.py test them;
# no searches: unit/plan/test_plan_search.py and scenarios/stages/test_auto_precision.py do;
# no programs: unit/plan/test_program_plan.py does
# no commands: unit/plan/test_command_plan.py and scenarios/stages/test_commands.py do
# no loads and no preprocessing in engines: unit/plan/test_preprocess_plan.py does
_OTHERS = ("gate", "search", "program", "command", "load", "preprocess")
STAGES = tuple(stage for stage in STAGE_INFO if stage not in _OTHERS)
Patch = pytest.MonkeyPatch
Keys = dict[str, dict[str, str]]  # target -> parts


class Part(NamedTuple):
    stage: str
    label: str
    origin: str
    edits: list[str]
    why: str


def entries(title: str) -> list[str]:
    """Return the headings and entries of a section as lines."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^(?:###|-) .*(?:\n  .*)*", section, re.MULTILINE)
    return [" ".join(entry.split()) for entry in listed]


def read_parts() -> Iterator[Part]:
    stage = ""
    for entry in entries("Parts"):
        if entry.startswith("### "):
            stage = entry.removeprefix("### ").replace("all stages", "*")
            continue
        found = re.fullmatch(r"- `([^`]+)` from (.+?) \(([^)]+)\): (.+)\.", entry)
        assert found is not None, entry
        yield Part(stage, found[1], found[2], found[3].split(", "), found[4])


def read_reruns() -> Iterator[tuple[str, list[str]]]:
    for entry in entries("Reruns"):
        found = re.fullmatch(r"- \*\*([^*]+)\*\*: .+ → (.+)", entry)
        if found is not None:  # else a model of the test project
            yield found[1], re.findall("`([^`]+)`", found[2])


PARTS = list(read_parts())
RERUNS = dict(read_reruns())


@dataclass
class Bench:
    """The project, a copy of our package, and fake distributions."""

    project: KeyProject
    package: Path
    scratch: Path


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("keys")
    package = root / "code" / "buildsys"
    shutil.copytree(
        Path(buildsys.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("BUILDSYS_")]:
            patch.delenv(name)
        patch.setenv("BUILDSYS_TRIALS", "0")  # also for tests between those of this module
        patch.setenv("BUILDSYS_WORKER_IDLE", "0")
        patch.setenv(
            "BUILDSYS_MACHINE_LOCK", str(root / "machine")
        )  # do not wait for other benchmarks
        patch.setattr(action_key, "_CODE_ROOT", str(package.parent))
        project = KeyProject(root)
        yield Bench(project, package, root / "scratch")
        project.close()


def in_manifest(old: str, new: str, path: str = NET, *more: str) -> Callable[[Bench, Patch], None]:
    def change(bench: Bench, patch: Patch) -> None:
        for before, after in zip((old, *more[::2]), (new, *more[1::2]), strict=True):
            bench.project.replace(path, before, after)

    return change


def in_file(path: str, old: str, new: str) -> Callable[[Bench, Patch], None]:
    return in_manifest(old, new, path)


def append(path: str, text: str) -> Callable[[Bench, Patch], None]:
    return lambda bench, patch: bench.project.append(path, text)


def comment(path: str) -> Callable[[Bench, Patch], None]:
    return append(path, "# a comment\n")


def save(method: str, *values: object, **more: object) -> Callable[[Bench, Patch], None]:
    return lambda bench, patch: getattr(bench.project, method)(*values, **more)


def variable(name: str, value: str = "1") -> Callable[[Bench, Patch], None]:
    return lambda bench, patch: patch.setenv(name, value)


def library(*names: str, requires: str = "") -> Callable[[Bench, Patch], None]:
    def change(bench: Bench, patch: Patch) -> None:
        folder = bench.scratch / "-".join(names)
        for name in names:
            (folder / f"{name}-99.9.dist-info").mkdir(parents=True, exist_ok=True)
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.9\n{requires}"
            (folder / f"{name}-99.9.dist-info" / "METADATA").write_text(text)
        patch.syspath_prepend(folder)

    return change


def code(*paths: str) -> Callable[[Bench, Patch], None]:
    def change(bench: Bench, patch: Patch) -> None:
        copy = bench.scratch / "package"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(bench.package, copy / "buildsys", copy_function=os.link)
        for path in paths:
            file = copy / "buildsys" / path
            text = file.read_text()
            file.unlink()  # the other name of a link stays as it is
            file.write_text(f"{text}\n# changed\n")
        patch.setattr(action_key, "_CODE_ROOT", str(copy))

    return change


def touch_everything(bench: Bench, patch: Patch) -> None:
    for file in bench.project.root.rglob("*"):
        if file.is_file() and ".buildsys" not in file.parts:
            os.utime(file)


def put_sha256(bench: Bench, patch: Patch) -> None:
    digest = sha256((bench.project.root / "weights/net.pth").read_bytes()).hexdigest()
    bench.project.replace(NET, "file: weights/net.pth", f"file: weights/net.pth, sha256: {digest}")


def rewrite_manifest(bench: Bench, patch: Patch) -> None:
    lines = (bench.project.root / NET).read_text().splitlines()
    engines = lines.index("engines:")
    bench.project.write(NET, "\n".join(["# a comment", *lines[engines:], *lines[:engines], ""]))


def another_cpu(bench: Bench, patch: Patch) -> None:
    patch.setattr(
        "buildsys.system.cpu.read_cpuinfo", lambda: {"model name": "Another CPU", "flags": "avx"}
    )


def another_compiler(bench: Bench, patch: Patch) -> None:
    patch.setattr(
        "buildsys.system.compilers.compiler_identity", lambda language: f"another {language}"
    )


def another_graphviz(bench: Bench, patch: Patch) -> None:
    program = bench.scratch / "bin" / "dot"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\necho dot 99\n")
    program.chmod(0o755)
    patch.setenv("PATH", str(program.parent), prepend=os.pathsep)


def fewer_cores(bench: Bench, patch: Patch) -> None:
    one_more = [*os.sched_getaffinity(0), 4096]
    patch.setattr("buildsys.system.devices.usable_processors", lambda: one_more)


def another_gpu(bench: Bench, patch: Patch) -> None:
    gpu = {
        "name": "Some GPU",
        "compute_capability": "8.9",
        "driver": "580.1",
        "cuda_driver": "13.0",
    }
    patch.setattr("buildsys.system.devices.DRIVER_FILES", ("/",))
    patch.setattr("buildsys.system.devices.read_gpus", lambda visible: [gpu])


def other_variables(bench: Bench, patch: Patch) -> None:
    for name in ("TORCH_HOME", "TORCH_LOGS", "PYTHONHASHSEED"):
        patch.setenv(name, "1")


def another_name(bench: Bench, patch: Patch) -> None:
    bench.project.replace("configs/project.yaml", "other:", "another:")
    bench.project.replace(GIVEN, "toolchain: other", "toolchain: another")


EDITS: dict[str, Callable[[Bench, Patch], None]] = {
    "nothing": lambda bench, patch: None,
    "touch": touch_everything,
    "saved again": save("save_weights", 0.0, epoch=3),
    "ops function": in_file("plugins/ops/swish.py", "from onnx", "# a comment\nfrom onnx"),
    "ops body": in_file(
        "plugins/ops/swish.py", '("Relu", ["x"]', '("Max", ["x"], ["a"]), ("Relu", ["a"]'
    ),
    "ops header": in_file(
        "plugins/ops/ort_custom_op.h", "#include <stddef.h>", "/* a comment */\n#include <stddef.h>"
    ),
    "ops source": append("plugins/ops/clamp_swish.c", "int another_symbol(void) { return 1; }\n"),
    "ops flags": in_file(CUSTOM, "[-lm, -march=native]", "[-lm, -march=native, -DUNUSED]"),
    "plugin": in_file(
        "plugins/ops/twice_plugin.py", "class TwiceCreator", "# a comment\nclass TwiceCreator"
    ),
    "plugin module": in_file("plugins/ops/plugin_bases.py", "ALL =", "# a comment\nALL ="),
    "ops reference": in_file(CUSTOM, "plugins/ops/swish.py:swish", "plugins/ops/swish.py:again"),
    "ops use": in_file(CUSTOM, "use: {onnxruntime: library}", "use: {onnxruntime: function}"),
    "compiler": another_compiler,
    "sha256": put_sha256,
    "comment": rewrite_manifest,
    "time-out": append(NET, "timeout: {export: 10min}\n"),
    "weights": save("save_weights", 0.25),
    "surgery step": in_manifest("rename: {y: z}", "rename: {y: v}", CUT),
    "surgery names": in_manifest("batch", "rows", CUT),
    "surgery span": in_manifest("min: 1, opt: 2, max: 4", "min: 3, opt: 3, max: 5", CUT),
    "surgery limits": in_manifest("rtol: 1.0e-4", "rtol: 2.0e-4", CUT),
    "surgery seed": in_manifest("seed: 0", "seed: 1", CUT),
    "surgery file": save("save_onnx", 5.0, "cut"),
    "surgery reference": comment("plugins/hooks/truth.py"),
    "hook": comment("plugins/hooks/double.py"),
    "hook module": comment("plugins/lib/constants.py"),
    "network hook": comment("plugins/hooks/network.py"),
    "network hook module": comment("plugins/lib/sizes.py"),
    "hook library": library("hooked_tool"),
    "env hook": variable("HOOKED_SCALE"),
    "module": comment("plugins/lib/blocks.py"),
    "read": append("data/scale.txt", "\n"),
    "onnx weights": save("save_onnx", 2.0),
    "data file": save("save_data", 2.0),
    "calibration": in_manifest("algorithm: minmax", "algorithm: percentile", SMALL),
    "calibration image": save("save_images", gray=129),
    "calibration images": save("save_image", "another.png", 9),
    "calibration span": in_manifest("min: 1, opt: 2, max: 4", "min: 1, opt: 1, max: 4", SMALL),
    "calibration names": in_manifest("batch,", "rows,", SMALL, "{batch:", "{rows:"),
    "calibration file": save("save_convolutions", 2.0),
    "quantize": in_manifest("per_channel: true", "per_channel: false", SMALL),
    "quantize exclude": in_manifest("per_channel: true", "per_channel: true, exclude: [/d]", SMALL),
    "convert exclude": in_manifest("verify: {", "convert: {exclude: [/first/*]}\nverify: {"),
    "quantization": in_manifest("name: trt,", "name: trt, quantization: explicit,", SMALL),
    "verify int8": in_manifest("rtol: 2.0e-1", "rtol: 3.0e-1", SMALL),
    "seed": in_manifest("seed: 0", "seed: 1"),
    "keyword": in_manifest("data: {npz: data/x.npz}", "keyword: x, data: {npz: data/x.npz}"),
    "call": in_manifest(
        "call: {args: [x]}", "call: {kwargs: {input: x}}", "configs/models/traced.yaml"
    ),
    "symbolic opset": in_manifest("opset: 9}]", "opset: 10}]"),
    "symbolic file": comment("plugins/lib/written.py"),
    "translation": in_manifest("py:linear", "py:other", "configs/models/traced.yaml"),
    "translation file": comment("plugins/translations/linear.py"),
    "declared output": in_manifest(
        "y: {shape: [batch, 3], compare", "y: {shape: [batch, 3], dtype: float32, compare"
    ),
    "comparison": in_manifest("compare: auto", "compare: {policy: auto, allow_zero: true}"),
    "data key": in_manifest("npz: data/x.npz", "npz: data/x.npz, key: x"),
    "span": in_manifest("min: 1, opt: 2, max: 4", "min: 3, opt: 3, max: 5"),
    "range": in_manifest("max: 4", "max: 8"),
    "traced range": in_manifest("max: 4", "max: 8", "configs/models/traced.yaml"),
    "drawn sizes": in_manifest("validate: {", "validate: {drawn_sizes: 2, "),
    "rename": in_manifest("batch", "rows"),
    "opset": in_manifest("opset: 17", "opset: 18"),
    "simplifier": in_manifest("tool: onnxsim", "tool: onnxsim, constant_folding: false"),
    "validate": in_manifest("validate: {rtol: 1.0e-4}", "validate: {rtol: 2.0e-4}"),
    "validate cases": in_manifest("validate: {", "validate: {cases: [min, max], "),
    "verify fp16": in_manifest("rtol: 2.0e-2", "rtol: 3.0e-2"),
    "verify cases": in_manifest("verify: {", "verify: {cases: [min, max], "),
    "precision": in_manifest("precision: fp16", "precision: bf16"),
    "spinning": in_manifest("name: ort}", "name: ort, spinning: false}"),
    "profiles": in_manifest(
        "name: rtx}", "name: rtx, profiles: [{x: {min: [1, 4], opt: [3, 4], max: [4, 4]}}]}"
    ),
    "required": in_manifest("name: ort}", "name: ort, required: true}"),
    "bench": in_manifest("duration: 1ms", "duration: 2ms"),
    "bench gpu": in_manifest(
        "duration: 1ms", "cuda_graph: [false, true], in_flight: 2, duration: 1ms"
    ),
    "bench baselines": in_manifest("baselines: [torch]", "baselines: [torch, onnxruntime]"),
    "drop": append(GIVEN, "  drop: 2%\n"),
    "evaluated samples": save("save_samples", 0.6),
    "evaluated seed": in_file(GIVEN, "given.onnx}", "given.onnx, seed: 1}"),
    "evaluated names": in_file(GIVEN, "batch", "rows"),
    "metric file": comment("plugins/metrics/distance.py"),
    "postprocess file": comment("plugins/metrics/halves.py"),
    "metric": in_file(GIVEN, "{python: plugins/metrics/distance.py:closeness}", "rmse"),
    "description": append(NET, "description: a net\n"),
    "graphviz": another_graphviz,
    "report formats": append(NET, "report: {formats: [markdown]}\n"),
    "tags and owner": append(NET, "tags: [nightly]\nowner: vision team\n"),
    "flaky": append(NET, "flaky: true\n"),
    "run": in_manifest(
        "[batch, 3, 4, 4]",
        "[batch, 3, 4, 4], preprocess: {resize: 5}",
        SMALL,
        "[batch, 2, 4, 4]",
        "[batch, 2, 4, 4], labels: {names: [a, b, c, d]}",
    ),
    "env torch": variable("ATEN_CPU_CAPABILITY", "default"),
    "env read": variable("KEYED_SCALE"),
    "env onnxruntime": variable("ORT_DISABLE_FLASH_ATTENTION"),
    "env onnxsim": variable("ONNXSIM_FIXED_POINT_ITERS", "9"),
    "env onnxslim": variable("ONNXSLIM_THRESHOLD", "9"),
    "env gpu": variable("NVIDIA_TF32_OVERRIDE", "0"),
    "env speed": variable("OMP_NUM_THREADS"),
    "env other": other_variables,
    "python": lambda bench, patch: patch.setattr(
        versions.platform, "python_version_tuple", lambda: ("3", "99", "0")
    ),
    **{
        name: library(name.replace("-", "_"))
        for name in (
            "torch",
            "torchvision",
            "numpy",
            "onnx",
            "onnxruntime",
            "onnxsim",
            "onnxslim",
            "onnxscript",
            "onnx-ir",
            "sympy",
            "tensorrt",
            "tensorrt_rtx",
            "onnx-graphsurgeon",
            "pillow",
        )
    },
    "user library": library("keyed_tool", requires="Requires-Dist: keyed-base>1\n"),
    "other libraries": library("doit", "pydantic", "protobuf", "rich"),
    "toolchain library": lambda bench, patch: bench.project.environment.relabel(
        "onnxruntime", "99.9"
    ),
    "toolchain numpy": lambda bench, patch: bench.project.environment.relabel("numpy", "99.9"),
    "toolchain python": lambda bench, patch: patch.setattr(Interpreter, "release", "CPython 3.99"),
    "toolchain variable": in_file("configs/project.yaml", 'SETTING: "1"', 'SETTING: "2"'),
    "toolchain name": another_name,
    "toolchain place": in_file("configs/project.yaml", "envs/other/", "envs/moved/"),
    "cpu": another_cpu,
    "cores": fewer_cores,
    "gpu": another_gpu,
    **{f"code {stage}": code(f"stages/{stage}/stage.py") for stage in STAGES},
    "code backend": code("backends/tensorrt_rtx/backend.py"),
    "code quantize": code("stages/convert/quantized.py"),
    "code front": code("execution/executor.py", "workers/pool.py"),
}


# Rebuilt for real, besides edits with effects downstream: no change at all, equal outputs from
# user files, and results that the report reads.
# ("sha256" is rebuilt in a test of its own)
REBUILT = {"nothing", "touch", "module", "bench", "evaluated samples"}
# All outputs of what is stale change, as those of rebuilt edits do: after another graph (opset),
# golden tensors (data file), and whatever is first in a model (onnx weights, surgery file,
# calibration file, ops body).
LIKE_REBUILT = {
    "weights", "onnx weights", "keyword", "rename", "surgery step", "convert exclude", "quantize",
}  # fmt: skip


@dataclass
class Outcome:
    """The effect of an edit on a built project."""

    targets: set[str]
    ran: set[str]
    changed: dict[str, set[str]]  # target -> labels of its key; only of targets that existed before
    added: dict[str, set[str]]  # new targets -> all their labels


def compare_keys(before: Keys, after: Keys) -> Outcome:
    """Return the targets with a key changed by an edit."""
    changed = {}
    for target in before.keys() & after.keys():
        old, new = before[target], after[target]
        labels = {label for label in old.keys() | new.keys() if old.get(label) != new.get(label)}
        changed |= {target: labels} if labels else {}
    added = {target: set(parts) for target, parts in after.items() if target not in before}
    return Outcome(set(after), changed.keys() | added.keys(), changed, added)


@pytest.fixture(scope="session")
def outcome_of(bench: Bench) -> Callable[[str], Outcome]:
    """Return the effect of an edit, from a real rebuild if necessary.

    They do if the page lists nothing but targets with changed keys and the reports on those: a
    stage that ran has another result file, and no output that the next stage reads.
    """
    project, before = bench.project, bench.project.records()

    @cache
    def outcome(edit: str) -> Outcome:
        with project.restored(), pytest.MonkeyPatch.context() as patch:
            EDITS[edit](bench, patch)
            planned = compare_keys(before, project.keys())
            reports = {f"report:{target.split(':')[1]}" for target in planned.ran}
            stale = planned.ran | reports
            if edit in LIKE_REBUILT:
                stale |= readers(planned.ran, project.session().actions)
            if edit not in REBUILT and stale == listed(edit, planned.targets):
                return replace(planned, ran=stale)
            assert edit not in LIKE_REBUILT, stale ^ listed(edit, planned.targets)
            ran = project.build()
            if edit in REBUILT:
                assert project.build() == []
            assert planned.ran <= set(ran)
            rebuilt = compare_keys(before, project.records())
            assert len(ran) == len(set(ran))
            assert set(ran) == rebuilt.ran
            return rebuilt

    return outcome


def readers(changed: set[str], actions: Mapping[str, Action]) -> set[str]:
    """Return the targets that read outputs of these, directly or through others."""
    found = set(changed)
    while True:
        outputs = {ref.path for name in found for ref in actions[name].outputs.values()}
        more = {
            name
            for name, action in actions.items()
            if any(ref.path in outputs for ref in action.inputs.values())
        }
        if more <= found:
            return found
        found |= more


def listed(edit: str, targets: set[str]) -> set[str]:
    """Return the targets certain to run again according to the page."""
    return {t for t in targets if any(fnmatchcase(t, name) for name in RERUNS[edit])}


def stage_of(target: str) -> str:
    return target.partition(":")[0]


def explains(part: Part, target: str, label: str) -> bool:
    return part.stage in ("*", stage_of(target)) and fnmatchcase(label, part.label)


@pytest.mark.parametrize("edit", RERUNS)
def test_an_edit_reruns_the_listed_targets_for_the_listed_parts(
    outcome_of: Callable[[str], Outcome], edit: str
) -> None:
    outcome = outcome_of(edit)
    perhaps = {name.removesuffix("?") for name in RERUNS[edit] if name.endswith("?")}
    assert outcome.ran - perhaps == listed(edit, outcome.targets)
    changed = [(target, label) for target, labels in outcome.changed.items() for label in labels]
    sections = {
        re.split(r"[.\[]", label)[1]
        for target, label in changed
        if stage_of(target) == "report" and label.startswith("config:manifest.")
    }
    for target, label in changed:
        kind = label.partition(":")[0]
        for part in (part for part in PARTS if explains(part, target, label)):
            if kind == "config":
                origins = set(re.findall("`([^`]+)`", part.origin))
                assert origins & {*sections, "*"}, f"{edit} changed {label} of {target}"
            elif kind not in ("input", "inputs", "outputs"):
                assert edit in part.edits, f"{edit} changed {label} of {target}"


@pytest.mark.parametrize("stage", [*STAGES, "*"])
def test_each_part_makes_its_stage_stale(outcome_of: Callable[[str], Outcome], stage: str) -> None:
    for part in (part for part in PARTS if part.stage == stage):
        for edit in part.edits:
            outcome = outcome_of(edit)
            by_it = {
                target
                for target, labels in {**outcome.changed, **outcome.added}.items()
                if any(explains(part, target, label) for label in labels)
            }
            assert by_it, (part, edit)
            assert by_it <= outcome.ran, (part, edit)


def test_the_lists_are_complete(bench: Bench) -> None:
    assert RERUNS.keys() == EDITS.keys()
    assert {edit for part in PARTS for edit in part.edits} <= EDITS.keys()
    assert {part.stage for part in PARTS} == {*STAGES, "*"}
    labels = {(target, label) for target, parts in bench.project.keys().items() for label in parts}
    for target, label in labels:
        assert any(explains(part, target, label) for part in PARTS), (
            f"keys_table.md has no entry for {label} of {target}"
        )
    for part in PARTS:
        used = any(explains(part, target, label) for target, label in labels)
        assert used or part.label == "env:*", f"no key has {part.label} of {part.stage}"


def test_every_field_of_an_action_is_classified() -> None:
    in_key = (
        "target options inputs outputs sources weights code tools devices environment toolchain"
        " packages peer_tools probes reads baseline"
    )
    elsewhere = (  # ``needs``: what the machine lacks is in the key
        "stage model variant after order advisory required timeout_s strict_reads measures"
        " exclusive alone_on_gpu refits server preload needs"
    )
    assert set(Action.__dataclass_fields__) == {*in_key.split(), *elsewhere.split()}


def test_a_file_with_another_digest_than_the_manifest_is_stale_and_fails(
    bench: Bench,
) -> None:
    with bench.project.restored(), pytest.MonkeyPatch.context() as patch:
        put_sha256(bench, patch)
        assert bench.project.build() == ["report:net"]
        session = bench.project.session()  # once loaded, only the key reads the file
        assert session.is_fresh("export:net")
        bench.project.save_weights(0.0, epoch=3)
        assert not session.is_fresh("export:net")
        with pytest.raises(StageError, match="has the sha256"):
            session.executor.run("export:net")
        session.executor.close()
