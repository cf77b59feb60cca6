"""The fields of an engine in a manifest."""

from typing import Literal

from pydantic import Field

from buildsys.manifest.schema.engines import EngineBase


class ReferenceEngine(EngineBase):
    """An ONNX graph in the reference implementation."""

    backend: Literal["reference"] = Field(description="Reference implementation of ONNX.")
    log_level: int = Field(0, ge=0, le=10, description="What it writes to the log of a target.")


ENGINE = ReferenceEngine
