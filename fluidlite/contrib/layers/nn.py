"""Layers of Fluid's ``contrib`` that combine other layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluidlite import layers, unique_name
from fluidlite.layer_helper import LayerHelper, check_int, check_variable, refuse
from fluidlite.program.variable import Variable

__all__ = [
    "batch_fc",
    "ctr_metric_bundle",
    "fused_elemwise_activation",
    "fused_embedding_seq_pool",
    "partial_concat",
    "partial_sum",
    "shuffle_batch",
]

_BINARY: dict[str, Callable[..., Variable]] = {
    "elementwise_add": layers.elementwise_add,
    "elementwise_mul": layers.elementwise_mul,
}


def fused_elemwise_activation(
    x: Variable,
    y: Variable,
    functor_list: str | Sequence[str],
    axis: int = -1,
    scale: float = 0.0,
    save_intermediate_out: bool = True,
) -> Variable:
    """Return the composition of a binary and a unary function.

    Parameters
    ----------
    x, y : Variable
    functor_list : list of str, or str
        "elementwise_add" or "elementwise_mul", and "scale", "relu" or "tanh". ``["relu", "elementwise_add"]`` is
        relu(x + y), and ``["elementwise_add", "relu"]`` is x + relu(y).
    axis : int
        Of the elementwise function.
    scale : float
        Of "scale".
    save_intermediate_out : bool
        No effect: the executor decides which values are kept.
    """
    unary: dict[str, Callable[[Variable], Variable]] = {
        "scale": lambda value: layers.scale(value, scale),
        "relu": layers.relu,
        "tanh": layers.tanh,
    }
    names = functor_list.split(",") if isinstance(functor_list, str) else list(functor_list)
    kinds = [name in _BINARY for name in names]
    if sorted(kinds) != [False, True] or not all(name in _BINARY or name in unary for name in names):
        refuse("functor_list", functor_list, f"one of {sorted(_BINARY)} and one of {sorted(unary)}")
    if kinds[0]:
        return _BINARY[names[0]](x, unary[names[1]](y), axis)
    return unary[names[0]](_BINARY[names[1]](x, y, axis))


def fused_embedding_seq_pool(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    padding_idx: int | None = None,
    combiner: str = "sum",
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """Return ``sequence_pool`` of an embedding: the pooled rows of each sequence's ids."""
    return layers.sequence_pool(
        layers.embedding(input, size, is_sparse, False, padding_idx, param_attr, dtype), combiner
    )


def partial_concat(input: Variable | Sequence[Variable], start_index: int = 0, length: int = -1) -> Variable:
    """Concatenate some columns of each input.

    Parameters
    ----------
    input : list of Variable
        [batch, width]; the inputs are equally wide.
    start_index : int
        The first column; negative: from the end.
    length : int
        Number of columns; -1: up to the last.
    """
    return layers.concat(_columns(input, start_index, length), axis=1)


def partial_sum(input: Variable | Sequence[Variable], start_index: int = 0, length: int = -1) -> Variable:
    """Return the sum of some columns of each input; the arguments are those of :func:`partial_concat`."""
    return layers.sums(_columns(input, start_index, length))


def _columns(input: Variable | Sequence[Variable], start_index: int, length: int) -> list[Variable]:
    variables = [check_variable("input", variable) for variable in ([input] if isinstance(input, Variable) else input)]
    widths = {variable.shape[1] if len(variable.shape) == 2 else -1 for variable in variables}
    if len(widths) != 1 or -1 in widths:
        refuse("input", input, "variables [batch, width], of one known width")
    width = widths.pop()
    start, count = check_int("start_index", start_index), check_int("length", length, -1)
    begin = start + width if start < 0 else start
    end = width if count == -1 else begin + count
    if not 0 <= begin < end <= width:
        refuse("start_index", (start, count), f"a first column and a length within {width} columns")
    return [layers.slice(variable, [1], [begin], [end]) for variable in variables]


def batch_fc(
    input: Variable,
    param_size: Sequence[int],
    param_attr: Any,
    bias_size: Sequence[int],
    bias_attr: Any,
    act: str | None = None,
) -> Variable:
    """Apply a separate fully connected layer to each slot of ``input`` [slots, batch, width].

    Parameters
    ----------
    input : Variable
    param_size : list of int
        [slots, width, units]
    bias_size : list of int
        [slots, units]
    param_attr, bias_attr : ParamAttr
    act : str, optional
    """
    weight = layers.create_parameter(param_size, input.dtype, attr=param_attr)
    bias = layers.create_parameter(bias_size, input.dtype, attr=bias_attr)
    product = layers.matmul(input, weight) + layers.unsqueeze(bias, [1])
    return LayerHelper("batch_fc", act=act).append_activation(product)


def shuffle_batch(x: Variable, seed: int | None = None) -> Variable:
    """Return the rows of ``x`` in a random order; all dims but the last count rows, and LoD levels stay.

    Parameters
    ----------
    x : Variable
        Its last dim is known.
    seed : int, optional
        A fixed seed, for the same order at every run; default: the program's seed, and another order at each run.
    """
    width = check_variable("x", x).shape[-1]
    rows = layers.reshape(x, [-1, width])
    line = layers.transpose(
        layers.slice(rows, [1], [0], [1]), [1, 0]
    )  # a row: the first dim would be the number of sequences
    number = 0 if seed is None else check_int("seed", seed)
    _, order = layers.argsort(
        layers.uniform_random_batch_size_like(line, [-1, 1], input_dim_idx=1, seed=number), axis=0
    )
    mixed = layers.gather(rows, layers.reshape(order, [-1]))
    shaped = mixed if len(x.shape) == 2 else layers.reshape(mixed, [-1, *x.shape[1:]])
    return layers.lod_reset(shaped, x) if x.lod_level else shaped


def ctr_metric_bundle(input: Variable, label: Variable) -> tuple[Variable, ...]:
    """Accumulate metrics of click prediction over runs.

    Parameters
    ----------
    input : Variable
        The predicted probabilities of a click, [batch, 1].
    label : Variable
        1 for a click, else 0, [batch, 1].

    Returns
    -------
    tuple of Variable
        Persistable, float32 [1]: the sums of squared errors, of absolute errors, of ``input``, of sigmoid(input), of
        labels, and the number of rows.
    """
    input, label = (
        layers.cast(check_variable(*argument), "float32") for argument in (("input", input), ("label", label))
    )
    error = input - label
    totals = []
    for name, terms in (
        ("sqrerr", layers.square(error)),
        ("abserr", layers.abs(error)),
        ("prob", input),
        ("q", layers.sigmoid(input)),
        ("pos_num", label),
        ("ins_num", layers.ones_like(label)),
    ):
        name = unique_name.generate(f"ctr_metric_bundle.local_{name}")
        total = layers.create_global_var([1], 0.0, "float32", persistable=True, name=name)
        totals.append(layers.sums([total, layers.reduce_sum(terms)], out=total))
    return tuple(totals)
