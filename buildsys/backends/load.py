"""Loading of a backend; its library is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from buildsys.backends.interface import Backend
from buildsys.errors import Unavailable
from buildsys.system.backend_registry import describe_backend, import_backend
from buildsys.system.engine_environment import visible_gpus, why_no_gpu
from buildsys.system.interpreters.toolchain import Toolchain


def load_backend(
    name: str, toolchain: Toolchain | None = None, unusable: str = "", *, to_run: bool = False
) -> Backend:
    """Import and return a backend.

    This interpreter belongs to ``toolchain``, if given. ``unusable`` is the problem of a package
    whose fields could not be read when the manifest was. ``to_run`` is for use of ``load``.
    Raises: Unavailable: there is no such backend, its package is broken, or one of its libraries
    is not installed or cannot be loaded. With ``to_run``, before its library is loaded: this
    operating system does not run its engines.
    """
    if unusable:
        raise Unavailable(unusable)
    description = describe_backend(name)
    if description.problem:
        raise Unavailable(description.problem, description.install)
    if to_run and (problem := description.system_problem()):
        raise problem
    where = f" in the toolchain {toolchain.name}" if toolchain is not None else ""
    install = description.install
    if toolchain is not None:
        install = f"{toolchain.pip} {description.packages}"
    for module, library in description.libraries.items():
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                text = f"the library {library} is not installed{where}"
                if description.needs_gpu_library and not visible_gpus():
                    text = f"{text}, and {why_no_gpu()}"
                    install = f"on a machine with an NVIDIA GPU: {install}"
            else:
                missing = f"the module {error.name}, which is not installed"
                text = f"the library {library}{where} needs {missing}"
            raise Unavailable(text, install) from error
        except (
            ImportError,
            OSError,
            RuntimeError,
        ) as error:  # a shared library is missing or does not fit
            text = f"the library {library}{where} cannot be loaded: {error}"
            raise Unavailable(text, install) from error
    return cast(Backend, import_backend(name, "backend"))
