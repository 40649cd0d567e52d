"""InferenceTranspiler: folds batch normalisation with fixed statistics into the preceding convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite import unique_name
from fluidlite.base.dtypes import NUMPY
from fluidlite.base.errors import ProgramError
from fluidlite.program.block import Block
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope, global_scope

__all__ = ["InferenceTranspiler"]

_CHANNELS_FIRST = ("NCHW", "NCDHW", "AnyLayout")
"""Image formats with channels as axis 1."""
_CONVOLUTIONS = ("conv2d", "depthwise_conv2d", "conv3d")


class InferenceTranspiler:
    """Fluid's transpiler of test programs."""

    def transpile(self, program: Program, place: Any, scope: Scope | None = None) -> None:
        """Fold each batch_norm into a convolution, if it is the only reader of its output, or of that plus a bias.

        With Scale s, Bias b, Mean m and Variance v, the filter is multiplied by a = s / sqrt(v + epsilon), and the bias
        becomes (bias - m) a + b, computed in float64. As in Fluid the new values are new variables of the scope: other
        programs, such as the one of which this is a clone, keep theirs.

        Parameters
        ----------
        program : Program
            A test program: ``main.clone(for_test=True)``, or a program of ``load_inference_model``. Operators whose
            parameters have no value in the scope, or are trained, are not changed.
        place : Place or str
            Not used: values stay on their places.
        scope : Scope, optional
            Default: the global scope.

        Raises
        ------
        ProgramError
            ``program`` is no Program, or ``scope`` no Scope.
        """
        if not isinstance(program, Program):
            raise ProgramError(f"InferenceTranspiler: program is {type(program).__name__}; expected a Program")
        values = scope if scope is not None else global_scope()
        if not isinstance(values, Scope):
            raise ProgramError(f"InferenceTranspiler: scope is {type(scope).__name__}; expected a Scope")
        block = program.global_block()
        for op in list(block.ops):
            if op.type == "batch_norm" and (op.attrs["is_test"] or op.attrs["use_global_stats"]):
                _fold(block, op, values)


def _sole_producer(block: Block, name: str, reader: Operator) -> Operator | None:
    """The operator that writes a value, if ``reader`` is its only use."""
    program = block.program
    readers = [op for each in program.blocks for op in each.ops if name in op.input_arg_names]
    writers = [op for each in program.blocks for op in each.ops if name in op.output_arg_names]
    variable = block.vars.get(name)
    if readers != [reader] or len(writers) != 1 or variable is None or variable.persistable:
        return None
    return None if name in program.fetch_names or writers[0] not in block.ops else writers[0]


def _value(block: Block, scope: Scope, name: str) -> np.ndarray[Any, Any] | None:
    """The value of a persistable variable in float64; None if it has none."""
    variable, holder = block.vars.get(name), scope.find_var(name)
    if variable is None or not variable.persistable or holder is None or not holder.get_tensor().initialized:
        return None
    return holder.get_tensor().numpy().astype(np.float64)


def _uses(block: Block, name: str) -> int:
    return sum(name in (*op.input_arg_names, *op.output_arg_names) for each in block.program.blocks for op in each.ops)


def _fold(block: Block, norm: Operator, scope: Scope) -> None:
    add: Operator | None = None
    conv = _sole_producer(block, norm.input("X")[0], norm)
    if conv is not None and conv.type == "elementwise_add" and conv.attrs["axis"] == 1:
        add, bias_name = conv, conv.input("Y")[0]
        conv = _sole_producer(block, add.input("X")[0], add)
    if conv is None or conv.type not in _CONVOLUTIONS or conv.attrs["data_format"] not in _CHANNELS_FIRST:
        return
    if norm.attrs["data_layout"] != "NCHW" or conv.input("Bias") or conv.input("ResidualData"):
        return
    filter_name = conv.input("Filter")[0]
    names = [filter_name, *(norm.input(slot)[0] for slot in ("Scale", "Bias", "Mean", "Variance"))]
    values = [_value(block, scope, name) for name in names]
    old_bias = 0.0 if add is None else _value(block, scope, bias_name)
    if any(value is None for value in values) or old_bias is None or _uses(block, filter_name) != 1:
        return
    if add is not None and (_uses(block, bias_name) != 1 or np.ndim(old_bias) != 1):
        return
    weight, scale, shift, mean, variance = (value for value in values if value is not None)
    factor = scale / np.sqrt(variance + norm.attrs["epsilon"])
    bias = (old_bias - mean) * factor + shift
    folded = _variable(block, scope, filter_name, weight * factor.reshape(-1, *(1,) * (weight.ndim - 1)))
    conv.rename_input(filter_name, folded)
    out = norm.output("Y")[0]
    if add is None:
        shifted = _variable(block, scope, filter_name, bias, ".folded_bias")
        block.insert_op(
            block.ops.index(norm),
            "elementwise_add",
            {"X": conv.output("Output")[0], "Y": shifted},
            {"Out": out},
            {"axis": 1},
        )
    else:
        add.rename_input(bias_name, _variable(block, scope, bias_name, bias))
        add.rename_output(add.output("Out")[0], out)
    block.remove_op(block.ops.index(norm))


def _variable(block: Block, scope: Scope, like: str, value: np.ndarray[Any, Any], suffix: str = ".folded") -> str:
    """Create a variable with a value, of the dtype and on the place of another variable; return its name."""
    holder = scope.find_var(like)
    assert holder is not None
    tensor, name = holder.get_tensor(), unique_name.generate(like + suffix)
    while block.has_var(name) or scope.find_var(name) is not None:  # names of a loaded program
        name = unique_name.generate(like + suffix)
    block.create_var(name, value.shape, tensor.dtype, persistable=True, stop_gradient=True)
    scope.var(name).get_tensor().set(value.astype(NUMPY[tensor.dtype]), tensor.place)
    return name
