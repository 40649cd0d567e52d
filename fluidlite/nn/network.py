"""Network: a stack of layers with training, evaluation and prediction, on any place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fluidlite import layers, unique_name
from fluidlite.base.arguments import check_list
from fluidlite.base.errors import NetworkError
from fluidlite.distributed.groups import Group, member_seed, single, world
from fluidlite.executor import Executor
from fluidlite.io.paths import PathText
from fluidlite.nn import checkpoint, set_up, training
from fluidlite.nn.callbacks import Callback
from fluidlite.nn.feeds import feed_of
from fluidlite.nn.layer import Layer
from fluidlite.nn.losses import Loss, loss_of
from fluidlite.nn.memory_check import check_memory
from fluidlite.nn.metrics import Metric, metrics_of
from fluidlite.nn.overwrites import check_overwrites
from fluidlite.nn.programs import Programs, build_programs
from fluidlite.nn.state import TrainingState
from fluidlite.nn.steps import Steps
from fluidlite.nn.summary import Summary, summarise
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.op_guards import name_scope
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope
from fluidlite.program.undo import undone_on_error
from fluidlite.program.variable import Variable


class Network:
    """A stack of layers, with loss, optimizer and metrics.

    Parameters
    ----------
    input_shape : sequence of int
        Dims of one row of the input; the first dim of a batch is the rows.
    place : Place or str
        The place of its values and runs.
    optimizer : Optimizer, or callable that returns one, optional
        Of ``fluid.optimizer``. A callable is called while the network's program is the default one, so that it may
        append a schedule of the learning rate. None: the network cannot be trained.
    loss : Loss, str or callable, optional
        Of ``fluid.nn.losses``, its name, or ``cost(prediction, label)``.
    loader : iterable of batches, optional
        The default loader of ``train`` and ``batched_train``.
    metrics : Metric or str, or several
    input_dtype : str
    seed : int, optional
        Seed of all random numbers: initial values, dropout. None: a random seed, the attribute ``seed``.
    distributed : bool
        Train with all processes that ``mpirun`` started: each processes its rows of a batch; gradients are summed.
    mode, fallback : str, optional
        As for ``fluid.Executor``.
    input_name, label_name : str
        Names of the fed variables.

    Attributes
    ----------
    layers : list of Layer
    program : Program
        Forward, and after :meth:`compile` the whole training step.
    scope : Scope
        The scope of the values.
    state : TrainingState
        The progress of the training, with its history.

    Raises
    ------
    PlaceError, DeviceUnavailable, NetworkError
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        place: PlaceLike = "cpu",
        optimizer: Any = None,
        loss: Loss | str | Any = None,
        loader: Iterable[Any] | None = None,
        metrics: Iterable[Metric | str] | Metric | str = (),
        input_dtype: str = "float32",
        seed: int | None = None,
        distributed: bool = False,
        mode: str | None = None,
        fallback: str | None = None,
        input_name: str = "input",
        label_name: str = "label",
    ) -> None:
        self.place: Place = devices.unit(place).place
        self.optimizer, self.loader = optimizer, loader
        self.loss = None if loss is None else loss_of(loss)
        self.metrics = metrics_of(metrics)  # type: ignore[arg-type]
        self.seed = int.from_bytes(os.urandom(4)) | 1 if seed is None else int(seed)
        if self.seed == 0:
            raise NetworkError("seed is 0, which means a drawn one in a program\n  Do: another number, or None")
        if input_name == label_name:
            raise NetworkError(f"input and label are both called {input_name!r}; expected two names")
        self.distributed = bool(distributed)
        self.group: Group = world() if distributed else single()
        self.checkpoint_loader: Any = None
        """The loader of the running training, whose position checkpoints store."""
        self.active_callbacks: list[Callback] = []
        """The callbacks of the running training, whose state checkpoints store."""
        self.layers: list[Layer] = []
        self.program = Program()
        self.scope = Scope()
        self.state = TrainingState()
        self.executor = Executor(self.place, fallback=fallback, mode=mode)
        self.fallback = fallback
        self.label_name = label_name
        self.closed = False
        self._names = unique_name.Generator()
        self._programs: Programs | None = None
        self._is_set_up = False
        dims = check_list("input_shape", input_shape, "the dims of a row, such as [1, 28, 28]", NetworkError)
        with set_up.building(self.program, Program(), self._names):
            self.input: Variable = layers.data(input_name, [-1, *dims], dtype=input_dtype)
        self.seeded(self.seed)

    # Building

    def seeded(self, seed: int) -> None:
        """Set the seed of all random numbers; existing values stay."""
        self.seed = seed
        for layer in self.layers:
            layer.startup.random_seed = seed
        if self._programs is not None:
            self._programs.seed(seed)
        self.program.random_seed = self.member_seed

    @property
    def member_seed(self) -> int:
        """The seed of the training step; it differs between processes."""
        return member_seed(self.seed, self.group)

    def add_layer(self, layer: Layer) -> Layer:
        """Append a layer; it is checked against the output of the previous one and the memory of the place.

        Parameters
        ----------
        layer : Layer

        Returns
        -------
        Layer
            The same.

        Raises
        ------
        NetworkError
            It does not fit the output of the previous layer, overwrites an output that backward needs, is in a network
            already, or the network was compiled.
        OutOfMemoryError
            The place has less memory than the parameters and their gradients need.
        """
        if not isinstance(layer, Layer):
            raise NetworkError(f"add_layer got {layer!r:.80}; expected a layer, such as fluid.nn.Dense(10)")
        self._open()
        if self._programs is not None:
            raise NetworkError(f"{layer} comes too late: the network is compiled\n  Do: add layers before using it")
        if layer.network is not None:
            whose = "this network" if layer.network is self else "another network"
            raise NetworkError(f"{layer} is in {whose} already\n  Do: make a layer for each place in a network")
        number, x = len(self.layers), self.layers[-1].output if self.layers else self.input
        layer.name = layer._user_name or self._names(layer.kind)
        if any(layer.name == other.name for other in self.layers):
            raise NetworkError(f"layer {number} is called {layer.name!r}, as one before\n  Do: name it otherwise")
        block = self.program.global_block()
        op_count = len(block.ops)
        layer.startup.random_seed = self.seed
        try:
            with (
                undone_on_error(block),
                set_up.building(self.program, layer.startup, self._names),
                name_scope(layer.name),
            ):
                layer.add_to(self, number, x)
                check_overwrites(self, layer, op_count)
                check_memory(self, [*self.layers, layer])
        except BaseException:
            layer.detach()
            raise
        self.layers.append(layer)
        return layer

    def compile(self) -> Programs:
        """Build the programs of prediction, evaluation and training, at the first call."""
        self._open()
        if self._programs is None:
            if not self.layers:
                raise NetworkError("the network has no layers\n  Do: network.add_layer(fluid.nn.Dense(10))")
            self._programs = build_programs(self, self._names)
            self.seeded(self.seed)
        return self._programs

    def set_up(self) -> None:
        """Allocate and initialise all layers in parallel, each on its own queue, at the first call.

        Raises
        ------
        OutOfMemoryError
            The place has less memory than parameters, gradients and the optimizer's state need.
        """
        programs = self.compile()
        if not self._is_set_up:
            set_up.set_up(self, programs)
            self._is_set_up = True

    def close(self) -> None:
        """Release all memory and queues; may be called twice. The network cannot be used afterwards."""
        if not self.closed:
            self.closed = True
            self.executor.close()
            set_up.tear_down(self)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _open(self) -> None:
        if self.closed:
            raise NetworkError("the network is closed")

    # Using

    def forward(self, x: Any) -> np.ndarray[Any, Any]:
        """Return the last layer's output for a batch, in evaluation mode: without dropout and updates.

        Parameters
        ----------
        x : array [rows, *input_shape] or Tensor

        Raises
        ------
        FluidError
            The message names the layer's operator; the network stays usable.
        """
        self.set_up()
        programs = self.compile()
        feed = feed_of(x, [self.input], "the input")
        (output,) = self.executor.run(programs.predict, feed, programs.predicted, scope=self.scope)
        result: np.ndarray[Any, Any] = output
        return result

    __call__ = forward

    def predict(self, source: Any, batch_size: int | None = None) -> np.ndarray[Any, Any]:
        """Return the last layer's output for all rows.

        Parameters
        ----------
        source : array, Tensor or iterable of batches
            Batches may also contain labels. The samples of a loader without names are inputs and labels; for inputs
            alone set ``names=["input"]``.
        batch_size : int, optional
            Number of rows of an array in one run; default: all.
        """
        return training.predict(self, source, batch_size)

    def evaluate(self, source: Any = None) -> dict[str, float]:
        """Return the means of loss and metrics over all rows, in evaluation mode.

        Parameters
        ----------
        source : iterable of batches, or a tuple of arrays
            Default: the network's loader.
        """
        return training.evaluate(self, source)

    def train(
        self,
        loader: Any = None,
        epochs: int = 1,
        validation: Any = None,
        callbacks: Iterable[Callback] = (),
        resume: bool = False,
    ) -> list[dict[str, float]]:
        """Train on the whole dataset as one batch: one step an epoch.

        Parameters
        ----------
        loader : loaders.FullLoader, a tuple (x, y) of arrays, or an iterable of one batch
            Arrays are copied to the place once. Default: the network's loader.
        epochs, validation, callbacks, resume
            As in :meth:`batched_train`.

        Returns
        -------
        list of dict
            The history of these epochs.
        """
        return training.train(self, loader, epochs, validation, callbacks, resume, full_batch=True)

    def batched_train(
        self,
        loader: Any = None,
        epochs: int = 1,
        validation: Any = None,
        callbacks: Iterable[Callback] = (),
        resume: bool = False,
    ) -> list[dict[str, float]]:
        """Train batch by batch.

        Parameters
        ----------
        loader : iterable of batches
            Such as ``fluid.loaders.BatchedLoader``; a batch is a mapping of names, or a tuple (x, y). Default: the
            network's loader.
        epochs : int
            Number of iterations over the loader.
        validation : iterable of batches, or a tuple of arrays, optional
            Evaluated after each epoch, as ``validation_loss`` and so on.
        callbacks : iterable of Callback
        resume : bool
            Continue the call in which the loaded checkpoint was saved: ``epochs`` counts from the start of that call.
            Without a loaded checkpoint, train from the start.

        Returns
        -------
        list of dict
            The history of these epochs: ``epoch``, ``loss`` and the metrics, as means over rows.

        Raises
        ------
        NetworkError
            There is no optimizer, loss or loader, batches do not fit, or there are no batches.
        """
        return training.train(self, loader, epochs, validation, callbacks, resume, full_batch=False)

    def stepwise(self) -> Steps:
        """Return forward, backward and update as separate calls, with every layer's output in memory between them."""
        self.set_up()
        return Steps(self)

    # Reports and checkpoints

    def summary(self, rows: int | None = None) -> Summary:
        """Layers with shapes, parameters, bytes, kernels and place; ``print(network.summary())``.

        Parameters
        ----------
        rows : int, optional
            Number of rows for the selection of kernels and the size of outputs.
        """
        return summarise(self, rows)

    def save(self, folder: PathText) -> None:
        """Save values, optimizer state, random numbers, history and the loader's position.

        The save is atomic: after a kill at any moment the folder holds the old checkpoint or the new one. In a
        distributed training the first process saves.

        Raises
        ------
        SavedModelError
            The folder cannot be written; the previous checkpoint is unchanged.
        """
        checkpoint.save(self, folder)

    def load(self, folder: PathText) -> None:
        """Load a checkpoint of :meth:`save`, of a network with equal layers; the place may differ.

        Raises
        ------
        SavedModelError
            Files are missing, truncated, malformed or of another network; then nothing was changed.
        """
        checkpoint.load(self, folder)

    @property
    def history(self) -> list[dict[str, float]]:
        """Loss and metrics of all epochs so far."""
        return self.state.history

    def parameters(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Copies of all parameters, by name."""
        self.set_up()
        return {p.name: np.array(layer.tensor(p).numpy()) for layer in self.layers for p in layer.parameters}

    def __repr__(self) -> str:
        return f"<Network of {len(self.layers)} layers on {self.place}>"
