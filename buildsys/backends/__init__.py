"""The engine interface and its implementations, one package per backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buildsys.backends.coreml import backend as coreml
    from buildsys.backends.executorch import backend as executorch
    from buildsys.backends.interface import Backend
    from buildsys.backends.ncnn import backend as ncnn
    from buildsys.backends.onnxruntime import backend as onnxruntime
    from buildsys.backends.openvino import backend as openvino
    from buildsys.backends.tensorrt import backend as tensorrt
    from buildsys.backends.tensorrt_rtx import backend as tensorrt_rtx
    from buildsys.backends.torch import backend as torch

    _CONFORMING: tuple[Backend, ...] = (
        coreml, executorch, ncnn, onnxruntime, openvino, tensorrt, tensorrt_rtx, torch,
    )  # fmt: skip
