"""A backend over one TensorRT library: the functions of ``backends.base.Backend`` as methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from buildsys.backends.interface import (
    BuildRequest,
    Figures,
    OperatorUse,
    Options,
    Session,
    UnsupportedNode,
)
from buildsys.backends.tensorrt import build as building
from buildsys.backends.tensorrt import gpu_requirements
from buildsys.backends.tensorrt.builder_config import check_fields, is_strong, quantization_of
from buildsys.backends.tensorrt.inspector import shortfall
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import log_of
from buildsys.backends.tensorrt.parse import new_builder, parse
from buildsys.backends.tensorrt.plugins.load import load_plugins
from buildsys.backends.tensorrt.session import TensorRtSession, kernel_cache_file
from buildsys.backends.tensorrt.timing_cache import merge_timing_caches
from buildsys.errors import StageError, Unavailable

_PRECISION_HINT = (
    "lower precision_share where that is what you want, or see docs/manifest.md, Typing"
)
_IMPLICIT_HINT = (
    "set quantization: explicit, as a builder ignores calibrated ranges where it fuses a network as a whole, such as a"
    " transformer (docs/precision.md)"
)


def precision_hint(options: Options) -> str:
    """Return what to do about an engine that came out in another precision than it was asked for."""
    calibrated = options["precision"] == "int8" and quantization_of(options) == "implicit"
    return _IMPLICIT_HINT if calibrated else _PRECISION_HINT


class TensorRtBackend:
    """What ``backends.tensorrt`` and ``backends.tensorrt_rtx`` are."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def prepare(self, options: Options) -> None:
        """Check the engine's fields against the library and this machine.

        Raises: Unavailable: a field needs a GPU that is not here. StageError: a field that can never work.
        """
        if options["workspace"] == 0:
            title = self.library.title
            raise StageError(
                f"workspace: 0 leaves {title} no memory to work in",
                "give it a size, or leave it out",
            )
        check_fields(self.library, options)
        gpu_requirements.check_builder(self.library, options)

    def unsupported(self, request: BuildRequest) -> list[UnsupportedNode]:
        """Return every node that the parser refuses; several for unknown operators, else the first."""
        with log_of(self.library).collected():
            load_plugins(self.library, request.operators)
            builder = new_builder(self.library)
            parsed = parse(self.library, builder, request.onnx, strong=is_strong(request.options))
            return [node for node in parsed.refused if node.operator]

    def build(self, request: BuildRequest) -> Figures:
        """Write the engine; return its settings, profiles, tensors and layers.

        Raises: GraphRefusedError: all nodes that the parser refuses. StageError: why the builder gave up.
        """
        return building.build(self.library, request)

    def describe(
        self, engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
    ) -> Figures:
        """Return what the engine tells on a GPU that it runs on; {} elsewhere, where it cannot be opened.

        Raises: StageError: too few of its layers have the precision that was asked for.
        """
        least = options["precision_share"]
        try:
            session = self.load(engine, options, operators)
        except Unavailable:
            return {}
        try:
            facts = session.describe(options["precision"])
        finally:
            self.unload(session)
        problem = shortfall(
            options["precision"], facts.get("precision_shares", {}).get("layers", {}), least
        )
        if problem and least:  # 0: the user wants it anyway
            raise StageError(problem, precision_hint(options))
        return facts

    def load(
        self, engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
    ) -> TensorRtSession:
        """Load an engine on the first GPU.

        Raises: Unavailable: no GPU here, or none that the engine is built for.
        """
        gpu_requirements.check_runner(self.library, options)
        load_plugins(self.library, operators)  # an engine holds only their fields
        cache = kernel_cache_file(engine) if options.get("runtime_cache") else None
        return TensorRtSession(self.library, engine, cache)

    def unload(self, session: Session) -> None:
        """Free the engine and all its device memory."""
        if isinstance(session, TensorRtSession):
            session.close()

    def merge_timing_caches(self, files: Sequence[Path], merged: Path) -> list[str]:
        """Write one timing cache with what several have measured; return a warning for each that cannot be used.

        Raises: StageError: TensorRT cannot work here, or none of the files can be used.
        """
        return merge_timing_caches(self.library, files, merged)

    def device(self, options: Options) -> Figures:  # noqa: ARG002 (the same for all options)
        """Return the first GPU and the driver, or why there is none."""
        return gpu_requirements.device_facts()
