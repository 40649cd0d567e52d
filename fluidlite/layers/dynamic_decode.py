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
from fluidlite.layers.structure import flat, over, packed, same
from fluidlite.layers.sub_blocks import outside
from fluidlite.layers.tensor import (
    assign,
    cast,
    fill_constant,
    fill_constant_batch_size_like,
    increment,
    zeros_like,
)
from fluidlite.layers.tensor_array import array_write, create_array, tensor_array_to_tensor
from fluidlite.program.program import Program
from fluidlite.program.variable import Variable

MAX_STEPS = 10_000
"""Steps of a decoder that has no limit: one that never ends shall not run for ever."""


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
    """Return the outputs of a decoder's steps, which are repeated until all sequences have ended, and its last states.

    inits: A Variable, or a structure of Variables: given to ``decoder.initialize``
    max_step_num: The number of the last step, counted from 0: there are at most ``max_step_num + 1``, as in Fluid.
        None: as many as there are, to 10,000; more are an OutOfRangeError.
    output_time_major: Outputs are [steps, batch, ...]; else [batch, steps, ...]
    impute_finished: States of sequences that have ended stay as they were. A decoder that tracks itself what has ended,
        as beam search does, keeps them anyway.
    is_test: No gradient is taken through the steps: nothing is kept of them. With ``max_step_num`` too, outputs of all
        steps are one buffer; else they are a tensor array.
    return_length: Return also how many steps each sequence has
    kwargs: Given to each ``decoder.step``
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
    held = over(_held, [inputs, states])
    step = fill_constant([1], "int64", 0)
    more = layer("logical_not")(reduce_all(ended))
    loop = While(more, is_test=is_test, max_iterations=MAX_STEPS if limit is None else limit + 1)
    helper = LayerHelper("dynamic_decode")
    with loop.block():
        outputs, next_states, next_inputs, next_ended = decoder.step(step, *held, **kwargs)
        _same("states", held[1], next_states)
        _same("inputs", held[0], next_inputs)
        if decoder.tracks_own_finished:
            next_lengths = getattr(next_states, "lengths", lengths)
        else:
            next_ended = layer("logical_or")(next_ended, ended)
            next_lengths = lengths + cast(layer("logical_not")(ended), "int64")
        if impute_finished and not decoder.tracks_own_finished:  # there, what ended may lie elsewhere by now
            pairs = zip(flat(held[1]), flat(next_states), strict=True)
            next_states = packed(next_states, [_kept(old, new, ended) for old, new in pairs])
        buffers = over(lambda x: _append(helper.main_program, x, step, ended, limit if is_test else None), outputs)
        increment(step)
        write([*flat(held), ended, lengths], [*flat([next_inputs, next_states]), next_ended, next_lengths])
        going = layer("logical_not")(reduce_all(ended))
        if limit is not None:
            going = layer("logical_and")(going, layer("less_equal")(step, fill_constant([1], "int64", limit)))
        assign(going, output=more)
    whole = [_all(buffer, step) for buffer in flat(buffers)]
    whole = [x if x.dtype == of.dtype else cast(x, of.dtype) for x, of in zip(whole, flat(outputs), strict=True)]
    outputs, final_states = packed(outputs, whole), held[1]
    with suppress(NotImplementedError):
        outputs, final_states = decoder.finalize(outputs, final_states, lengths)
    if not output_time_major:
        outputs = over(lambda x: transpose(x, [1, 0, *range(2, len(x.shape))]), outputs)
    return (outputs, final_states, lengths) if return_length else (outputs, final_states)


def _all(held: Variable, steps: Variable) -> Variable:
    """Outputs of all steps, [steps, batch, ...]."""
    if held.is_array:
        return tensor_array_to_tensor(held, axis=0, use_stack=True)[0]
    return cut(held, [0], [0], [steps])


def _held(x: Any) -> Variable:
    """A variable that the loop writes, with the value that ``x`` has before it."""
    made = assign(check_variable("what decoder.initialize returned", x))
    made.stop_gradient = x.stop_gradient
    return made


def _same(what: str, old: Any, new: Any) -> None:
    """Refuse a step that returns another structure than it was given, or other dtypes and ranks."""
    if not same(old, new):
        raise ProgramError(f"decoder.step returned {what} of another structure than it was given; expected the same")
    for one, other in zip(flat(old), flat(new), strict=True):
        check_variable(f"{what} that decoder.step returned", other)
        if one.dtype != other.dtype or len(one.shape) != len(other.shape):
            raise ShapeError(
                f"decoder.step returned {other.dtype} {list(other.shape)} among its {what} in place of "
                f"{one.dtype} {list(one.shape)}; expected the same dtype and rank"
            )


def _kept(old: Variable, new: Variable, ended: Variable) -> Variable:
    """The old value of sequences that had ended, and the new one of others."""
    which = unsqueeze(cast(ended, "int32"), [1])
    alone = len(new.shape) == 1
    rows = [unsqueeze(x, [1]) if alone else x for x in (new, old)]
    made = multiplex(rows, which)  # chosen: a product would make NaN of what is left out
    return squeeze(made, [1]) if alone else made


def _append(program: Program, x: Any, step: Variable, like: Variable, limit: int | None) -> Variable:
    """Write a step's output, [batch, ...], into what holds those of all: an array, or a buffer of known size."""
    output = check_variable("outputs that decoder.step returned", x)
    dims = list(output.shape)
    if limit is None:
        with outside(program.current_block().parent):
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
    with outside(program.current_block().parent):
        buffer = fill_constant_batch_size_like(like, [limit + 1, -1, *dims[1:]], number, 0, output_dim_idx=1)
    row = unsqueeze(output if output.dtype == number else cast(output, number), [0])
    assign(scatter(buffer, step, row), output=buffer)
    return buffer
