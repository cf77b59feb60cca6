"""TypedDict as pydantic reads it; interpreters of toolchains may lack typing_extensions."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypedDict
else:
    try:
        from typing_extensions import TypedDict
    except ImportError:
        from typing import TypedDict

__all__ = ["TypedDict"]
