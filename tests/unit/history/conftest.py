from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_builds import TARGET, MakeBuild

from buildsys.history.builds import RAN, Build
from buildsys.history.database import History


@pytest.fixture
def warnings_given() -> list[str]:
    return []


@pytest.fixture
def history(tmp_path: Path, warnings_given: list[str]) -> Iterator[History]:
    found = History(tmp_path / ".buildsys" / "history.db", warnings_given.append)
    yield found
    found.close()


@pytest.fixture
def make_build() -> MakeBuild:
    """Return a function to make builds, each a second after the one before."""
    made = 0

    def make(**fields: Any) -> Build:
        nonlocal made
        made += 1
        target = fields.pop("target", TARGET)
        stage, model, *variant = target.split(":")
        defaults = {
            "id": f"{made:032x}",
            "run": "r1",
            "project": "host/acme/models",
            "key": f"key{made}",
            "how": RAN,
            "status": "passed",
            "started": f"2026-01-02T03:04:{made % 60:02d}Z",
            "position": 1_000_000.0 + made,
            "seconds": 1.5,
            "machine": "ci",
            "machine_id": "aaaa",
        }
        names = {"target": target, "model": model, "stage": stage, "variant": "".join(variant)}
        return Build(**{**defaults, **names, **fields})

    return make
