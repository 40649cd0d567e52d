"""Fluid's Trainer: a training loop for a program that a function builds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fluidlite import unique_name
from fluidlite.base.errors import ProgramError
from fluidlite.contrib.checkpoint import CheckpointConfig
from fluidlite.data_feeder import DataFeeder
from fluidlite.executor import Executor
from fluidlite.io.inference_model import save_inference_model
from fluidlite.io.variables import load_persistables, save_persistables
from fluidlite.optimizer import Optimizer
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import PlaceLike
from fluidlite.program.program import Program, program_guard
from fluidlite.program.scope import Scope, scope_guard
from fluidlite.program.variable import Variable

__all__ = ["BeginEpochEvent", "BeginStepEvent", "CheckpointConfig", "EndEpochEvent", "EndStepEvent", "Trainer"]

Reader = Callable[[], Iterable[Any]]
FeedOrder = Sequence[str] | Mapping[str, int]


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
    """A step begins; the handler may set ``fetch_metrics`` to False to fetch nothing."""

    epoch: int
    step: int
    fetch_metrics: bool = True


@dataclass
class EndStepEvent:
    """A step has ended; ``metrics`` are the values of the variables that ``train_func`` returned."""

    epoch: int
    step: int
    metrics: list[Any] = field(default_factory=list)


class Trainer:
    """Trains a program that a function builds.

    Parameters
    ----------
    train_func : callable
        Builds the network; returns the loss, or a list that begins with the loss.
    optimizer_func : callable
        Returns the optimiser.
    param_path : path, optional
        A folder of :meth:`save_params` to start from.
    place : Place or str, optional
        Default: the host.
    parallel : bool
        Not supported: use ``fluid.CompiledProgram(...).with_data_parallel``.
    checkpoint_config : CheckpointConfig, optional
        Save checkpoints, and resume from the newest existing one.

    Raises
    ------
    ProgramError
        A function returns something else, or ``parallel`` is true.
    """

    def __init__(
        self,
        train_func: Callable[[], Any],
        optimizer_func: Callable[[], Optimizer],
        param_path: str | None = None,
        place: PlaceLike | None = None,
        parallel: bool = False,
        checkpoint_config: CheckpointConfig | None = None,
    ) -> None:
        if parallel:
            raise ProgramError(
                "Trainer: parallel is True; a Trainer runs on one place"
                "\n  Do: fluid.CompiledProgram(program).with_data_parallel(...), without a Trainer"
            )
        if checkpoint_config is not None and not isinstance(checkpoint_config, CheckpointConfig):
            raise ProgramError(f"Trainer: checkpoint_config is {checkpoint_config!r:.80}; expected a CheckpointConfig")
        self.checkpoint_cfg = checkpoint_config
        self.scope = Scope()
        self.startup_program, self.train_program = Program(), Program()
        self.stopped = False
        with program_guard(self.train_program, self.startup_program), unique_name.guard():
            outputs = train_func()
            self.train_func_outputs: list[Variable] = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            if not self.train_func_outputs or not all(isinstance(out, Variable) for out in self.train_func_outputs):
                raise ProgramError(
                    f"Trainer: train_func returned {outputs!r:.80}; expected the loss, or a list that it begins"
                )
            self.test_program = self.train_program.clone(for_test=True)
            optimizer = optimizer_func()
            if not isinstance(optimizer, Optimizer):
                raise ProgramError(f"Trainer: optimizer_func returned {optimizer!r:.80}; expected an optimiser")
            optimizer.minimize(self.train_func_outputs[0])
        self.exe = Executor(devices.host() if place is None else place)
        self.place = self.exe.place
        self._start: tuple[int, int] | None = None
        with scope_guard(self.scope):
            self.exe.run(self.startup_program)
            if checkpoint_config is not None:
                self._start = checkpoint_config.restore(self.train_program, self.exe)
            if param_path is not None and self._start is None:
                load_persistables(self.exe, param_path, self.startup_program)

    def stop(self) -> None:
        """End training after the current step."""
        self.stopped = True

    def train(
        self,
        num_epochs: int,
        event_handler: Callable[[Any], None],
        reader: Reader | None = None,
        feed_order: FeedOrder | None = None,
    ) -> None:
        """Train; the handler is called for every epoch and step.

        Parameters
        ----------
        num_epochs : int
        event_handler : callable
            Called with events of this module.
        reader : callable
            Returns an iterable of batches, lists of samples.
        feed_order : list of str, or mapping of name to field, optional
            The variables of a sample's fields; default: the program's data variables, in order.
        """
        if reader is None:
            raise ProgramError("Trainer.train: reader is None; expected a reader of batches, such as fluid.batch(...)")
        self.stopped = False
        feeder = self._feeder(feed_order)
        epoch_from, step_from = self._start or (0, 0)
        self._start = None
        with scope_guard(self.scope):
            for epoch in range(epoch_from, num_epochs):
                event_handler(BeginEpochEvent(epoch))
                for step, batch in enumerate(reader()):
                    if self.stopped:
                        return
                    if epoch == epoch_from and step < step_from:
                        continue  # done before the checkpoint
                    begin = BeginStepEvent(epoch, step)
                    event_handler(begin)
                    fetches = self.train_func_outputs if begin.fetch_metrics else []
                    metrics = self.exe.run(self.train_program, feeder.feed(batch), fetches)
                    if self.checkpoint_cfg is not None and self.checkpoint_cfg.due(epoch, step):
                        self.checkpoint_cfg.save(self.train_program, epoch, step)
                    event_handler(EndStepEvent(epoch, step, metrics))
                event_handler(EndEpochEvent(epoch))
                if self.stopped:
                    return
        if self.checkpoint_cfg is not None:
            self.checkpoint_cfg.clean()

    def test(self, reader: Reader, feed_order: FeedOrder | None = None) -> list[float]:
        """Return the means of the outputs of ``train_func`` over a reader's batches."""
        feeder = self._feeder(feed_order)
        names = [out.name for out in self.train_func_outputs]
        with scope_guard(self.scope):
            batch_means = [
                [float(np.mean(value)) for value in self.exe.run(self.test_program, feeder.feed(batch), names)]
                for batch in reader()
            ]
        if not batch_means:
            raise ProgramError("Trainer.test: the reader has no batches")
        return [float(mean) for mean in np.mean(batch_means, axis=0)]

    def save_params(self, param_path: str) -> None:
        """Save all state into a folder, for ``param_path`` of a Trainer or an Inferencer."""
        with scope_guard(self.scope):
            save_persistables(self.exe, param_path, self.startup_program)

    def save_inference_model(
        self, param_path: str, feeded_var_names: Sequence[str], target_var_indexes: Sequence[int]
    ) -> None:
        """Save an inference model for some outputs of ``train_func``, by their indices."""
        count = len(self.train_func_outputs)
        if not all(0 <= index < count for index in target_var_indexes):
            raise ProgramError(f"target_var_indexes is {list(target_var_indexes)}; train_func returned {count} outputs")
        targets = [self.train_func_outputs[index] for index in target_var_indexes]
        with scope_guard(self.scope):
            save_inference_model(param_path, feeded_var_names, targets, self.exe, self.train_program)

    def _feeder(self, feed_order: FeedOrder | None) -> DataFeeder:
        if feed_order is None:
            names = [variable.name for variable in self.train_program.list_vars() if variable.is_data]
        elif isinstance(feed_order, Mapping):
            names = sorted(feed_order, key=lambda name: feed_order[name])
            if [feed_order[name] for name in names] != list(range(len(names))):
                raise ProgramError(
                    f"feed_order is {dict(feed_order)}; expected the fields 0 to {len(names) - 1}, once each"
                )
        else:
            names = list(feed_order)
        return DataFeeder(names, self.place, self.train_program)
