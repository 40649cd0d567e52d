"""Branches: ConditionalBlock and Switch on blocks, cond, case and switch_case on functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import LayerHelper, check_function, check_variable, refuse
from fluidlite.layers import ops
from fluidlite.layers.loops import check_condition
from fluidlite.layers.sub_blocks import control_flow, sub_block
from fluidlite.layers.tensor import fill_constant
from fluidlite.layers.utils import flatten, pack_sequence_as, same_structure
from fluidlite.program.block import Block
from fluidlite.program.variable import Variable
from fluidlite.program.variable_metadata import copy_operator


class ConditionalBlock:
    """A block that runs only if a condition holds.

    Parameters
    ----------
    inputs : list of Variable
        The condition, bool [1], if it is a scalar; else Variables that must not be empty.
    is_scalar_condition : bool
    name : str, optional

    Raises
    ------
    ProgramError
        If a scalar condition is not one bool; at a run, if the block does not run and a variable that it writes has no
        previous value.
    """

    def __init__(self, inputs: Sequence[Variable], is_scalar_condition: bool = False, name: str | None = None) -> None:
        if not isinstance(inputs, (list, tuple)) or not inputs:
            refuse("inputs", inputs, "a list of Variables")
        self.inputs = [check_variable("inputs", each) for each in inputs]
        self.is_scalar_condition = bool(is_scalar_condition)
        if self.is_scalar_condition:
            if len(self.inputs) != 1:
                refuse("inputs", inputs, "a list of one Variable: a scalar condition")
            check_condition("inputs", self.inputs[0])
        self.helper = LayerHelper("conditional_block", name=name)

    def block(self) -> AbstractContextManager[Block]:
        """Layers inside run if the condition holds."""
        return sub_block(self.helper.main_program, self._done)

    def _done(self, outer: Block, block: Block) -> None:
        attrs = {"is_scalar_condition": self.is_scalar_condition}
        control_flow(outer, "conditional_block", [block], "Input", {"Cond": self.inputs}, attrs)


class Switch:
    """Runs the first of several blocks whose condition holds.

    Parameters
    ----------
    name : str, optional

    Examples
    --------
    >>> with layers.Switch() as switch:
    ...     with switch.case(step < warmup):
    ...         layers.assign(low, output=rate)
    ...     with switch.default():
    ...         layers.assign(high, output=rate)

    Raises
    ------
    ProgramError
        If a case follows the default, there is no case before it, or a condition is no bool [1].
    """

    def __init__(self, name: str | None = None) -> None:
        self.helper = LayerHelper("switch", name=name)
        self._none_before: Variable | None = None
        self._has_default = False

    def __enter__(self) -> Switch:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        return None

    def case(self, condition: Variable) -> AbstractContextManager[Block]:
        """Layers inside run if this condition is the first that holds."""
        check_condition("condition", condition)
        if self._has_default:
            raise ProgramError("a case of Switch follows its default\n  Do: put the default last")
        case_condition = condition if self._none_before is None else ops.logical_and(self._none_before, condition)
        negated = ops.logical_not(condition)
        self._none_before = negated if self._none_before is None else ops.logical_and(self._none_before, negated)
        return ConditionalBlock([case_condition], is_scalar_condition=True).block()

    def default(self) -> AbstractContextManager[Block]:
        """Layers inside run if no condition holds."""
        if self._none_before is None or self._has_default:
            raise ProgramError("the default of Switch comes once, after one case or more")
        self._has_default = True
        return ConditionalBlock([self._none_before], is_scalar_condition=True).block()


def cond(
    pred: Variable,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """Return the result of ``true_fn()`` if ``pred`` holds, else that of ``false_fn()``; only that one runs.

    pred: bool [1]
    true_fn, false_fn: Return Variables, or lists, tuples and dicts of them, both of the same structure, dtypes and
        ranks; or None
    Returns: Variable, structure of Variables, or None
    Raises: ProgramError: If the functions return different structures, dtypes or ranks
    """
    check_condition("pred", pred)
    for argument, function in (("true_fn", true_fn), ("false_fn", false_fn)):
        check_function(argument, function, "a function without arguments, or None")
    program = LayerHelper("cond", name=name).main_program
    outer = program.current_block()
    branch_results: list[Any] = []
    blocks: list[Block] = []

    def done(_: Block, block: Block) -> None:
        blocks.append(block)

    for function in (true_fn, false_fn):
        with sub_block(program, done):
            branch_results.append(function() if function is not None else None)
    results = _merge_results(outer, branch_results, blocks)
    if any(block.ops for block in blocks):
        control_flow(outer, "conditional_block", blocks, "Input", {"Cond": [pred]}, {"is_scalar_condition": True})
    return results


def _merge_results(outer: Block, returned: Sequence[Any], blocks: Sequence[Block]) -> Any:
    """Create the variables that both branches write."""
    if returned[0] is None and returned[1] is None:
        return None
    if not same_structure(*returned) or any(leaf is None for leaf in (*flatten(returned[0]), *flatten(returned[1]))):
        raise ProgramError(
            f"true_fn of cond returned {_structure_text(returned[0])}, false_fn {_structure_text(returned[1])}; "
            "expected the same structure"
        )
    pairs = list(zip(flatten(returned[0]), flatten(returned[1]), strict=True))
    results = [outer.create_temporary(prefix="cond") for _ in pairs]
    for result, pair in zip(results, pairs, strict=True):
        for side, value in zip(("true_fn", "false_fn"), pair, strict=True):
            check_variable(f"what {side} returned", value)
        first, second = (variable._spec() for variable in pair)
        if first.dtype != second.dtype or len(first.dims) != len(second.dims):
            raise ProgramError(f"true_fn of cond returned {first!r}, false_fn {second!r}; expected one dtype and rank")
        for value, block in zip(pair, blocks, strict=True):
            block.append_op(copy_operator(value), {"X": value}, {"Out": result})
        dims = tuple(a if a == b else -1 for a, b in zip(first.dims, second.dims, strict=True))
        result.declare(first.with_(dims=dims, lod_level=max(first.lod_level, second.lod_level)))
    return pack_sequence_as(returned[0], results)


def _structure_text(structure: Any) -> str:
    leaves = flatten(structure)
    return f"{type(structure).__name__} of {len(leaves)}" if structure is not None else "None"


def case(
    pred_fn_pairs: Sequence[tuple[Variable, Callable[[], Any]]],
    default: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """Return the result of the function of the first condition that holds; of ``default`` if none does.

    default: Default: the last of the functions
    Returns: Variable, structure of Variables, or None
    Raises: ProgramError: If there are no pairs, or the functions return different structures, dtypes or ranks
    """
    if not isinstance(pred_fn_pairs, (list, tuple)) or not pred_fn_pairs:
        refuse("pred_fn_pairs", pred_fn_pairs, "a list of pairs of a condition and a function")
    for pair in pred_fn_pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not callable(pair[1]):
            refuse("pred_fn_pairs", pair, "a pair of a condition and a function")
        check_condition("pred_fn_pairs", pair[0])
    check_function("default", default, "a function without arguments, or None")
    pairs = list(pred_fn_pairs)
    last = default if default is not None else pairs.pop()[1]
    for condition, function in reversed(pairs):
        last = partial(cond, condition, function, last)
    return last()


def switch_case(
    branch_index: Variable,
    branch_fns: Mapping[int, Callable[[], Any]] | Sequence[Any],
    default: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """Return the result of the function with the number ``branch_index``; of ``default`` if there is none.

    branch_fns: By number: a dict of ints and functions, a list of functions, or pairs of both
    branch_index: uint8, int32 or int64 [1]
    default: Default: the function of the largest number
    Returns: Variable, structure of Variables, or None
    Raises: ProgramError: If the index is no integer, a number is repeated, or the functions return different
        structures
    """
    index = check_variable("branch_index", branch_index)
    if index.dtype not in ("uint8", "int32", "int64"):
        refuse("branch_index", index, "a Variable of uint8, int32 or int64")
    pairs = _numbered_functions(branch_fns)
    index64 = index if index.dtype == "int64" else index.astype("int64")
    cases = [(ops.equal(index64, fill_constant([1], "int64", number)), function) for number, function in pairs]
    return case(cases, default if default is not None else pairs[-1][1], name)


def _numbered_functions(branch_fns: Any) -> list[tuple[int, Callable[[], Any]]]:
    expected = "a dict of numbers and functions, a list of functions, or of pairs of both"
    if not isinstance(branch_fns, (list, tuple, dict)) or not branch_fns:
        refuse("branch_fns", branch_fns, expected)
    items: list[Any] = list(branch_fns.items()) if isinstance(branch_fns, dict) else list(branch_fns)
    if all(callable(item) for item in items):
        items = list(enumerate(items))
    for item in items:
        if not isinstance(item, (list, tuple)) or len(item) != 2 or type(item[0]) is not int or not callable(item[1]):
            refuse("branch_fns", item, expected)
    numbers = [number for number, _ in items]
    if len(set(numbers)) != len(numbers):
        raise ProgramError(f"branch_fns of switch_case has a number twice: {sorted(numbers)}")
    return sorted(((number, function) for number, function in items), key=lambda pair: pair[0])
