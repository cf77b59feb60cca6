"""Checkouts of the tiny project on several machines, with one shared cache."""

from pathlib import Path
from typing import Any

from tiny_project import ALL, InlinePool, make_executor

from buildsys.execution.executor import Executor
from buildsys.execution.run_records import Outcome
from buildsys.store.shared_cache import READ_WRITE, SharedCache


class Checkout:
    """An executor on one machine, with its warnings."""

    def __init__(
        self,
        root: Path,
        url: str | Path,
        mode: str = READ_WRITE,
        timeout_s: float = 10.0,
        known_hosts: Path | None = None,
        **options: Any,
    ) -> None:
        self.warnings: list[str] = []
        self.executor: Executor
        self.pool: InlinePool
        self.executor, self.pool = make_executor(
            root,
            remote=SharedCache(
                str(url),
                self.warnings.append,
                mode=mode,
                timeout_s=timeout_s,
                known_hosts=known_hosts,
            ),
            notify=self.warnings.append,
            **options,
        )

    def build(self, *targets: str) -> dict[str, Outcome]:
        found = {target: self.executor.run(target) for target in targets or ALL}
        self.executor.close()
        return found


def restored(outcomes: dict[str, Outcome]) -> list[str]:
    return [target for target, outcome in outcomes.items() if outcome.restored]


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]
