"""TrainingState: the progress of a training, which checkpoints store in addition to the values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class TrainingState:
    """The progress of a training.

    ``epoch``: number of completed epochs.
    ``began``: number of completed epochs when the current call of ``train`` or ``batched_train`` began.
    ``batch``: number of batches in the current epoch.
    ``step``: number of all batches so far.
    ``rows``: number of rows in the current epoch.
    ``sums``: loss and metrics of the current epoch, weighted by the rows of each batch.
    ``history``: loss and metrics of the completed epochs.
    ``loader``: the loader's ``state()``.
    ``callbacks``: the callbacks' ``state()``, by name.
    ``loaded``: whether it comes from a checkpoint that was not resumed yet.
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
        """Reset the counts and sums of the current epoch."""
        self.batch = self.rows = 0
        self.sums = [0.0] * count

    def record(self) -> dict[str, Any]:
        fields = asdict(self)
        del fields["loaded"]
        return fields

    @staticmethod
    def parse(record: Any) -> TrainingState:
        """Parse the result of :meth:`record`.

        Raises ValueError if a field is missing or of another type.
        """
        if not isinstance(record, dict):
            raise ValueError("it is no mapping")
        state = TrainingState(loaded=True)
        for name in ("epoch", "began", "batch", "step", "rows"):
            value = record.get(name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} is {value!r:.40}; expected an int of 0 or more")
            setattr(state, name, value)
        sums, history, callbacks = record.get("sums"), record.get("history"), record.get("callbacks")
        if not isinstance(sums, list) or any(type(value) not in (int, float) for value in sums):
            raise ValueError("sums are no numbers")
        if not isinstance(history, list) or not all(isinstance(item, dict) for item in history):
            raise ValueError("history is no list of mappings")
        if not isinstance(callbacks, dict):
            raise ValueError("callbacks is no mapping")
        state.sums, state.history, state.callbacks = [float(value) for value in sums], history, callbacks
        state.loader = record.get("loader")
        return state
