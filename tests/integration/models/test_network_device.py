"""Networks that need a GPU, on machines without one; tests/gpu/stages has the others."""

from __future__ import annotations

import pytest
import torch
from stage_jobs import ROOT, manifest

from buildsys.errors import StageError
from buildsys.models.torch_model import make_network
from buildsys.project.plan import plan_model


def test_without_a_gpu_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    resolved = manifest(source={"torchvision": "resnet18", "device": "cuda"})
    for action in list(plan_model(resolved))[:2]:
        with pytest.raises(StageError) as error:
            make_network(action.options, ROOT)
        assert str(error.value) == (
            f"source.device is cuda, but torch {torch.__version__} finds no GPU here; build on a"
            " machine with an NVIDIA GPU, or take the results of one from a shared cache"
        )
        assert type(error.value) is StageError  # failed: without a graph nothing can follow
