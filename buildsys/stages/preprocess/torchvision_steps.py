"""Images as torchvision's transforms prepare them: what engines are compared with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as steps

from buildsys.onnx_graphs.tensors import Array


def prepared(pixels: Array, image: Mapping[str, Any]) -> Array:
    """Prepare one decoded image, channels last, for a network."""
    is_first = image["layout"] == "nchw"
    *_, first, middle, last = image["shape"]
    size = [middle, last] if is_first else [first, middle]
    mode = InterpolationMode(image["interpolation"])
    picture = steps.to_pil_image(pixels)
    if image["resize"] is not None:
        picture = steps.center_crop(steps.resize(picture, image["resize"], mode), size)
    elif image["size"] is not None:
        picture = steps.resize(picture, size, mode)
    tensor = steps.pil_to_tensor(picture).double()
    tensor = tensor.flip(0) if image["color"] == "bgr" else tensor
    tensor = steps.normalize(tensor / image["divide"], image["mean"], image["std"])
    return np.asarray(tensor if is_first else tensor.permute(1, 2, 0))
