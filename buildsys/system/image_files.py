"""Which files of a folder are images, in the order in which they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def image_files(folder: str) -> list[str]:
    """Return the paths of the images in a folder and the folders below it, sorted by their relative path."""
    return sorted(_images_below(folder))


def _images_below(folder: str) -> Iterator[str]:
    for path, _, names in os.walk(folder):  # a folder that does not exist holds nothing
        for name in names:
            if name.lower().endswith(SUFFIXES):
                yield f"{path}/{name}"
