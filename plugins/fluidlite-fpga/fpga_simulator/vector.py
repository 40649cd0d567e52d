"""The vector unit: runs programs in postfix notation over broadcast arrays.

``x0`` is the first operand, ``s0`` the first scalar, ``2.5`` a number; other words are instructions. ``x0 0 max`` is a
ReLU; a program of two outputs leaves two values on the stack. An output with a dim of 1 where its value is larger
gets the sum over that dim, so that the gradient of a broadcast is one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Value = Any
INSTRUCTIONS: dict[str, tuple[int, Callable[..., Value]]] = {
    "+": (2, np.add),
    "-": (2, np.subtract),
    "*": (2, np.multiply),
    "/": (2, np.divide),
    "max": (2, np.maximum),
    "min": (2, np.minimum),
    ">": (2, np.greater),
    "<": (2, np.less),
    "==": (2, np.equal),
    "neg": (1, np.negative),
    "abs": (1, np.abs),
    "sign": (1, np.sign),
    "exp": (1, np.exp),
    "log": (1, np.log),
    "sqrt": (1, np.sqrt),
    "tanh": (1, np.tanh),
    "select": (3, np.where),
}
"""The number of operands of each instruction, and its function."""


def execute(
    program: str, operands: Sequence[NDArray[Any]], scalars: Sequence[float], dtype: np.dtype[Any]
) -> list[Value]:
    """Run a program and return the stack it leaves, bottom first."""
    stack: list[Value] = []
    for word in program.split():
        if word in INSTRUCTIONS:
            count, function = INSTRUCTIONS[word]
            if len(stack) < count:
                raise ValueError(f"{word!r} of {program!r} takes {count} values, there are {len(stack)}")
            arguments = stack[-count:]
            del stack[-count:]
            stack.append(function(*arguments))
        elif word[0] == "x" and word[1:].isdecimal():
            stack.append(operands[int(word[1:])])
        elif word[0] == "s" and word[1:].isdecimal():
            stack.append(dtype.type(scalars[int(word[1:])]))
        else:
            stack.append(dtype.type(float(word) if dtype.kind == "f" else int(word)))
    return stack


def store(out: NDArray[Any], value: Value) -> None:
    """Write a value to an output: broadcast, or summed (in float64) over the dims in which the output is 1."""
    summed_axes = tuple(i for i, n in enumerate(np.shape(value)) if n != 1 and out.shape[i] == 1)
    if summed_axes:
        value = np.sum(value, axis=summed_axes, keepdims=True, dtype=np.float64 if out.dtype.kind == "f" else out.dtype)
    out[...] = value
