"""Steps: forward, backward and update as separate calls, with all layers' outputs in memory between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.errors import NetworkError
from fluidlite.nn.feeds import feed_of
from fluidlite.program.edit import sub_blocks
from fluidlite.program.program import Program
from fluidlite.tensor.tensor import Tensor

if TYPE_CHECKING:
    from fluidlite.nn.layer import Layer
    from fluidlite.nn.network import Network

FORWARD, BACKWARD, STEP = "forward", "backward", "step"
_ROLES = {"forward": FORWARD, "backward": BACKWARD, "optimize": STEP, "lr_sched": STEP}


class Steps:
    """The training step of a network in three parts, for inspection between them.

    A layer's output stays in memory after :meth:`forward`, in the network's scope; it is also the input tensor of the
    next layer. :meth:`backward` refuses to run if an output was written since.

    Parameters
    ----------
    network : Network
        With a loss and an optimizer.

    Raises
    ------
    NetworkError
        It has no loss or no optimizer.
    """

    def __init__(self, network: Network) -> None:
        programs = network.compile()
        if programs.train is None or programs.label is None:
            raise NetworkError("stepwise needs a loss and an optimizer\n  Do: Network(..., loss=..., optimizer=...)")
        self.network = network
        self.variables = [network.input, programs.label]
        self.loss = programs.fetches[0]
        self._parts, self.shared_names = _split(programs.train, [layer.output.name for layer in network.layers])
        self._reads = {
            part: {n for op in copy.global_block().ops for n in op.input_arg_names}
            for part, copy in self._parts.items()
        }
        self._feed: dict[str, Any] = {}
        self._versions: dict[str, int] | None = None
        self._ready = False

    def output(self, layer: Layer | int) -> Tensor:
        """The tensor of a layer's output, from the last :meth:`forward`."""
        number = layer if isinstance(layer, int) else layer.number
        return self._tensor(self.network.layers[number].output.name)

    def input(self, layer: Layer | int) -> Tensor:
        """The tensor of a layer's input: the output of the previous layer."""
        number = layer if isinstance(layer, int) else layer.number
        return self._tensor(self.network.layers[number].input.name)

    def _tensor(self, name: str) -> Tensor:
        variable = self.network.scope.find_var(name)
        if variable is None or not variable.tensor.initialized:
            raise NetworkError(f"{name!r} has no memory yet\n  Do: steps.forward(x, y)")
        return variable.tensor

    def forward(self, x: Any, y: Any) -> float:
        """Run all layers and the loss on a batch; return the loss."""
        self._feed = feed_of((x, y), self.variables, "the batch")
        self._ready = False
        (loss,) = self._run(FORWARD, [self.loss])
        self._versions = {name: self._tensor(name).version for name in self.shared_names if self._has(name)}
        value: np.ndarray[Any, Any] = loss
        return float(value.item())

    def backward(self) -> None:
        """Compute the gradients of all parameters.

        Raises
        ------
        NetworkError
            There was no forward, or a layer's output was written since.
        """
        if self._versions is None:
            raise NetworkError("backward comes before forward\n  Do: steps.forward(x, y)")
        for name, version in self._versions.items():
            if self._tensor(name).version != version:
                owner = next((each for each in self.network.layers if each.output.name == name), None)
                whose = f"the output of layer {owner.number}, {owner}" if owner is not None else repr(name)
                self._versions = None
                raise NetworkError(
                    f"somebody wrote to {whose} between forward and backward, which needs it as it was"
                    "\n  Do: write to a copy; or run forward again"
                )
        self._run(BACKWARD)
        self._versions, self._ready = None, True

    def step(self) -> None:
        """Update the parameters with their gradients.

        Raises
        ------
        NetworkError
            There was no backward since the last step.
        """
        if not self._ready:
            raise NetworkError("step comes before backward\n  Do: steps.forward(x, y), then steps.backward()")
        self._run(STEP)
        self._ready = False

    def _has(self, name: str) -> bool:
        variable = self.network.scope.find_var(name)
        return variable is not None and variable.tensor.initialized

    def _run(self, part: str, fetches: Sequence[str] = ()) -> list[Any]:
        network = self.network
        network._open()
        feed = {name: value for name, value in self._feed.items() if name in self._reads[part]}
        return network.executor.run(self._parts[part], feed, list(fetches), scope=network.scope)

    def close(self) -> None:
        """Release the memory of the values between the parts."""
        self.network.scope.erase([name for name in self.shared_names if name in self.network.scope.local_var_names()])
        self._feed, self._versions, self._ready = {}, None, False


def _split(program: Program, outputs: list[str]) -> tuple[dict[str, Program], list[str]]:
    """Split a program into three parts; return them and the names of the values that they share, as state."""
    parts = {part: program.clone() for part in (FORWARD, BACKWARD, STEP)}
    producers: dict[str, str] = {}
    shared = dict.fromkeys(outputs)
    for op in program.global_block().ops:
        if sub_blocks(op):
            raise NetworkError(f"{op} runs a sub-block; such a network does not run stepwise")
        part = _ROLES.get(op.role, FORWARD)
        for name in op.input_arg_names:
            variable = program.global_block().var(name)
            if producers.get(name, FORWARD) != part and not variable.persistable:
                shared[name] = None
        producers.update(dict.fromkeys(op.output_arg_names, part))
    for part, copy in parts.items():
        block = copy.global_block()
        block.ops[:] = [op for op in block.ops if _ROLES.get(op.role, FORWARD) == part]
        for name in shared:
            block.var(name).persistable = True
    return parts, list(shared)
