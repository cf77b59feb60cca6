"""Generated project of many small manifests, prepared so that a run has nothing to do.

Only the first model is really built. The outputs of all others are copies with their own names in
the results, recorded by buildsys itself under their own keys. A later run therefore finds the same
files, digests, keys and records as after a full build, and skips no check.
"""

import shutil
import time
from dataclasses import replace
from pathlib import Path

from _harness import ROOT, doit_command, log, timed

from buildsys.cli.session import BuildSession
from buildsys.execution.action_key import ActionKey, KeyBuilder
from buildsys.plan.action import Action
from buildsys.project.load import load_project
from buildsys.store.file_digests import DigestCache, hash_file
from buildsys.store.ledger import ActionRecord, Ledger, OutputFile
from buildsys.store.state_db import StateDb

FAMILY_SIZE = 50  # models that share a source file
FIRST = "m00000"
_SOURCE = '''"""A linear layer whose weights are scaled."""

from __future__ import annotations

import torch
from torch import nn


class Scaled(nn.Module):
    """One linear layer from 4 to 3 features, without bias."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3, bias=False)
        self.linear.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4) * scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        out: torch.Tensor = self.linear(x)
        return out
'''
_MANIFEST = """\
# yaml-language-server: $schema=../schema/model.schema.json
model: {name}
description: A linear layer, scaled by {scale}.
source: {{python: plugins/models/{family}.py:Scaled, kwargs: {{scale: {scale}}}}}
inputs:
  x: {{shape: [batch, 4], data: {{random: normal}}}}
outputs:
  y: {{shape: [batch, 3]}}
dims:
  batch: {{min: 1, opt: 8, max: 16}}
engines: [{engines}]
bench: {{duration: 0.01, warmup: 0, min_samples: 1, baselines: [], noise: null, cold_start: 0}}
"""


def model_name(number: int) -> str:
    """Return the name of a model."""
    return f"m{number:05d}"


def write_manifests(project: Path, count: int, engines: str = "ort-cpu") -> None:
    """Write a project with ``count`` manifests and their sources; build nothing."""
    models, sources = project / "configs" / "models", project / "plugins" / "models"
    models.mkdir(parents=True)
    sources.mkdir(parents=True)
    for name in ("dodo.py", "pyproject.toml"):
        shutil.copy2(ROOT / name, project)
    for name in ("project.yaml", "engines.yaml"):
        shutil.copy2(ROOT / "configs" / name, project / "configs")
    for number in range(count):
        family = f"family_{number // FAMILY_SIZE:03d}"
        (sources / f"{family}.py").write_text(_SOURCE, encoding="utf-8")
        text = _MANIFEST.format(
            name=model_name(number), scale=1.0 + number / 100, family=family, engines=engines
        )
        (models / f"{model_name(number)}.yaml").write_text(text, encoding="utf-8")


def fill(project: Path) -> int:
    """Build the first model, record its outputs for all others; return the number of targets."""
    timed(doit_command(f"build:{FIRST}"), project)
    return record_copies(project)


def record_copies(project: Path) -> int:
    """Record the first model's outputs for all others; return the number of targets."""
    session = BuildSession(load_project(project))
    root, build = session.project.root, session.project.build
    db = StateDb(session.project.state / "state.db")
    digests, ledger = DigestCache(db), Ledger(db)
    keys = KeyBuilder(root, build, digests, db)
    begun = time.monotonic()
    for done, (target, action) in enumerate(session.actions.items()):
        if action.model != FIRST:
            built = ledger.lookup(target.replace(action.model, FIRST))
            if built is None:
                raise SystemExit(f"{FIRST} was not built")
            ledger.add(_copied(action, built, keys.build(action), build))
        if done % 8000 == 7999:
            log(f"{done + 1} targets after {time.monotonic() - begun:.0f} s")
    db.close()
    return len(session.actions)


def _copied(action: Action, built: ActionRecord, key: ActionKey, build: Path) -> ActionRecord:
    """Copy the first model's outputs for an action; return their record."""
    outputs: dict[str, OutputFile | None] = {}
    for source, output in built.outputs.items():
        name = source.replace(FIRST, action.model)
        outputs[name] = (
            None if output is None else _copy(build / source, build / name, action.model)
        )
    return replace(built, target=action.target, key=key.digest, parts=key.parts, outputs=outputs)


def _copy(source: Path, copy: Path, model: str) -> OutputFile:
    copy.parent.mkdir(parents=True, exist_ok=True)
    content = source.read_bytes()
    if source.suffix in (".json", ".md"):
        content = content.replace(FIRST.encode(), model.encode())
    copy.write_bytes(content)
    digest, stamp = hash_file(str(copy))
    return OutputFile(digest, stamp.size)
