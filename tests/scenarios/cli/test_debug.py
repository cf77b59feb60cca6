"""``buildsys debug``: one stage again, without a trace in the project."""

from project_folder import TIMEOUT_S
from ready_project import VALUES, ReadyProject, contents


def everything(project: ReadyProject) -> dict[str, tuple[str, bytes]]:
    """Return what is built and stored, and the state of all targets."""
    explained = project.doit("explain", "--json").out
    files = {
        str(path.relative_to(project.root)): ("", path.read_bytes())
        for folder in ("build", ".buildsys/store")
        for path in (project.root / folder).rglob("*")
        if path.is_file()
    }
    return {"explain": (explained, b""), **files}


def test_debug_runs_up_to_date_stale_and_failed_targets_and_changes_nothing(
    ready: ReadyProject,
) -> None:
    assert ready.doit("reference:a").code == 0
    for names, problem in (
        ((), "debug takes the name of one target"),
        (("a",), "'a' stands for 8 targets; name one of export:a, reference:a"),
        (("validate:a",), "does not exist; run `buildsys build "),
        (("export:a", "--keep", "configs"), "--keep: configs exists; name a new folder"),
    ):
        wrong = ready.buildsys("debug", *names)
        assert (wrong.code, wrong.out) == (3, "")
        assert problem in wrong.err
    before = everything(ready)
    fresh = ready.buildsys("debug", "a:reference", "--keep", "kept")
    assert (fresh.code, fresh.err) == (0, ""), fresh.out
    assert fresh.out.startswith("… case min\n")
    assert "reference:a: passed after " in fresh.out
    assert "reference:a: its outputs are in kept\n" in fresh.out
    kept, built = contents(ready.root / "kept"), contents(ready.root / "build")
    assert kept == {name: one for name, one in built.items() if name in kept}
    assert kept.keys() >= {"a/reference/reference.json", "a/reference/opt.npz"}
    assert everything(ready) == before

    ready.edit(VALUES, "    with open", '    raise KeyError("no such sample")\n    with open')
    assert ready.doit("reference:a").code == 2
    before = everything(ready)
    process = ready.start("debug", "reference:a", "--pdb")
    out, err = process.communicate(TIMEOUT_S)
    assert process.returncode == 2
    assert '-> raise KeyError("no such sample")' in out
    assert out.endswith("nothing was published\n")
    assert "ERROR: plugins/data/values.py:load failed for input x" in err
    assert "Traceback" in err
    assert everything(ready) == before
