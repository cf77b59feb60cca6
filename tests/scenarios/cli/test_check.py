"""``buildsys check``: real builds compared with PyTorch at more sizes and inputs."""

import json
from pathlib import Path

from project_folder import ProjectFolder

from buildsys.workers.registry import list_servers

BRANCH = '''

class Branch(Linear):
    """Another bias for the batch of 23."""

    def forward(self, x):
        return super().forward(x) + (1.0 if x.shape[0] == 23 else 0.0)
'''


def torch_servers(project: ProjectFolder) -> list[int]:
    """Return the pids of the project's worker servers that have loaded torch."""
    records = (server.record for server in list_servers(project.environment))
    ours = (one for one in records if Path(one.log).is_relative_to(project.root))
    return [one.pid for one in ours if one.kind == "torch"]


def test_stress_finds_what_validate_did_not_compare(project: ProjectFolder) -> None:
    with (project.root / "plugins/models/small.py").open("a") as file:
        file.write(BRANCH)
    manifest = project.add_model("lin", "Branch")
    text = manifest.read_text().replace("max: 4", "max: 64")
    manifest.write_text(text + "validate: {drawn_sizes: 0}\n")

    early = project.buildsys("check", "lin")
    assert early.code == 3
    assert "export:lin is not up to date; run `buildsys build validate:lin` first" in early.err

    assert project.doit("validate:lin").code == 0
    before, server = project.files(), torch_servers(project)
    different = project.buildsys("check", "lin", "-n", "6", "--seed", "5")
    assert project.files() == before
    assert torch_servers(project) == server  # torch was not loaded again
    assert different.code == 1, different.err
    rows = [line for line in different.out.splitlines() if line.startswith("batch 23 ")]
    assert all(any(f" {graph} " in row for row in rows) for graph in ("exported", "simplified"))
    assert "1 of 6 runs differ (repeat with --seed 5)" in different.out

    project.edit("configs/models/lin.yaml", "max: 64", "max: 22")
    assert project.doit("validate:lin").code == 0
    right = project.buildsys("check", "lin", "-n", "5", "--json")
    assert right.code == 0, right.out
    document = json.loads(right.out)
    assert (document["schema"], document["model"]) == ("buildsys/stress/1", "lin")
    assert (document["count"], document["compared"], document["failures"]) == (5, 5, [])

    wrong = project.buildsys("check", "lin", "-n", "two")
    assert "-n/--count: expects a positive integer, found 'two'" in wrong.err
