"""A network on the GPU, as a reference and as a graph."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gpu_marks import ON_GPU
from stage_jobs import manifest, stage_job

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.onnx_graphs.tensors import load_case
from buildsys.stages.export import stage as export
from buildsys.stages.reference import stage as reference

pytestmark = ON_GPU
NETWORK = """\
import torch


class OnlyThere(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        if not x.is_cuda:
            raise RuntimeError("it runs on a GPU only")
        return self.linear(x) + torch.arange(3, device=x.device)

"""


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch.export.load of 2.11
def test_a_network_that_runs_on_a_gpu_only(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK)
    shapes = [{0: torch.export.Dim("batch", min=1, max=8)}]
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.ones(3, 4),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "net.pt2")
    dynamo = {"exporter": "dynamo", "opset": 18}
    for source, options in (
        ({"python": "net.py:OnlyThere"}, {}),
        ({"python": "net.py:OnlyThere", "randomize": True}, dynamo),
        ({"exported_program": "net.pt2", "trusted": True}, dynamo),
    ):
        resolved = manifest(source={**source, "device": "cuda"}, export=options)
        build = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        export.run(stage_job("export", resolved, build, tmp_path))
        reference.run(stage_job("reference", resolved, build, tmp_path))
        graph = OrtGraph(build / "m/export/model.onnx")
        case = load_case(build / "m/reference/max.npz")
        [(name, found)] = graph.run(case.inputs).items()
        np.testing.assert_allclose(found.array, case.outputs[name].array, rtol=1e-5, atol=1e-6)
