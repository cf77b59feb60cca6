"""Attributes computed on first use, without a lock.

Until Python 3.12 ``functools.cached_property`` has one lock for all instances of a class. With a
hundred threads nearly all of them wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_value(Generic[T]):  # noqa: N801 - a decorator
    """A method as an attribute; two threads may compute it at once."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_value[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> T | cached_value[T]:
        """Return the value; the instance keeps it."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
