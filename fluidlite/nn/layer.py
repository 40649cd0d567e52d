"""Layer: one stage of a network, with its parameters, its buffers and its own queue."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from fluidlite.base.dtypes import ITEMSIZE
from fluidlite.base.errors import NetworkError, ProgramError
from fluidlite.param_attr import ParamAttr
from fluidlite.platform.context import Context
from fluidlite.platform.context_pool import new_context
from fluidlite.program.op_call import with_location
from fluidlite.program.program import Program
from fluidlite.program.variable import Parameter, Variable
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Spec

if TYPE_CHECKING:
    from fluidlite.nn.network import Network

_Assigned = TypeVar("_Assigned")


class Layer:
    """Base of all layers: a subclass defines its kind, the input that it expects, and its operators.

    A layer belongs to one network. Its variables exist once it was added, and their values once the network was set up.

    Parameters
    ----------
    name : str, optional
        Default: the kind and a number, ``dense_0``.

    Attributes
    ----------
    network : Network or None
    input, output : Variable
        The input of a layer is the output of the previous one: the same variable, and so the same memory.
    parameters : list of Parameter
        The trainable parameters, in the order of their creation.
    state : list of Variable
        Other persistable variables, such as the averages of a normalisation.
    startup : Program
        It initialises parameters and state.
    context : Context or None
        The queue of its allocation and initialisation; None before the network is set up and after it was closed.
    """

    kind = "layer"
    configured: tuple[str, ...] = ()
    """Names of the attributes that :meth:`config` returns."""

    def __init__(self, name: str | None = None) -> None:
        if name is not None and (not isinstance(name, str) or not name):
            raise NetworkError(f"the name of a layer is {name!r:.80}; expected a text, or None")
        self._user_name = name
        self.name = name or ""
        self.network: Network | None = None
        self.number = -1
        self.startup = Program()
        self.context: Context | None = None
        self.parameters: list[Parameter] = []
        self.state: list[Variable] = []
        self._input: Variable | None = None
        self._output: Variable | None = None

    # Overridden by subclasses

    def expects(self, spec: Spec) -> str | None:
        """Describe the expected input, if ``spec`` does not fit; return None if it fits."""
        return None

    def build(self, x: Variable) -> Variable:
        """Append the layer's operators to the program; return the output."""
        raise NotImplementedError(f"{type(self).__name__} must define build")

    def config(self) -> dict[str, Any]:
        """The layer's configuration for JSON, by which saved networks are compared."""
        return {name: getattr(self, name) for name in self.configured}

    # Used by networks

    @property
    def input(self) -> Variable:
        """The output of the previous layer, or the network's input."""
        return self._assigned(self._input)

    @property
    def output(self) -> Variable:
        """The layer's output, which its gradient and the next layer read."""
        return self._assigned(self._output)

    def _assigned(self, value: _Assigned | None) -> _Assigned:
        if value is None:
            raise NetworkError(f"{self} is in no network yet\n  Do: network.add_layer(layer)")
        return value

    def add_to(self, network: Network, number: int, x: Variable) -> None:
        """Append the layer to a network's program; ``x`` is its input."""
        what = f"layer {number}, {self}"
        expected = self.expects(x._spec())
        if expected is not None:
            previous = network.layers[number - 1] if number else None
            source = f"the output of layer {number - 1}, {previous}" if previous is not None else "the network's input"
            raise NetworkError(
                f"{what}: its input is {source}, {list(x.shape)} {x.dtype}; expected {expected}"
                "\n  Do: add a layer between that changes the dims (Flatten, Reshape), or change one of the two"
            )
        block = network.program.global_block()
        names_before = set(block.vars)
        try:
            output = self.build(x)
        except ProgramError as exc:
            raise with_location(exc, what) from exc
        if not isinstance(output, Variable) or output.block.program is not network.program:
            raise NetworkError(f"{what}: build returned {output!r:.80}; expected a Variable of the network's program")
        new = [variable for name, variable in block.vars.items() if name not in names_before]
        self.parameters = [v for v in new if isinstance(v, Parameter) and v.trainable]
        self.state = [v for v in new if v.persistable and not (isinstance(v, Parameter) and v.trainable)]
        self._input, self._output = x, output
        self.network, self.number = network, number

    def detach(self) -> None:
        """Reset the layer after a network refused it."""
        self.network, self.number, self.name = None, -1, self._user_name or ""
        self.startup = Program()
        self.parameters, self.state = [], []
        self._input = self._output = None

    # Sizes

    @property
    def parameter_count(self) -> int:
        """The number of elements of its trainable parameters."""
        return sum(prod(parameter.shape) for parameter in self.parameters)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of its parameters: equal to those of the parameters."""
        return _nbytes(self.parameters)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of parameters and state."""
        return _nbytes(self.parameters) + _nbytes(self.state)

    def output_bytes(self, rows: int = 1) -> int:
        """Bytes of its output for a number of rows."""
        spec = self.output._spec()
        return prod(rows if d < 0 else d for d in spec.dims) * ITEMSIZE[spec.dtype]

    # Values

    def tensor(self, parameter: Parameter | Variable | str) -> Tensor:
        """The tensor of a parameter or of state, to which later runs write.

        Raises
        ------
        NetworkError
            If the layer has no such parameter, or the network has not been set up or was closed.
        """
        network = self._assigned(self.network)
        name = parameter if isinstance(parameter, str) else parameter.name
        own = {variable.name for variable in (*self.parameters, *self.state)}
        full = name if name in own else f"{self.name}.{name}"
        if full not in own:
            raise NetworkError(f"{self} has no parameter {name!r}; it has {', '.join(sorted(own)) or 'none'}")
        holder = network.scope.find_var(full)
        if holder is None or not holder.tensor.initialized:
            raise NetworkError(f"parameter {full!r} has no memory\n  Do: network.set_up()")
        return holder.tensor

    def queue(self) -> Context:
        """The layer's queue, created at its first use."""
        place = self._assigned(self.network).place
        if self.context is None or self.context.closed:
            self.context = new_context(place)
        return self.context

    def attr(self, initializer: Any) -> Any:
        """Convert an initializer to a ParamAttr, for ``param_attr`` and ``bias_attr``; other values are unchanged."""
        if initializer is None or isinstance(initializer, (bool, ParamAttr)):
            return initializer
        return ParamAttr(initializer=initializer)

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else self.kind

    def __repr__(self) -> str:
        text = ", ".join(f"{name}={value!r}" for name, value in self.config().items() if value is not None)
        return f"{type(self).__name__}({text})"


def _nbytes(variables: Sequence[Variable]) -> int:
    return sum(prod(variable.shape) * ITEMSIZE[variable.dtype] for variable in variables)
