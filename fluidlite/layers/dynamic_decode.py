"""dynamic_decode: a decoder's steps, repeated until all sequences have ended."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fluidlite.base.errors import ProgramError, ShapeError
from fluidlite.layer_helper import LayerHelper, check_int, check_variable, refuse
from fluidlite.layers.decoders import Decoder
from fluidlite.layers.index import scatter
from fluidlite.layers.loops import While, write
from fluidlite.layers.ops import layer
from fluidlite.layers.reduce import reduce_all
from fluidlite.layers.shape import squeeze, transpose, unsqueeze
from fluidlite.layers.slicing_padding import multiplex, slice as cut
from fluidlite.layers.sub_blocks import in_outer_block
from fluidlite.layers.tensor import (
    assign,
    cast,
    fill_constant,
    fill_constant_batch_size_like,
    increment,
    zeros_like,
)
from fluidlite.layers.tensor_array import array_write, create_array, tensor_array_to_tensor
from fluidlite.layers.utils import flatten, map_structure, pack_sequence_as, same_structure
from fluidlite.program.program import Program
from fluidlite.program.variable import Variable

MAX_STEPS = 10_000
"""The limit on steps of a decoder without ``max_step_num``."""


def dynamic_decode(
    decoder: Decoder,
    inits: Any = None,
    max_step_num: int | None = None,
    output_time_major: bool = False,
    impute_finished: bool = False,
    is_test: bool = False,
    return_length: bool = False,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """Run a decoder's steps until all sequences have ended; return their outputs and the last states.

    inits: A Variable, or a structure of Variables, passed to ``decoder.initialize``
    max_step_num: The number of the last step, counted from 0: there are at most ``max_step_num + 1``, as in Fluid.
        None: no limit up to 10,000; more raise an OutOfRangeError.
    output_time_major: Outputs are [steps, batch, ...]; else [batch, steps, ...]
    impute_finished: States of sequences that have ended do not change. A decoder that tracks itself which sequences
        have ended, such as beam search, keeps them in any case.
    is_test: No gradient is taken through the steps, so nothing is saved for it. With ``max_step_num``, outputs
        of all steps are written into one buffer instead of a tensor array.
    return_length: Return also how many steps each sequence has
    kwargs: Passed to each ``decoder.step``
    Returns: Outputs and final states, as ``decoder.finalize`` returns them; without it the outputs of all steps, in the
        structure of one step's, and the states after the last step. With ``return_length`` the lengths too, int64.
    """
    if not isinstance(decoder, Decoder):
        refuse("decoder", decoder, "a Decoder, such as BeamSearchDecoder(cell, start_token, end_token, beam_size)")
    limit = None if max_step_num is None else check_int("max_step_num", max_step_num, 0)
    inputs, states, finished = decoder.initialize(inits)
    ended = assign(check_variable("what decoder.initialize returned", finished))
    if ended.dtype != "bool":
        refuse("what decoder.initialize returned", finished, "a bool for each sequence: whether it has ended")
    ended.stop_gradient = True
    lengths = zeros_like(cast(ended, "int64"))
    lengths.stop_gradient = True
    loop_values = map_structure(_loop_variable, [inputs, states])
    step = fill_constant([1], "int64", 0)
    condition = layer("logical_not")(reduce_all(ended))
    loop = While(condition, is_test=is_test, max_iterations=MAX_STEPS if limit is None else limit + 1)
    helper = LayerHelper("dynamic_decode")
    with loop.block():
        outputs, next_states, next_inputs, next_ended = decoder.step(step, *loop_values, **kwargs)
        _check_structure("states", loop_values[1], next_states)
        _check_structure("inputs", loop_values[0], next_inputs)
        if decoder.tracks_own_finished:
            next_lengths = getattr(next_states, "lengths", lengths)
        else:
            next_ended = layer("logical_or")(next_ended, ended)
            next_lengths = lengths + cast(layer("logical_not")(ended), "int64")
        if impute_finished and not decoder.tracks_own_finished:  # else ended sequences may have been reordered
            pairs = zip(flatten(loop_values[1]), flatten(next_states), strict=True)
            next_states = pack_sequence_as(next_states, [_keep_ended(old, new, ended) for old, new in pairs])
        buffers = map_structure(
            lambda x: _write(helper.main_program, x, step, ended, limit if is_test else None), outputs
        )
        increment(step)
        write(
            [*flatten(loop_values), ended, lengths],
            [*flatten([next_inputs, next_states]), next_ended, next_lengths],
        )
        holds = layer("logical_not")(reduce_all(ended))
        if limit is not None:
            holds = layer("logical_and")(holds, layer("less_equal")(step, fill_constant([1], "int64", limit)))
        assign(holds, output=condition)
    joined = [_all_steps(buffer, step) for buffer in flatten(buffers)]
    joined = [x if x.dtype == of.dtype else cast(x, of.dtype) for x, of in zip(joined, flatten(outputs), strict=True)]
    outputs, final_states = pack_sequence_as(outputs, joined), loop_values[1]
    with suppress(NotImplementedError):
        outputs, final_states = decoder.finalize(outputs, final_states, lengths)
    if not output_time_major:
        outputs = map_structure(lambda x: transpose(x, [1, 0, *range(2, len(x.shape))]), outputs)
    return (outputs, final_states, lengths) if return_length else (outputs, final_states)


def _all_steps(buffer: Variable, steps: Variable) -> Variable:
    """Outputs of all steps, [steps, batch, ...]."""
    if buffer.is_array:
        return tensor_array_to_tensor(buffer, axis=0, use_stack=True)[0]
    return cut(buffer, [0], [0], [steps])


def _loop_variable(x: Any) -> Variable:
    """A variable that the loop writes, initialised with ``x``."""
    variable = assign(check_variable("what decoder.initialize returned", x))
    variable.stop_gradient = x.stop_gradient
    return variable


def _check_structure(what: str, old: Any, new: Any) -> None:
    """Raise if a step returns another structure than it got, or other dtypes and ranks."""
    if not same_structure(old, new):
        raise ProgramError(f"decoder.step returned {what} of another structure than it was given; expected the same")
    for old_leaf, new_leaf in zip(flatten(old), flatten(new), strict=True):
        check_variable(f"{what} that decoder.step returned", new_leaf)
        if old_leaf.dtype != new_leaf.dtype or len(old_leaf.shape) != len(new_leaf.shape):
            raise ShapeError(
                f"decoder.step returned {new_leaf.dtype} {list(new_leaf.shape)} among its {what} in place of "
                f"{old_leaf.dtype} {list(old_leaf.shape)}; expected the same dtype and rank"
            )


def _keep_ended(old: Variable, new: Variable, ended: Variable) -> Variable:
    """The old value of sequences that had ended, the new one of others."""
    choice = unsqueeze(cast(ended, "int32"), [1])
    is_vector = len(new.shape) == 1
    rows = [unsqueeze(x, [1]) if is_vector else x for x in (new, old)]
    selected = multiplex(rows, choice)  # a selection, as products with 0 would keep NaN
    return squeeze(selected, [1]) if is_vector else selected


def _write(program: Program, x: Any, step: Variable, like: Variable, limit: int | None) -> Variable:
    """Write a step's output, [batch, ...], into the outputs of all steps: an array, or a buffer of known size."""
    output = check_variable("outputs that decoder.step returned", x)
    dims = list(output.shape)
    if limit is None:
        with in_outer_block(program.current_block().parent):
            array = create_array(output.dtype)
        array.stop_gradient = output.stop_gradient
        return array_write(output, step, array)
    if not dims or any(d < 0 for d in dims[1:]):
        refuse(
            "outputs that decoder.step returned",
            output,
            "[batch, ...], of known dims but for the first",
            error=ShapeError,
        )
    number = output.dtype if output.dtype != "bool" else "int64"
    with in_outer_block(program.current_block().parent):
        buffer = fill_constant_batch_size_like(like, [limit + 1, -1, *dims[1:]], number, 0, output_dim_idx=1)
    row = unsqueeze(output if output.dtype == number else cast(output, number), [0])
    assign(scatter(buffer, step, row), output=buffer)
    return buffer
