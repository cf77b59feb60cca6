"""Searched precisions in a report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ComparedEngine:
    """An engine of the searched backend and its latency."""

    engine: str
    precision: str
    p50_ms: float | None
    noisy: bool = False


@dataclass(frozen=True)
class SearchLine:
    """One search, with the engines that it served and their rivals."""

    variant: str  # "auto-int8"
    precision: str
    status: str
    kept: tuple[tuple[str, ...], ...]  # name and operator of the nodes in fp32
    candidates: int | None
    is_fp32: bool
    is_smallest: bool
    trials: int | None
    error_without: float | None
    error_with: float | None
    rtol: float | None  # the limit of the search
    macs_low: float | None  # share of the multiply-accumulates in the precision
    engines: tuple[ComparedEngine, ...] = ()
