"""Puts files that tell of a failure in the place of a target's outputs, which the store still has."""

from __future__ import annotations

from collections.abc import Mapping

from buildsys.store.ledger import Ledger, Run
from buildsys.store.publish import Publisher


def replace_by_failure(
    publisher: Publisher, ledger: Ledger, run: Run, files: Mapping[str, bytes], result: str
) -> None:
    """Publish ``files`` (path relative to the build folder -> content) as what the failed ``run`` has left.

    All of them belong to its target, which is stale from then on: its next outputs take their place. ``result`` is
    placed last. Raises: StageError, OSError: the disk; nothing, or not all of it, is in place, and the target is stale.
    """
    with publisher.staging(run.target) as tree:
        for name, content in files.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(content)
        sealed = publisher.seal(tree)
        unwanted = ledger.owned(run.target) - sealed.keys()
        ledger.claim(run.target, sealed)
        publisher.place(tree, sealed, last=result)
        publisher.remove(unwanted)
    ledger.fail(run, sealed)
