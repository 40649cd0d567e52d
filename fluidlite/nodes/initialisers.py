"""Initialisers of weights, by Ginn's names, over :mod:`fluidlite.initializer`: for one tensor, or many weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fluidlite import initializer as fluid_initializer, unique_name
from fluidlite.base.errors import NodeError
from fluidlite.initializer import Initializer as FluidInitializer
from fluidlite.nodes.devices import device
from fluidlite.nodes.leaves import Weight
from fluidlite.nodes.operator_call import run_operator
from fluidlite.nodes.seeds import next_seed
from fluidlite.nodes.tensor import Tensor
from fluidlite.program.program import Program, program_guard

__all__ = ["Constant", "Initialiser", "Msra", "Normal", "Uniform", "Xavier", "Zero"]


class Initialiser:
    """Fills tensors by an initializer of :mod:`fluidlite.initializer`.

    Equal seeds give equal numbers on every place; a seed of 0 is the next of the process's sequence, which
    :func:`fluidlite.nodes.seed` restarts.

    Parameters
    ----------
    initializer : fluidlite.initializer.Initializer
    """

    def __init__(self, initializer: FluidInitializer) -> None:
        if not isinstance(initializer, FluidInitializer):
            raise NodeError(f"Initialiser takes {initializer!r:.60}; expected one of fluid.initializer")
        self.initializer = initializer

    def _of(self, dims: tuple[int, ...]) -> FluidInitializer:
        return self.initializer

    def __call__(self, tensor: Tensor) -> None:
        """Set a tensor's contents; its device and dims stay.

        Raises
        ------
        DtypeError
            If the initializer makes no numbers of the tensor's dtype.
        """
        program = Program()
        with unique_name.guard(), program_guard(program, Program()):
            block = program.global_block()
            variable = block.create_var("value", tensor.dims, tensor.dtype)
            op = self._of(tensor.dims)(variable, block)
        attrs: dict[str, Any] = {name: op.attrs[name] for name in (attr.name for attr in op.definition.attrs)}
        if attrs.get("seed") == 0:
            attrs["seed"] = next_seed()
        run_operator(op.type, {}, attrs, device(tensor.dev.known_place()), {"Out": [tensor]})

    def init(self, weights: Weight | Iterable[Weight]) -> None:
        """Initialise weights, each once. ``weights`` may be an object with a method ``weights()``."""
        targets = [weights] if isinstance(weights, Weight) else weights
        targets = targets.weights() if hasattr(targets, "weights") else targets
        distinct_weights = {weight.identity: weight for weight in targets}
        for weight in distinct_weights.values():
            self(weight.value())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.initializer!r})"


class Uniform(Initialiser):
    """Uniform in [low, high)."""

    def __init__(self, low: float = -0.1, high: float = 0.1, seed: int = 0) -> None:
        super().__init__(fluid_initializer.Uniform(low, high, seed))


class Normal(Initialiser):
    """Normal with a mean and a standard deviation."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, seed: int = 0) -> None:
        super().__init__(fluid_initializer.Normal(mean, std, seed))


class Xavier(Initialiser):
    """Glorot and Bengio (2010): variance 2 / (inputs + outputs); uniform, or normal."""

    def __init__(self, uniform: bool = True, seed: int = 0) -> None:
        super().__init__(fluid_initializer.Xavier(uniform=uniform, seed=seed))


class Msra(Initialiser):
    """He and others (2015): variance 2 / inputs, before a Relu; a matrix is [outputs, inputs], as Affine has it."""

    def __init__(self, uniform: bool = True, seed: int = 0) -> None:
        super().__init__(fluid_initializer.MSRA(uniform=uniform, seed=seed))
        self._uniform, self._seed = uniform, seed

    def _of(self, dims: tuple[int, ...]) -> FluidInitializer:
        if len(dims) != 2:
            return self.initializer
        return fluid_initializer.MSRA(uniform=self._uniform, fan_in=max(1, dims[1]), seed=self._seed)


class Constant(Initialiser):
    """One number everywhere."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__(fluid_initializer.Constant(value))


class Zero(Constant):
    """Zeros."""

    def __init__(self) -> None:
        super().__init__(0.0)
