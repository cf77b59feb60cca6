"""Write the generated pages of the documentation: ``python docs/reference``."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import commands
import errors
import fields

HERE = Path(__file__).resolve().parent


def copy_of(name: str) -> str:
    """Return a page of the repository's root, with links from this folder."""
    text = (HERE.parents[1] / name).read_text(encoding="utf-8")
    return text.replace("](docs/", "](../").replace("](CHANGELOG.md)", "](changelog.md)")


PAGES: dict[str, Callable[[], str]] = {
    "fields.md": fields.page,
    "commands.md": commands.page,
    "errors.md": errors.page,
    "changelog.md": partial(copy_of, "CHANGELOG.md"),
    "contributing.md": partial(copy_of, "CONTRIBUTING.md"),
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
