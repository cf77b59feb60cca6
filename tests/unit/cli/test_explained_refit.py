"""What ``buildsys explain`` says about engines with new weights."""

from types import SimpleNamespace
from typing import Any

import pytest

from buildsys.cli.commands.explain import refit_note

ORIGIN = {"engine_sha256": "ab" * 32, "started": "2026-11-03T10:00:00Z", "build_seconds": 35.5}
FROM = "the engine abababababababab…, built 2026-11-03T10:00:00Z in 35.5 s"


@pytest.mark.parametrize(
    ("refits", "result", "note"),
    [
        (True, {"refitted_from": ORIGIN}, f"; refitted from {FROM}"),
        (True, {"not_refitted": "w is folded"}, "; not refitted: w is folded"),
        (True, {}, ""),
        (False, {"refitted_from": ORIGIN}, ""),
    ],
)
def test_a_refit_is_explained(refits: bool, result: dict[str, Any], note: str) -> None:
    action = SimpleNamespace(refits=refits)
    session: Any = SimpleNamespace(actions={"t": action}, result=lambda _: result)
    assert refit_note(session, "t") == note
