"""What a Trainer tells its event handler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["BeginEpochEvent", "BeginStepEvent", "EndEpochEvent", "EndStepEvent"]


@dataclass
class BeginEpochEvent:
    """An epoch begins."""

    epoch: int


@dataclass
class EndEpochEvent:
    """An epoch has ended."""

    epoch: int


@dataclass
class BeginStepEvent:
    """A step begins; the handler may set ``fetch_metrics`` to False, so that nothing is fetched."""

    epoch: int
    step: int
    fetch_metrics: bool = True


@dataclass
class EndStepEvent:
    """A step has ended; ``metrics`` are the values of what ``train_func`` returned."""

    epoch: int
    step: int
    metrics: list[Any] = field(default_factory=list)
