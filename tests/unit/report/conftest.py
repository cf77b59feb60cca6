from pathlib import Path

import pytest
from tiny_results import Results


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "build")
