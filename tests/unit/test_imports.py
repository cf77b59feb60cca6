"""Direction of imports, read from the source without importing it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import buildsys

PACKAGE = Path(buildsys.__file__).parent
ROOT = PACKAGE.parent

# Each package and the packages it may import, besides `errors`. A row names only rows above it,
# so no import cycle between packages can pass. Lazy and type-only imports count.
ALLOWED: dict[str, set[str]] = {
    "system": set(),
    "table": set(),
    "manifest": {"system", "table"},
    "stages.fields": {"manifest", "system"},
    "stages.checks": {"manifest", "stages.fields", "system", "table"},
    "onnx_graphs": {"system"},
    "store": {"system"},
    "workers": {"system"},
    "plan": {"manifest", "system", "table"},
    "stages.plan": {"manifest", "plan", "system", "table"},
    "stages.result": {"manifest", "onnx_graphs", "system"},
    "report": {"manifest", "onnx_graphs", "stages.result", "system", "table"},
    "stages.report": {"report", "stages.result"},
    "history": {"report", "stages.result", "store", "system", "table"},
    "models": {"manifest", "onnx_graphs", "system"},
    "evaluation": {"models", "onnx_graphs", "system"},
    "backends": {"manifest", "models", "onnx_graphs", "system"},
    "deploy": {"backends", "onnx_graphs", "store", "system"},
    "stages": {
        "backends",
        "deploy",
        "evaluation",
        "history",
        "manifest",
        "models",
        "onnx_graphs",
        "report",
        "stages.result",
        "store",
        "system",
        "workers",
    },
    "execution": {"plan", "store", "system", "table", "workers"},
    "project": {"manifest", "plan", "system", "table"},
    "remote": {"execution", "history", "manifest", "plan", "project", "report", "store", "system"},
    "upgrade": {
        "execution",
        "history",
        "plan",
        "project",
        "report",
        "stages.result",
        "store",
        "system",
        "table",
        "workers",
    },
    "bisect": {
        "execution",
        "history",
        "manifest",
        "plan",
        "project",
        "report",
        "store",
        "system",
        "table",
        "upgrade",
        "workers",
    },
    "reduce": {"backends", "onnx_graphs", "stages", "workers"},
    "release": {"deploy", "history", "report", "stages.result", "store", "system", "table"},
    "mcp": set(),
    "cli": {
        "bisect",
        "deploy",
        "execution",
        "history",
        "manifest",
        "mcp",
        "plan",
        "project",
        "reduce",
        "release",
        "remote",
        "report",
        "stages.result",
        "store",
        "system",
        "table",
        "upgrade",
        "workers",
    },
}
# files of a stage's folder that are not only for its worker
ROOM_FILES = {"checks", "fields", "plan", "report", "result"}
LOOSE = {"", "__main__", "doctor", "dodo", "errors"}
ORCHESTRATOR = (
    "system",
    "manifest",
    "store",
    "workers",
    "plan",
    "project",
    "history",
    "execution",
    "upgrade",
    "cli",
)
HEAVY = {
    "torch",
    "torchvision",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "numpy",
    "tensorrt",
    "tensorrt_rtx",
    "onnxsim",
}
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # fields with statements
SLOW_TO_IMPORT = {"pydantic", "yaml", "rich", "doit"}


def modules() -> dict[str, Path]:
    """Return every module of the package by its name."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


@cache
def imported_names(path: Path) -> frozenset[str]:
    def names() -> Iterator[str]:
        waiting: list[ast.AST] = [ast.parse(path.read_bytes())]
        while waiting:
            node = waiting.pop()
            for field in BLOCKS:  # nine tenths of all nodes are expressions
                waiting += getattr(node, field, ())
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path} imports relatively"
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    return frozenset(names())


def package_of(name: str) -> str:
    """Return the row of a module: of a stage's folder, each kind of file has its own."""
    package, stage, file = (*name.split(".")[1:4], "", "", "")[:3]
    if package == "stages" and file in ROOM_FILES:
        return f"stages.{file}"
    return "table" if (package, stage) == ("stages", "table") else package


def own_imports(path: Path) -> set[str]:
    return {package_of(name) for name in imported_names(path) if name.split(".")[0] == "buildsys"}


def test_there_are_these_rows_and_no_loose_modules() -> None:
    assert {package_of(name) for name in modules()} - set(ALLOWED) <= LOOSE


def test_a_row_names_only_rows_above_it() -> None:
    rows = list(ALLOWED)
    for number, (package, allowed) in enumerate(ALLOWED.items()):
        assert allowed <= set(rows[:number]), f"{package} may import only what is above it"


def test_imports_point_one_way() -> None:
    wrong = []
    for name, path in modules().items():
        package = package_of(name)
        allowed = {*ALLOWED.get(package, ALLOWED), package, "errors", "", "__version__"}
        wrong += [f"{name} imports buildsys.{other}" for other in own_imports(path) - allowed]
    assert wrong == []


# what the core must not know; lazy and type-only imports count
OUTSIDE = tuple(
    f"buildsys.{name}" for name in ("remote", "deploy", "history", "release", "report.html")
)
EXTRAS = {"bisect", "mcp", "reduce", "upgrade"}
CORE = ("system", "table", "manifest", "plan", "project", "store", "workers", "execution")


