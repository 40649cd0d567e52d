"""Check that a layer does not overwrite an earlier output that backward reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluidlite import layers
from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import GradientError, NetworkError
from fluidlite.program.backward import append_backward
from fluidlite.program.program import Program, program_guard

if TYPE_CHECKING:
    from fluidlite.nn.layer import Layer
    from fluidlite.nn.network import Network


def check_overwrites(network: Network, layer: Layer, before: int) -> None:
    """Raise NetworkError if an operator from number ``before`` on overwrites a variable that backward reads.

    A layer's input is the previous layer's output: a write changes the values that its readers have used. The check
    builds backward on a copy of the program.
    """
    block = network.program.global_block()
    outputs = {name for op in block.ops[:before] for name in op.output_arg_names} | {network.input.name}
    written = [
        (op, name)
        for op in block.ops[before:]
        for name in op.output_arg_names
        if name in outputs and not block.var(name).persistable
    ]
    if not written or not is_float(layer.output.dtype):
        return
    copy = network.program.clone()
    with program_guard(copy, Program()):
        loss = layers.mean(copy.global_block().var(layer.output.name))
    try:
        append_backward(loss)
    except GradientError as exc:
        op, name = written[0]
        owner = next((each for each in network.layers if each.output.name == name), None)
        whose = f"the output {name!r} of layer {owner.number}, {owner}" if owner is not None else repr(name)
        raise NetworkError(
            f"layer {layer.number}, {layer}: {op} writes over {whose}, which backward still needs: "
            f"{str(exc).partition(chr(10))[0]}"
            "\n  Do: write to a variable of its own; the memory plan shares memory where that is safe"
        ) from None
