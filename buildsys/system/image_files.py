"""Image files in a folder, in the order in which data loaders read them."""

from __future__ import annotations

import os

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def image_files(folder: str) -> list[str]:
    """Return the images in a folder and its subfolders, sorted; [] if it does not exist."""
    return sorted(
        f"{path}/{name}"
        for path, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(SUFFIXES)
    )
