"""Selection of models by ``--tag`` and ``--owner``, for all commands."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from buildsys.cli.command import unknown_name
from buildsys.errors import UsageError
from buildsys.project.plan import model_of
from buildsys.report.formatting import first_names

if TYPE_CHECKING:
    from buildsys.project.load import ResolvedModel

_SHOWN = 12  # tags, owners or models


def add_filter(parser: ArgumentParser) -> None:
    """Declare ``--tag`` and ``--owner``."""
    for kind, of in (("tag", "with this tag"), ("owner", "of this owner")):
        text = f"only models {of}; may be repeated"
        parser.add_argument(f"--{kind}", action="append", default=[], help=text)


@dataclass(frozen=True)
class ModelFilter:
    """Models with one of the tags and of one of the owners.

    Without both it matches every model.
    """

    tags: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Namespace) -> ModelFilter:
        """Return the filter on the command line."""
        return cls(tuple(options.tag), tuple(options.owner))

    def __bool__(self) -> bool:
        """Return True unless every model matches."""
        return bool(self.tags or self.owners)

    def __str__(self) -> str:
        """Return the criteria as the object of a sentence."""
        named = (("tag", self.tags), ("owner", self.owners))
        return " and ".join(f"the {kind} {' or '.join(names)}" for kind, names in named if names)

    def models(self, *projects: Mapping[str, ResolvedModel]) -> list[str]:
        """Name the matching models.

        Raises: UsageError: a tag or an owner is unknown, or no model matches all.
        """
        if not self:  # without reading thousands of manifests
            return list(dict.fromkeys(name for models in projects for name in models))
        matching: dict[str, None] = {}
        tags: set[str] = set()
        owners: set[str] = set()
        for name, model in _data(projects):
            own, owner = set(model["tags"]), model["owner"]
            tags |= own
            owners |= {owner} - {""}
            has_tag = not self.tags or not own.isdisjoint(self.tags)
            if has_tag and (not self.owners or owner in self.owners):
                matching[name] = None
        _check_known("tag", self.tags, tags, "no manifest has tags")
        _check_known("owner", self.owners, owners, "no manifest has an owner")
        if not matching:
            tagged = ModelFilter(tags=self.tags).models(*projects)
            listed = first_names(tagged, _SHOWN)
            hint = f"choose another --owner or --tag; with {ModelFilter(self.tags)}: {listed}"
            raise UsageError(f"no model has {self}", hint)
        return list(matching)

    def kept(self, targets: Iterable[str], models: Iterable[str], name: str) -> set[str]:
        """List the targets of ``models`` among those of a name.

        Raises: UsageError: there are none.
        """
        matching = list(models)
        targets_of_models = {target for target in targets if model_of(target) in matching}
        if not targets_of_models:
            hint = f"models with it: {first_names(matching, _SHOWN)}"
            raise UsageError(f"nothing of {name!r} has {self}", hint)
        return targets_of_models


def _data(projects: Iterable[Mapping[str, ResolvedModel]]) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, model.data) for models in projects for name, model in models.items())


def _check_known(kind: str, names: Iterable[str], values: set[str], none: str) -> None:
    for name in names:
        if name not in values:
            listed = f"{kind}s: {first_names(sorted(values), _SHOWN)}" if values else none
            raise unknown_name(kind, name, sorted(values), listed)
