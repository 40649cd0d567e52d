"""Progress: shows loss and throughput during training; a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from fluidlite.base.errors import MissingExtraError
from fluidlite.nn.callbacks import Callback, Logs

if TYPE_CHECKING:
    from fluidlite.nn.network import Network

REFRESH_SECONDS = 0.1
"""Minimum time between two updates of the bar."""


class Progress(Callback):
    """A line for each epoch: loss, metrics, rows a second; on a terminal a bar of its batches, by rich.

    Parameters
    ----------
    file : text stream, optional
        Default: standard output.
    bar : bool, optional
        Default: whether ``file`` is a terminal and rich is installed.
    """

    def __init__(self, file: TextIO | None = None, bar: bool | None = None) -> None:
        self.file, self.bar = file, bar
        self._epochs = 0
        self._start_time = 0.0
        self._last_update = 0.0
        self._live: Any = None
        self._task: Any = None

    def _stream(self) -> TextIO:
        return self.file if self.file is not None else sys.stdout

    def on_train_begin(self, network: Network, epochs: int, batches: int | None) -> None:
        """Show the bar."""
        self._epochs, self._start_time = network.state.began + epochs, time.perf_counter()
        bar = self.bar if self.bar is not None else self._stream().isatty()
        if not bar:
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeElapsedColumn
        except ImportError:
            if self.bar:
                raise MissingExtraError("a bar needs rich\n  Do: pip install 'fluidlite[cli]', or bar=False") from None
            return
        console = Console(file=self._stream(), force_terminal=True if self.bar else None)
        self._live = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            transient=True,
        )
        self._live.start()
        self._task = self._live.add_task(self._epoch(network.state.epoch + 1), total=batches, numbers="")

    def _epoch(self, number: int) -> str:
        return f"epoch {number}/{self._epochs}"

    def on_batch_end(self, network: Network, logs: Logs) -> None:
        """Update the bar, at most ten times a second."""
        now = time.perf_counter()
        if self._live is None or now - self._last_update < REFRESH_SECONDS:
            return
        self._last_update = now
        state = network.state
        numbers = {name: value for name, value in logs.items() if name != "rows"}
        rate = state.rows / max(now - self._start_time, 1e-9)
        self._live.update(
            self._task,
            completed=state.batch,
            description=self._epoch(state.epoch + 1),
            numbers=f"{_numbers(numbers)}, {rate:,.0f} rows/s",
        )

    def on_epoch_end(self, network: Network, logs: Logs) -> None:
        """Write the epoch's line."""
        numbers = {name: value for name, value in logs.items() if name not in ("rows", "seconds", "epoch")}
        seconds = logs["seconds"]
        line = (
            f"{self._epoch(network.state.epoch)}: {_numbers(numbers)}, "
            f"{logs['rows'] / max(seconds, 1e-9):,.0f} rows/s, {seconds:.2f} s"
        )
        if self._live is not None:
            self._live.console.print(line, highlight=False)
            self._live.update(self._task, completed=0)
        else:
            stream = self._stream()
            stream.write(line + "\n")
            stream.flush()
        self._start_time = time.perf_counter()

    def on_train_end(self, network: Network) -> None:
        """Remove the bar."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _numbers(logs: Logs) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in logs.items())
