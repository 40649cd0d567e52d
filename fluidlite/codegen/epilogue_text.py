"""Writes an epilogue in a kernel language's C, for matmul and convolution kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Union

from fluidlite.codegen.broadcast import pattern_of
from fluidlite.codegen.epilogue import epilogue_mismatch
from fluidlite.codegen.language_writer import ElementwiseWriter, slot_word
from fluidlite.codegen.lower import typed_of
from fluidlite.codegen.typed import Instr
from fluidlite.program.epilogue import then_call
from fluidlite.program.op_call import Call

PRODUCT_VARIABLE = "given"
"""The variable that holds an element of the product, rounded to its storage dtype."""


class EpilogueText(NamedTuple):
    """The texts and arguments with which a kernel computes an epilogue.

    Attributes
    ----------
    buffers : tuple of (name, dtype, written, slot)
        Pointers, and their slots of the call.
    numbers : tuple of (name, dtype, value)
    row : str
        Statements before a run of elements: ``first`` is the row-major index of its first element in the product.
    element : str
        Statements that compute element ``first + v`` of all outputs from ``given`` into ``result0[v]``, ...
    stores : str
        Statements that store them.
    results : tuple of str
        The types of ``result0``, ...
    """

    buffers: tuple[tuple[str, str, bool, str], ...]
    numbers: tuple[tuple[str, str, Any], ...]
    row: str
    element: str
    stores: str
    results: tuple[str, ...]


class _EpilogueWriter(ElementwiseWriter):
    """Writes an expression in which one input, the product, is a variable."""

    product_slot = ""

    def _text(self, instr: Instr, index: Mapping[str, str], element: str) -> str:
        if instr.op == "input" and instr.value == self.product_slot:
            return PRODUCT_VARIABLE
        return super()._text(instr, index, element)


def epilogue_refusal(call: Call, columns: int) -> Union[str, None]:
    """The reason why a kernel with runs of ``columns`` elements of a product cannot compute its epilogue, or None."""
    rule = call.op.epilogue
    assert rule is not None
    then = then_call(call)
    reason = epilogue_mismatch(call)
    if reason is not None or not then.is_static:
        return reason
    pattern = pattern_of(then, (rule.product_slot,))
    if columns and pattern.dims[-1] % columns:
        return "its epilogue reads parts of a row"
    return None


def epilogue_text(call: Call, language: Any) -> EpilogueText:
    """Write the epilogue of a call with known dims."""
    rule = call.op.epilogue
    assert rule is not None
    then = then_call(call)
    code = typed_of(then)
    pattern = pattern_of(then, (rule.product_slot,))
    writer = _EpilogueWriter(code, language, pattern, False)
    writer.product_slot = rule.product_slot
    last = len(pattern.dims) - 1
    dims = tuple(range(len(pattern.dims)))
    slots = [slot for slot in code.inputs if slot != rule.product_slot]
    mixed = [slot for slot in slots if any(pattern.flags[slot]) and not all(pattern.flags[slot])]
    long = language.types["int64"]
    row = ""
    if mixed:
        row = "\n".join(
            [
                f"const {long} outer = first / n{last}, inner = first - outer * n{last};",
                *writer.decode("outer", dims[:-1], mixed),
            ]
        )
    index = {}
    for slot in slots:
        if slot in mixed:
            index[slot] = f"x_{slot_word(slot)}" + (" + inner + v" if pattern.flags[slot][last] else "")
        else:
            index[slot] = "first + v" if all(pattern.flags[slot]) else "0"
    outs = list(code.outputs)
    lines = writer.statements([value for _, _, value in outs], index, "first + v")
    lines += [f"result{k}[v] = {writer.name(value)};" for k, (_, _, value) in enumerate(outs)]
    stores = [writer.store(slot, "first + v", f"result{k}[v]", dtype) for k, (slot, dtype, _) in enumerate(outs)]
    buffers = [(f"p_{slot_word(slot)}", code.inputs[slot], False, rule.inputs[slot]) for slot in slots]
    buffers += [(f"p_{slot_word(slot)}", dtype, True, rule.outputs[slot]) for slot, dtype, _ in outs]
    numbers: list[tuple[str, str, Any]] = [
        (f"s{k}", dtype, value)
        for k, ((_, dtype), value) in enumerate(zip(code.scalars, code.values(then.attrs), strict=True))
    ]
    if mixed:
        numbers += [(f"n{k}", "int64", pattern.dims[k]) for k in dims]
        for _, (slot, k) in writer.strides(mixed, dims):
            numbers.append((f"d_{slot_word(slot)}_{k}", "int64", pattern.strides(slot)[k]))
    results = tuple(writer.ctype(code.instrs[value].dtype) for _, _, value in outs)
    return EpilogueText(tuple(buffers), tuple(numbers), row, "\n".join(lines), "\n".join(stores), results)
