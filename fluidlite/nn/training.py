"""The loops of training, evaluation and prediction."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.errors import NetworkError
from fluidlite.nn.callbacks import Callback, Checkpoint
from fluidlite.nn.checkpoint import position_of
from fluidlite.nn.feeds import Feed, batches, feed_of
from fluidlite.nn.sources import batch_count, on_place, pair_of_arrays, sharded, whole_dataset
from fluidlite.program.program import Program
from fluidlite.program.variable import Variable
from fluidlite.tensor.tensor import Tensor

if TYPE_CHECKING:
    from fluidlite.nn.network import Network

Logs = dict[str, float]


def train(
    network: Network,
    source: Any,
    epochs: int,
    validation: Any,
    callbacks: Iterable[Callback],
    resume: bool,
    full_batch: bool,
) -> list[Logs]:
    network.set_up()
    programs = network.compile()
    what = "train" if full_batch else "batched_train"
    if network.loss is None or network.optimizer is None:
        missing = "loss" if network.loss is None else "optimizer"
        raise NetworkError(
            f"{what} needs a loss and an optimizer; the network has no {missing}\n  Do: Network(..., {missing}=...)"
        )
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
        raise NetworkError(f"{what}: epochs is {epochs!r:.40}; expected an int of 0 or more")
    source = source if source is not None else network.loader
    if source is None:
        raise NetworkError(f"{what} needs a loader; the network has none\n  Do: {what}(loader), or Network(loader=...)")
    assert programs.train is not None and programs.label is not None
    active_callbacks = list(callbacks)
    for callback in active_callbacks:
        if not isinstance(callback, Callback):
            raise NetworkError(f"a callback is {callback!r:.80}; expected an object of fluid.nn.callbacks")
    active_callbacks = [
        callback for callback in active_callbacks if network.group.rank == 0 or callback.on_all_processes
    ]
    variables = [network.input, programs.label]
    loader, split = _loader(network, source, variables, full_batch)
    loop = _Loop(network, programs.train, programs.fetches, variables, loader, split, what)
    state = network.state
    if not (resume and state.loaded):
        state.began = state.epoch
        state.begin_epoch(len(programs.fetches))
        state.loader = None
    else:
        for callback in active_callbacks:
            if callback.name in state.callbacks:
                callback.load_state(state.callbacks[callback.name])
        loop.resume()
    is_over = resume and state.loaded and any(callback.stop() for callback in active_callbacks)
    state.loaded = False
    first = len(state.history)
    network.active_callbacks = active_callbacks
    try:
        for callback in active_callbacks:
            callback.on_train_begin(network, epochs, batch_count(loader))
        while state.epoch - state.began < epochs and not is_over:
            loop.epoch(active_callbacks, validation)
            is_over = any(callback.stop() for callback in active_callbacks)
    finally:
        network.checkpoint_loader, network.active_callbacks = None, []
        state.loader = position_of(loader)
        if loader is not source and hasattr(source, "load_state") and state.loader is not None:
            source.load_state(state.loader)  # a copy of it was iterated over: the next call goes on
        for callback in active_callbacks:
            callback.on_train_end(network)
    return state.history[first:]


def _loader(network: Network, source: Any, variables: Sequence[Variable], full_batch: bool) -> tuple[Any, bool]:
    """Return the loader for the network's place and this process, and whether its batches must still be split."""
    if full_batch:
        return whole_dataset(network, source, variables), False
    if pair_of_arrays(source):
        raise NetworkError(
            "batched_train got arrays; expected an iterable of batches"
            "\n  Do: fluid.loaders.BatchedLoader((x, y), batch_size=...), or train((x, y))"
        )
    return sharded(network, on_place(network, source, variables))


