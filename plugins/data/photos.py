"""Synthetic photographs: soft areas, edges and noise, normalized as for ImageNet."""

import zlib

import numpy as np

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photos(shape, dtype, which, seed):
    """Return images for a shape case or the number of a batch."""
    rng = np.random.default_rng([seed, zlib.crc32(str(which).encode())])
    pixels = np.stack([_photo(rng, *shape[2:]) for _ in range(shape[0])])
    mean, std = (np.reshape(values, (1, 3, 1, 1)) for values in (MEAN, STD))
    return ((pixels - mean) / std).astype(dtype)


def _photo(rng, height, width):
    down, across = np.mgrid[0 : np.pi : height * 1j, 0 : np.pi : width * 1j]
    soft = rng.uniform(0.2, 0.8, (3, 1, 1)) + 0.3 * np.sin(
        rng.uniform(0.5, 3) * down + rng.uniform(0.5, 3) * across
    )
    edge = (
        0.3
        * (down + rng.uniform(-1, 1) * across > rng.uniform(0.5, 2.5))
        * rng.uniform(-1, 1, (3, 1, 1))
    )
    return np.clip(soft + edge + 0.03 * rng.standard_normal((3, height, width)), 0, 1)
