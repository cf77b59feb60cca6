"""A wrong engine at batch 2 fails its check, and is described by the run and its result."""

import json

from project_folder import ProjectFolder

NETWORK = '''

class BakedIn(Linear):
    """Right in PyTorch; its export gives every item of a batch what the first one gets."""

    def forward(self, x):
        y = super().forward(x)
        return y[:1].expand(x.shape[0], 3) if torch.onnx.is_in_onnx_export() else y
'''


def test_exact_at_batch_1_and_wrong_at_batch_2(project: ProjectFolder) -> None:
    with (project.root / "plugins/models/small.py").open("a") as file:
        file.write(NETWORK)
    project.add_model("baked", "BakedIn")
    ran = project.doit("--continue", "verify:baked:ort")
    assert ran.code == 1, ran.out
    lines = [line for line in ran.out.splitlines() if line.startswith("failed ")]
    wrong = "the engine ort of baked is wrong in 3 of 4 cases: output 'y', case opt (batch 2):"
    assert [wrong in line for line in lines] == [True, True], "at once, and at the end"
    assert "it is right in min" in lines[1]
    assert "details: build/baked/verify/ort.json" in ran.out
    result = json.loads((project.root / "build/baked/verify/ort.json").read_text())
    assert (result["status"], result["cases"]["min"]["y"]["passed"]) == ("failed", True)
    assert {failure["case"] for failure in result["failures"]} == {"opt", "max", "odd"}
    assert all(failure["index"][0] > 0 for failure in result["failures"])