class _Loop:
    """Trains one program on one loader, epoch by epoch."""

    def __init__(
        self,
        network: Network,
        program: Program,
        fetches: list[str],
        variables: Sequence[Variable],
        loader: Any,
        split: bool,
        what: str,
    ) -> None:
        self.network, self.program, self.fetches, self.variables = network, program, fetches, variables
        self.loader, self.split, self.what = loader, split, what
        self.names = ["loss", *(metric.name for metric in network.metrics)]
        self.skip = 0
        network.checkpoint_loader = loader

    def resume(self) -> None:
        """Resume at the checkpoint: by the loader's state, or by skipping the batches that were trained."""
        state = self.network.state
        if len(state.sums) != len(self.names):
            state.begin_epoch(len(self.names))
        if state.loader is not None:
            if not hasattr(self.loader, "load_state"):
                raise NetworkError(
                    f"{self.what}: the checkpoint has the state of a loader; {type(self.loader).__name__} takes none"
                    "\n  Do: the loader that it was trained with"
                )
            self.loader.load_state(state.loader)
        else:
            self.skip = state.batch

    def _feeds(self) -> Iterator[tuple[int, Feed, int]]:
        group = self.network.group
        skip, self.skip = self.skip, 0
        rank, ranks = (group.rank, group.size) if self.split else (0, 1)
        return batches(self.loader, self.variables, "the loader", skip, rank, ranks)

    def epoch(self, callbacks: Sequence[Callback], validation: Any) -> None:
        """Train on all batches; append the means to the history."""
        network, state = self.network, self.network.state
        start_time, run = time.perf_counter(), network.executor.run
        program, fetches, scope = self.program, self.fetches, network.scope
        listeners = [c.on_batch_end for c in callbacks if type(c).on_batch_end is not Callback.on_batch_end]
        if state.batch == 0:
            state.begin_epoch(len(self.names))
        sums = state.sums
        for number, feed, rows in self._feeds():
            try:
                values = run(program, feed, fetches, scope=scope)
            except Exception as exc:
                exc.add_note(f"In batch {number} of epoch {state.epoch + 1}")
                raise
            for i, value in enumerate(values):
                sums[i] += value.item() * rows
            state.rows += rows
            state.batch += 1
            state.step += 1
            if listeners:
                batch_values = (value.item() for value in values)
                logs = {"rows": rows, **dict(zip(self.names, batch_values, strict=True))}
                for listener in listeners:
                    listener(network, logs)
        if not state.rows:
            raise NetworkError(
                f"{self.what}: the loader yielded no batches in epoch {state.epoch + 1}"
                "\n  Do: a loader that can be iterated over again, such as a list or one of fluid.loaders"
            )
        means, rows = _means(network, state.sums, state.rows)
        entry: Logs = {"epoch": state.epoch + 1, **dict(zip(self.names, means, strict=True))}
        if validation is not None:
            entry.update({f"validation_{name}": value for name, value in evaluate(network, validation).items()})
        state.history.append(entry)
        state.epoch += 1
        state.begin_epoch(len(self.names))
        logs_of_epoch = {**entry, "rows": rows, "seconds": time.perf_counter() - start_time}
        checkpoints_last = sorted(callbacks, key=lambda each: isinstance(each, Checkpoint))
        for callback in checkpoints_last:  # they save what the others have counted
            callback.on_epoch_end(network, logs_of_epoch)
            state.callbacks[callback.name] = callback.state()


def _means(network: Network, sums: Sequence[float], rows: int) -> tuple[list[float], int]:
    """Means over the rows of all processes."""
    if network.group.size > 1:
        totals = network.group.all_reduce(np.array([*sums, rows], np.float64), "sum")
        sums, rows = [float(value) for value in totals[:-1]], int(totals[-1])
    return [total / rows for total in sums], rows


def evaluate(network: Network, source: Any) -> dict[str, float]:
    network.set_up()
    programs = network.compile()
    source = source if source is not None else network.loader
    if programs.test is None or programs.label is None:
        raise NetworkError("evaluate needs a loss; the network has none\n  Do: Network(..., loss=...)")
    if source is None:
        raise NetworkError("evaluate needs a loader or arrays; the network has no loader\n  Do: evaluate((x, y))")
    variables = [network.input, programs.label]
    if pair_of_arrays(source):
        loader, split = [tuple(source)], True
    else:
        loader, split = sharded(network, on_place(network, source, variables))
    names = ["loss", *(metric.name for metric in network.metrics)]
    sums, rows, group = [0.0] * len(names), 0, network.group
    rank, ranks = (group.rank, group.size) if split else (0, 1)
    for _, feed, count in batches(loader, variables, "the loader", 0, rank, ranks):
        values = network.executor.run(programs.test, feed, programs.fetches, scope=network.scope)
        sums = [total + value.item() * count for total, value in zip(sums, values, strict=True)]
        rows += count
    if not rows:
        raise NetworkError("evaluate: the loader yielded no batches")
    return dict(zip(names, _means(network, sums, rows)[0], strict=True))


def predict(network: Network, source: Any, batch_size: int | None) -> np.ndarray[Any, Any]:
    network.set_up()
    programs = network.compile()
    parts: Iterable[Any]
    if isinstance(source, (np.ndarray, Tensor)) or hasattr(source, "__array__"):
        array = source if isinstance(source, Tensor) else np.asarray(source)
        dims = array.dims if isinstance(array, Tensor) else array.shape
        rows = dims[0] if dims else 0  # of a number, which forward refuses
        size = rows if batch_size is None else batch_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            if batch_size is None:
                return network.forward(source)
            raise NetworkError(f"predict: batch_size is {batch_size!r:.40}; expected an int of 1 or more")
        parts = (array[first : first + size] for first in range(0, rows, size))
    else:
        if batch_size is not None:
            raise NetworkError("predict: batch_size is for arrays; a loader has its own")
        named = getattr(source, "names", None) is not None
        variables = [network.input] if programs.label is None else [network.input, programs.label]
        parts = source.on(network.place) if named and hasattr(source, "on") else on_place(network, source, variables)
    results = []
    for number, batch in enumerate(parts):
        if isinstance(batch, (tuple, list)):  # labels, which a loader also yields, are ignored
            batch = batch[0]
        elif isinstance(batch, Mapping):
            batch = {network.input.name: batch[network.input.name]} if network.input.name in batch else batch
        feed = feed_of(batch, [network.input], f"batch {number}")
        results += network.executor.run(programs.predict, feed, programs.predicted, scope=network.scope)
    if not results:
        raise NetworkError("predict: there are no rows")
    return np.concatenate(results)
