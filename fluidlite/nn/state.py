"""How far a training came: what a checkpoint says beside the values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class TrainingState:
    """Where a training stands.

    ``epoch``: epochs that ended.
    ``began``: epochs that had ended when the present call of ``train`` or ``batched_train`` began.
    ``batch``: batches of the epoch under way.
    ``step``: all batches so far.
    ``rows``: rows of the epoch under way.
    ``sums``: loss and metrics of the epoch under way, each batch times its rows.
    ``history``: loss and metrics of the epochs that ended.
    ``loader``: what the loader's ``state`` said.
    ``callbacks``: what callbacks' ``state`` said, by their names.
    ``loaded``: whether it comes of a checkpoint that no call has gone on from.
    """

    epoch: int = 0
    began: int = 0
    batch: int = 0
    step: int = 0
    rows: int = 0
    sums: list[float] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)
    loader: Any = None
    callbacks: dict[str, Any] = field(default_factory=dict)
    loaded: bool = False

    def begin_epoch(self, count: int) -> None:
        """Forget the batches of an epoch."""
        self.batch = self.rows = 0
        self.sums = [0.0] * count

    def record(self) -> dict[str, Any]:
        found = asdict(self)
        del found["loaded"]
        return found

    @staticmethod
    def parse(record: Any) -> TrainingState:
        """Read what :meth:`record` gave.

        Raises ValueError if a field is missing or of another type.
        """
        if not isinstance(record, dict):
            raise ValueError("it is no mapping")
        found = TrainingState(loaded=True)
        for name in ("epoch", "began", "batch", "step", "rows"):
            value = record.get(name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} is {value!r:.40}; expected an int of 0 or more")
            setattr(found, name, value)
        sums, history, callbacks = record.get("sums"), record.get("history"), record.get("callbacks")
        if not isinstance(sums, list) or any(type(value) not in (int, float) for value in sums):
            raise ValueError("sums are no numbers")
        if not isinstance(history, list) or not all(isinstance(item, dict) for item in history):
            raise ValueError("history is no list of mappings")
        if not isinstance(callbacks, dict):
            raise ValueError("callbacks is no mapping")
        found.sums, found.history, found.callbacks = [float(value) for value in sums], history, callbacks
        found.loader = record.get("loader")
        return found
