"""Tasks of others beside ours: in a dodo file of ours, and in theirs with its own doit."""

import json

from ready_project import ReadyProject

OTHERS = """

def task_hello():
    return {"actions": ["cp plugins/data/values.py hello.txt"], "targets": ["hello.txt"],
            "file_dep": ["plugins/data/values.py"], "clean": True}


def task_bad():
    return {"actions": ["echo oops; false"]}


def task_deploy():
    yield {"name": "a", "actions": ["echo deployed"], "task_dep": ["engine:a:ort"]}
"""


def test_a_dodo_file_of_ours_may_have_other_tasks(ready_built: ReadyProject) -> None:
    project = ready_built
    project.edit("dodo.py", "parent)\n", f"parent)\n{OTHERS}")
    listed = project.doit("list", "--all", "-q").out.split()
    assert {"hello", "bad", "deploy:a", "build:a", "verify:a:ort"} <= {*listed}
    assert (project.doit("hello").out, project.doit("hello").out) == (".  hello\n", "-- hello\n")
    ran = project.doit("-n", "2", "hello*", "a:verify")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("-- hello\neverything is up to date (")
    project.doit("forget", "engine:a:ort", "hello")
    ran = project.doit("hello", "deploy:a")
    assert (ran.code, ran.err, ran.ran) == (0, "", {"engine:a:ort"})
    assert ".  hello\n" in ran.out
    assert ".  deploy:a\n" in ran.out
    bad = project.doit("bad")
    assert bad.code == 1
    assert bad.out.count("taskid:bad") == 1
    assert "<stdout>:\noops\n" in bad.out
    assert "up to date" not in bad.out
    project.doit("ignore", "hello", "verify:a:ort")
    ran = project.doit("hello", "verify")
    assert ran.out == "!! hello\neverything is up to date (4 targets, 1 ignored)\n"
    assert json.loads((project.root / ".buildsys/ignored.json").read_text()) == ["verify:a:ort"]
    project.doit("clean", "hello")
    assert not (project.root / "hello.txt").exists()
    unknown = project.doit("hello", "nte:verify")
    assert (unknown.code, unknown.out) == (3, "")
    assert unknown.err.startswith("ERROR: there is no target 'nte:verify'; nearest: ")


def test_a_dodo_file_of_others_has_our_tasks_by_one_line(ready_built: ReadyProject) -> None:
    project = ready_built
    (project.root / "pyproject.toml").unlink()
    line = "from buildsys.dodo import task_targets\n"
    (project.root / "dodo.py").write_text(f"{line}DOIT_CONFIG = {{'backend': 'json'}}\n{OTHERS}")
    listed = project.doit("list", "--all", "-q").out.split()
    assert {"hello", "bad", "deploy:a", "build:a", "verify:a:ort"} <= {*listed}
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
