"""A dodo file of others with our tasks, and its own settings of doit."""

from ready_project import ReadyProject

OTHERS = """

def task_hello():
    return {"actions": ["cp plugins/data/values.py hello.txt"], "targets": ["hello.txt"],
            "file_dep": ["plugins/data/values.py"], "clean": True}
"""


def test_a_dodo_file_of_others_has_our_tasks_by_one_line(ready_built: ReadyProject) -> None:
    project = ready_built
    (project.root / "pyproject.toml").unlink()
    line = "from buildsys.dodo import task_targets\n"
    (project.root / "dodo.py").write_text(f"{line}DOIT_CONFIG = {{'backend': 'json'}}\n{OTHERS}")
    listed = project.doit("list", "--all", "-q").out.split()
    assert {"hello", "build:a", "verify:a:ort"} <= {*listed}
    assert (project.doit("hello").out, project.doit("hello").out) == (".  hello\n", "-- hello\n")
    ran = project.doit("verify:a:ort")
    assert (ran.code, ".  " in ran.out) == (0, False)
    forgotten = project.doit("forget", "engine:a:ort", "hello")
    assert forgotten.out == "forgetting engine:a:ort\nforgetting hello\n"
    ran = project.doit("-n", "2", "hello", "build:a")  # in processes that doit forks
    assert (ran.code, ran.err) == (0, "")
    assert ".  hello\n" in ran.out
    assert "engine:a:ort" in ran.ran
    assert "export:a" not in ran.ran
    project.add_model("b").write_text("model: b\nnope: 1\n")
    broken = project.doit("--continue", "manifest", "hello")
    assert broken.code != 0
    assert "configs/models/b.yaml:2:1: nope: unknown field" in broken.out
    assert "-- hello\n" in broken.out
