"""What ``doit cache`` tells of timing caches and does with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from buildsys.errors import UsageError
from buildsys.manifest.project import empty_project
from buildsys.manifest.project_settings import timing_caches_folder
from buildsys.report.formatting import count, size
from buildsys.store.timing_caches import garbage_collection
from buildsys.store.timing_caches.files import damaged, set_aside

T = TypeVar("T")


@dataclass(frozen=True)
class TimingFolder:
    """The folder of timing caches of a project."""

    folder: Path
    private: bool  # not one that other clones use as well

    @classmethod
    def of(cls, root: Path) -> TimingFolder:
        """Return that of the project at ``root``."""
        project = empty_project(root)
        folder = timing_caches_folder(project.root, project.configs, project.state)
        return cls(folder, Path(os.path.abspath(folder)).is_relative_to(project.state))  # noqa: PTH100

    def facts(self) -> dict[str, Any]:
        """Return what it holds, for programs."""
        return {
            "folder": str(self.folder),
            **asdict(self._reading(lambda: garbage_collection.usage(self.folder))),
        }

    def text(self) -> str:
        """Return what it holds as a line, nothing where there are none."""
        found = self._reading(lambda: garbage_collection.usage(self.folder))
        if not found.shared + found.kept + found.broken:
            return ""
        broken = f", {count(found.broken)} set aside (safe to delete)" if found.broken else ""
        kinds = f"{count(found.shared)} shared, {count(found.kept)} kept by digest{broken}"
        return f"{self.folder}: {size(found.bytes)} of timing caches: {kinds}\n"

    def verified(self) -> list[str]:
        """Set aside what is damaged; return a sentence on each."""

        def look() -> list[str]:
            found = list(damaged(self.folder))
            for path, _ in found:
                set_aside(path)
            return [f"{path} is unusable: {why}" for path, why in found]

        return self._reading(look)

    def collected(
        self, wanted: Collection[str], unused_for_s: float | None, *, by_size: bool, dry_run: bool
    ) -> garbage_collection.TimingCacheCollection:
        """Remove what is not ``wanted``; a limit of the store's size alone removes nothing here."""
        if by_size and unused_for_s is None:
            return garbage_collection.TimingCacheCollection(0, 0)
        return self._reading(
            lambda: garbage_collection.collect(
                self.folder,
                wanted=wanted,
                unused_for_s=unused_for_s,
                private=self.private,
                dry_run=dry_run,
            )
        )

    def _reading(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:
            raise UsageError(
                f"cannot use the timing caches in {self.folder}: {error.strerror or error}"
            ) from error
