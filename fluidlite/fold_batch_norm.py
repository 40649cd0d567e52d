"""InferenceTranspiler: batch normalisation with fixed statistics becomes part of the convolution in front of it."""

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

_PLAIN = ("NCHW", "NCDHW", "AnyLayout")
"""Formats of images whose channels are their axis 1."""
_CONVOLUTIONS = ("conv2d", "depthwise_conv2d", "conv3d")


class InferenceTranspiler:
    """Fluid's transpiler of test programs."""

    def transpile(self, program: Program, place: Any, scope: Scope | None = None) -> None:
        """Fold each batch_norm into the convolution whose output, or that plus a bias, it alone reads.

        With Scale s, Bias b, Mean m and Variance v, the filter is multiplied by a = s / sqrt(v + epsilon), and the bias
        becomes (bias - m) a + b, computed in float64. As in Fluid the new values are new variables of the scope: other
        programs, such as the one of which this is a clone, keep theirs.

        Parameters
        ----------
        program : Program
            For inference: ``main.clone(for_test=True)``, or what ``load_inference_model`` gave. What has no value in
            the scope, or is trained, is left as it is.
        place : Place or str
            Not used: values stay where they lie.
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


def _only_reader(block: Block, name: str, reader: Operator) -> Operator | None:
    """The operator that makes a value, if ``reader`` alone reads it and it is wanted nowhere else."""
    program = block.program
    readers = [op for each in program.blocks for op in each.ops if name in op.input_arg_names]
    writers = [op for each in program.blocks for op in each.ops if name in op.output_arg_names]
    variable = block.vars.get(name)
    if readers != [reader] or len(writers) != 1 or variable is None or variable.persistable:
        return None
    return None if name in program.fetch_names or writers[0] not in block.ops else writers[0]


def _value(block: Block, scope: Scope, name: str) -> np.ndarray[Any, Any] | None:
    """The value of a persistable variable in float64; None if it has none."""
    variable, found = block.vars.get(name), scope.find_var(name)
    if variable is None or not variable.persistable or found is None or not found.get_tensor().initialized:
        return None
    return found.get_tensor().numpy().astype(np.float64)


def _uses(block: Block, name: str) -> int:
    return sum(name in (*op.input_arg_names, *op.output_arg_names) for each in block.program.blocks for op in each.ops)


def _fold(block: Block, norm: Operator, scope: Scope) -> None:
    add: Operator | None = None
    made = _only_reader(block, norm.input("X")[0], norm)
    if made is not None and made.type == "elementwise_add" and made.attrs["axis"] == 1:
        add, bias_name = made, made.input("Y")[0]
        made = _only_reader(block, add.input("X")[0], add)
    if made is None or made.type not in _CONVOLUTIONS or made.attrs["data_format"] not in _PLAIN:
        return
    if norm.attrs["data_layout"] != "NCHW" or made.input("Bias") or made.input("ResidualData"):
        return
    filter_name = made.input("Filter")[0]
    names = [filter_name, *(norm.input(slot)[0] for slot in ("Scale", "Bias", "Mean", "Variance"))]
    values = [_value(block, scope, name) for name in names]
    own = 0.0 if add is None else _value(block, scope, bias_name)
    if any(value is None for value in values) or own is None or _uses(block, filter_name) != 1:
        return
    if add is not None and (_uses(block, bias_name) != 1 or np.ndim(own) != 1):
        return
    weight, scale, shift, mean, variance = (value for value in values if value is not None)
    factor = scale / np.sqrt(variance + norm.attrs["epsilon"])
    bias = (own - mean) * factor + shift
    folded = _variable(block, scope, filter_name, weight * factor.reshape(-1, *(1,) * (weight.ndim - 1)))
    made.rename_input(filter_name, folded)
    out = norm.output("Y")[0]
    if add is None:
        shifted = _variable(block, scope, filter_name, bias, ".folded_bias")
        block.insert_op(
            block.ops.index(norm),
            "elementwise_add",
            {"X": made.output("Output")[0], "Y": shifted},
            {"Out": out},
            {"axis": 1},
        )
    else:
        add.rename_input(bias_name, _variable(block, scope, bias_name, bias))
        add.rename_output(add.output("Out")[0], out)
    block.remove_op(block.ops.index(norm))


def _variable(block: Block, scope: Scope, like: str, value: np.ndarray[Any, Any], suffix: str = ".folded") -> str:
    """A new variable with that value, of the dtype of another one and where that lies."""
    found = scope.find_var(like)
    assert found is not None
    tensor, name = found.get_tensor(), unique_name.generate(like + suffix)
    while block.has_var(name) or scope.find_var(name) is not None:  # of a program that was loaded
        name = unique_name.generate(like + suffix)
    block.create_var(name, value.shape, tensor.dtype, persistable=True, stop_gradient=True)
    scope.var(name).get_tensor().set(value.astype(NUMPY[tensor.dtype]), tensor.place)
    return name
