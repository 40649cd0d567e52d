"""Callbacks: hooks between batches and epochs of a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fluidlite.base.errors import NetworkError
from fluidlite.io.paths import PathText

if TYPE_CHECKING:
    from fluidlite.nn.network import Network

Logs = Mapping[str, float]


class Callback:
    """Base of all callbacks; a subclass overrides what it needs.

    Attributes
    ----------
    name : str
        The key of its state in checkpoints.
    on_all_processes : bool
        Whether it is called in each process of a distributed training, or only in the first.
    """

    on_all_processes = False

    @property
    def name(self) -> str:
        """The key of its state in checkpoints."""
        return type(self).__name__

    def on_train_begin(self, network: Network, epochs: int, batches: int | None) -> None:
        """Called before the first batch; ``batches``: their number in an epoch, if known."""

    def on_batch_end(self, network: Network, logs: Logs) -> None:
        """Called after a step, with ``rows``, loss and metrics of this batch (of this process)."""

    def on_epoch_end(self, network: Network, logs: Logs) -> None:
        """Called after an epoch, with its entry of the history, its ``seconds`` and ``rows``."""

    def on_train_end(self, network: Network) -> None:
        """Called after the last epoch, also if an exception ends the training."""

    def stop(self) -> bool:
        """Whether to end the training after this epoch."""
        return False

    def state(self) -> Any:
        """The state for a checkpoint, as a JSON value."""
        return None

    def load_state(self, state: Any) -> None:
        """Restore the result of :meth:`state`."""


class EarlyStop(Callback):
    """End the training when a value has not improved for some epochs.

    Parameters
    ----------
    monitor : str
        ``"loss"``, ``"validation_loss"``, a metric ...
    patience : int
        Epochs without improvement after which it ends.
    min_delta : float
        A smaller change is no improvement.
    highest : bool, optional
        Whether higher is better; default: unless the name ends with "loss" or "error".
    """

    on_all_processes = True  # logs are the same on all processes, so all decide equally

    def __init__(
        self, monitor: str = "loss", patience: int = 1, min_delta: float = 0.0, highest: bool | None = None
    ) -> None:
        if patience < 1:
            raise NetworkError(f"EarlyStop: patience is {patience!r}; expected 1 or more")
        self.monitor, self.patience, self.min_delta = monitor, patience, float(min_delta)
        self.highest = not monitor.endswith(("loss", "error")) if highest is None else highest
        self.best: float | None = None
        self.waited = 0

    @property
    def name(self) -> str:
        """Includes the monitored value."""
        return f"EarlyStop:{self.monitor}"

    def on_epoch_end(self, network: Network, logs: Logs) -> None:
        """Compare the epoch's value with the best so far."""
        if self.monitor not in logs:
            raise NetworkError(
                f"EarlyStop looks at {self.monitor!r}; the training has {', '.join(logs)}"
                "\n  Do: pass validation= for validation_loss, or monitor another number"
            )
        value = logs[self.monitor] if self.highest else -logs[self.monitor]
        if self.best is None or value > self.best + self.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1

    def stop(self) -> bool:
        """Whether ``patience`` epochs brought no improvement."""
        return self.waited >= self.patience

    def state(self) -> Any:
        """The best value, and the number of epochs since."""
        return {"best": self.best, "waited": self.waited}

    def load_state(self, state: Any) -> None:
        self.best, self.waited = state["best"], int(state["waited"])


class Checkpoint(Callback):
    """Save the network into a folder, replacing the previous checkpoint.

    At the end of an epoch it saves after the other callbacks; within one, callbacks that count batches go before it.

    Parameters
    ----------
    folder : path
    every_epochs : int
        0: not by epochs.
    every_batches : int
        0: not by batches.
    monitor : str, optional
        After an epoch, save only if this value is the best so far.
    highest : bool, optional
        As for :class:`EarlyStop`.
    """

    def __init__(
        self,
        folder: PathText,
        every_epochs: int = 1,
        every_batches: int = 0,
        monitor: str | None = None,
        highest: bool | None = None,
    ) -> None:
        if every_epochs < 0 or every_batches < 0 or not (every_epochs or every_batches):
            raise NetworkError(f"Checkpoint: every {every_epochs} epochs and {every_batches} batches; expected one > 0")
        self.folder, self.every_epochs, self.every_batches = folder, every_epochs, every_batches
        self.monitor = monitor
        self.highest = highest if highest is not None else not (monitor or "loss").endswith(("loss", "error"))
        self.best = -math.inf

    @property
    def name(self) -> str:
        """Includes the monitored value."""
        return f"Checkpoint:{self.monitor or ''}"

    def on_batch_end(self, network: Network, logs: Logs) -> None:
        """Save after every ``every_batches`` batches."""
        if self.every_batches and network.state.step % self.every_batches == 0:
            network.save(self.folder)

    def on_epoch_end(self, network: Network, logs: Logs) -> None:
        """Save after every ``every_epochs`` epochs, if the monitored value is the best."""
        if not self.every_epochs or network.state.epoch % self.every_epochs:
            return
        if self.monitor is not None:
            if self.monitor not in logs:
                raise NetworkError(f"Checkpoint looks at {self.monitor!r}; the training has {', '.join(logs)}")
            value = logs[self.monitor] if self.highest else -logs[self.monitor]
            if not value > self.best:
                return
            self.best = value
        network.state.callbacks[self.name] = self.state()
        network.save(self.folder)

    def state(self) -> Any:
        """The best value."""
        return None if self.best == -math.inf else self.best

    def load_state(self, state: Any) -> None:
        self.best = -math.inf if state is None else float(state)