def test_the_core_knows_no_other_machine_no_pages_and_no_deployment() -> None:
    found = {
        (name, outside)
        for name, path in modules().items()
        for outside in OUTSIDE
        if package_of(name) in CORE
        and any(f"{one}.".startswith(f"{outside}.") for one in imported_names(path))
    }
    assert found == set()


def test_only_their_commands_import_the_extras() -> None:
    importing = {
        name
        for name, path in modules().items()
        if own_imports(path) & EXTRAS and package_of(name) not in EXTRAS
    }
    assert importing == {f"buildsys.cli.commands.{name}" for name in EXTRAS}


def test_only_their_commands_import_releases() -> None:
    importing = {
        name
        for name, path in modules().items()
        if "release" in own_imports(path) and package_of(name) != "release"
    }
    assert importing == {
        "buildsys",
        "buildsys.cli.commands.publish",
        "buildsys.cli.commands.release",
    }


def test_the_remote_package_is_loaded_only_for_other_machines() -> None:
    code = "import sys, buildsys.cli.run_files, buildsys.cli.commands.build, buildsys.cli.main\n"
    code += "print([name for name in sys.modules if name.startswith('buildsys.remote')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_no_modules_import_each_other_in_a_cycle() -> None:
    known = modules()
    imports = {
        name: {
            module
            for imported in imported_names(path)
            for module in (imported, imported.rpartition(".")[0])
            if module in known and module != name
        }
        for name, path in known.items()
    }
    for name, imported in imports.items():  # a submodule is not an import of its package
        imports[name] = imported - {
            package for package in imported if any(m.startswith(f"{package}.") for m in imported)
        }
    while free := [name for name, imported in imports.items() if not imported & imports.keys()]:
        for name in free:
            del imports[name]
    assert imports == {}


def test_every_allowed_import_exists() -> None:
    used: dict[str, set[str]] = {package: set() for package in ALLOWED}
    for name, path in modules().items():
        used.get(package_of(name), set()).update(own_imports(path))
    assert {
        package: allowed - used[package]
        for package, allowed in ALLOWED.items()
        if allowed - used[package]
    } == {}


def test_only_the_cli_imports_doit() -> None:
    outside = {name: path for name, path in modules().items() if package_of(name) != "cli"}
    assert [
        n
        for n, path in outside.items()
        if "doit" in {name.split(".")[0] for name in imported_names(path)}
    ] == []


def loaded_by(*names: str) -> set[str]:
    code = f"import sys\nfor name in {names!r}: __import__(name)\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_the_orchestrator_loads_no_heavy_library() -> None:
    prefixes = tuple(f"buildsys.{package}." for package in ORCHESTRATOR)
    orchestrator = [
        name
        for name in modules()
        if (name.startswith(prefixes) or package_of(name).startswith("stages."))
        and not name.endswith("__main__")
    ]
    assert "buildsys.execution.executor" in orchestrator
    assert not loaded_by(*orchestrator) & HEAVY


def test_freshness_checks_load_no_slow_library() -> None:
    loaded = loaded_by(
        "buildsys.execution.executor", "buildsys.project.plan", "buildsys.workers.pool"
    )
    assert not loaded & (HEAVY | SLOW_TO_IMPORT)


def test_the_probe_would_see_a_library() -> None:
    assert {"numpy", "pydantic"} <= loaded_by("numpy", "pydantic")


def test_stages_of_other_toolchains_need_no_torch_and_no_onnx() -> None:
    stages = (f"buildsys.stages.{stage}.stage" for stage in ("engine", "verify", "bench"))
    assert not loaded_by(*stages) & {"torch", "onnx", "pydantic", "yaml", "rich"}


def test_the_evaluation_loads_the_libraries_of_metrics_and_tables_on_use() -> None:
    names = [name for name in modules() if package_of(name) == "evaluation"]
    libraries = {"sklearn", "scipy", "jiwer", "faster_coco_eval", "pyarrow", "torchmetrics", "PIL"}
    assert "buildsys.evaluation.metrics" in names
    assert not loaded_by(*names) & {*libraries, "torch", "onnx", "pydantic", "yaml", "rich"}


def test_the_module_of_no_stage_loads_torch() -> None:
    """A server without torch imports the modules of the stages that it runs."""
    stages = [name for name in modules() if name.endswith(".stage")]
    assert {"buildsys.stages.reference.stage", "buildsys.stages.export.stage"} <= {*stages}
    assert not loaded_by(*stages, "buildsys.stages.validate.stress") & {"torch", "sympy"}


def test_a_new_row_of_the_table_changes_no_keys_but_of_reports() -> None:
    """Our code is in the keys of stages, with everything that it imports."""
    known = modules()

    def imported(name: str) -> set[str]:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            module = waiting.pop()
            if module in known and module not in found:
                found.add(module)
                names = imported_names(known[module])
                waiting += [part for n in names for part in (n, n.rpartition(".")[0])]
        return found

    stages = [name for name in known if name.startswith("buildsys.stages.")]
    depending = [
        n for n in stages if n.endswith(".stage") and "buildsys.stages.table" in imported(n)
    ]
    assert depending == ["buildsys.stages.report.stage"]
