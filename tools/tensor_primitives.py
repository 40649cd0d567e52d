"""Writes docs/reference/tensor_primitives.md, the primitives of tensors and their rules, from the code's tables.

Derivatives and array calls are those of an example of each, as the code makes them.

python tools/tensor_primitives.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from pages import code, escape, line, settle, table

from fluidlite import expr as e
from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.expr import lowering
from fluidlite.expr.decompose import ELEMENTWISE, OPERATORS
from fluidlite.expr.derivative_rules import RULES, SCALAR_RULES
from fluidlite.expr.derivatives import derivatives
from fluidlite.expr.primitives import TENSOR_PRIMITIVES
from fluidlite.expr.steps import step_table
from fluidlite.expr.tensor import Tensor, constant, symbol
from fluidlite.expr.traced import Traced, trace, values_of
from fluidlite.render.arrays import array_code

PAGE = """\
# The primitives of tensors and their rules

Written by `tools/tensor_primitives.py` from the tables in `fluidlite/expr` and `fluidlite/render`; a test keeps it
true.

An operator's function ([define an operator](../define_an_operator.md)) is traced to an expression of primitives. Each
has one rule a kind: the dims and the dtype of its result; its derivative, which is an expression again; array calls;
and, for places that have a kernel language alone, the operator that it is, or how simpler primitives say it. Those of
scalars, which `map` applies to each element, have [a page of their own](primitives.md).

In the examples `x` and `y` are operands (`i` are indices, `o` offsets of segments), `d` the derivative of the result
`out`, and `xp` the array namespace; `H` holds functions made of what
[every namespace has](array_namespace.md). Sizes are those of operands: `x.0.1` is the size of axis 1 of x. `N[0]` is a
number of the call.
"""

OF_LOD = ("offsets", "arrange", "step_table")
"""Examples whose operand has a LoD."""
MATRIX, ROWS, INDEX = ((-1, -1), "float32"), ((-1,), "float32"), ((-1,), "int64")
EXAMPLES: dict[str, tuple[Mapping[str, Any], Callable[..., Tensor]]] = {
    "input": ({"x": MATRIX}, lambda x: x),
    "number": ({"x": MATRIX}, lambda x: x * constant(2, "float32")),
    "iota": ({"x": ROWS}, lambda x: e.iota(x.dims, 0)),
    "offsets": ({"x": MATRIX}, lambda x: e.offsets(x, 0)),
    "map": ({"x": MATRIX, "y": MATRIX}, lambda x, y: x * y),
    "cast": ({"x": MATRIX}, lambda x: e.cast(x, "float64")),
    "stop": ({"x": MATRIX}, lambda x: e.stop_gradient(x)),
    "reshape": ({"x": MATRIX}, lambda x: e.reshape(x, (-1,))),
    "transpose": ({"x": MATRIX}, lambda x: e.transpose(x, (1, 0))),
    "broadcast": ({"x": ((1, -1), "float32"), "y": MATRIX}, lambda x, y: e.broadcast(e.slice_axis(x, 0, 0, 1), y.dims)),
    "slice": ({"x": ROWS}, lambda x: e.slices(x, [1], [3], [2])),
    "pad": ({"x": ROWS}, lambda x: e.pad(x, [1], [2])),
    "concat": ({"x": ROWS, "y": ROWS}, lambda x, y: e.concat([x, y], 0)),
    "window": ({"x": ROWS}, lambda x: e.window(x, 0, 3, 2)),
    "unwindow": ({"x": MATRIX}, lambda x: e.unwindow(x, 0, 9, 2)),
    "reduce": ({"x": MATRIX}, lambda x: e.reduce_max(x, 1, keep=True)),
    "arg": ({"x": MATRIX}, lambda x: e.argmax(x, 1, keep=True)),
    "contract": ({"x": MATRIX, "y": MATRIX}, lambda x, y: e.contract(x, y, "ik,kj->ij")),
    "scan": ({"x": MATRIX}, lambda x: e.scan("sum", x, 1)),
    "recur": ({"x": MATRIX, "y": MATRIX}, lambda x, y: e.recur(x, y, 1)),
    "segment": ({"x": MATRIX, "o": INDEX}, lambda x, o: e.segment("sum", x, o)),
    "segment_of": ({"x": MATRIX, "o": INDEX}, lambda x, o: e.segment_of(o, x.dims[0])),
    "arrange": ({"x": MATRIX}, lambda x: e.arrange(x, e.offsets(x, 0))),
    "step_table": ({"x": MATRIX}, lambda x: step_table("order", False, e.offsets(x, 0), x.dims[0], x.dims[0])),
    "take": ({"x": MATRIX, "i": INDEX}, lambda x, i: e.take(x, i, 0)),
    "pick": ({"x": MATRIX, "i": ((-1, -1), "int64")}, lambda x, i: e.pick(x, i, 1)),
    "checked": ({"x": ROWS, "i": INDEX}, lambda x, i: e.checked(i, x.dims[0])),
    "add_at": ({"x": MATRIX, "i": INDEX}, lambda x, i: e.add_at(x, i, 0, 5)),
    "set_at": ({"x": MATRIX, "y": MATRIX, "i": INDEX}, lambda x, y, i: e.set_at(x, y, i, 0)),
    "put": ({"x": MATRIX, "i": ((-1, -1), "int64")}, lambda x, i: e.put(x, i, 1, 5)),
}


def said(x: Tensor, names: Mapping[Tensor, str]) -> str:
    """An expression as text."""
    if x in names:
        return names[x]
    if x.op == "number":
        return repr(x.params[0])
    name, params = (x.params[0], ()) if x.op == "map" else (x.op, x.params)
    given = [said(arg, names) for arg in x.args]
    return f"{name}({', '.join([*given, *map(_param, params)])})"


def _param(param: Any) -> str:
    if isinstance(param, tuple):
        return f"[{', '.join(map(_param, param))}]"
    return repr(param)


def traced(name: str, compute: Callable[[Mapping[str, Tensor]], Tensor]) -> Traced:
    """An example, of which ``compute`` makes the result."""
    operands = {slot: [one] for slot, one in EXAMPLES[name][0].items()}
    lod = {"x.0.lod0": None, "x.0.lod0.offsets": None}
    return trace(
        lambda given, _: {"out": compute({slot: each[0] for slot, each in given.items()})}, operands,
        values={**values_of(operands), **(lod if name in OF_LOD else {})},
    )  # fmt: skip


def floating(x: Tensor) -> bool:
    """Whether it may have a derivative."""
    return x.dtype.startswith("float")


def derivative(name: str) -> str:
    """The derivatives of an example's result with respect to its operands."""
    found: list[str] = []

    def compute(given: Mapping[str, Tensor]) -> Tensor:
        result = EXAMPLES[name][1](**given)
        sources = {slot: x for slot, x in given.items() if floating(x)}
        seed = symbol("d", 0, result.dims, result.dtype)
        names = {**{x: slot for slot, x in given.items()}, seed: "d", result: "out"}
        for slot, part in zip(sources, derivatives([result], [seed], list(sources.values())), strict=True):
            if part is not None and all(x is not result for x in sources.values()):
                found.append(f"d{slot} = {said(part, names)}")
        return result

    if name not in RULES:
        return "its use must write its gradient" if TENSOR_PRIMITIVES[name].operands != "none" else ""
    traced(name, compute)
    return "<br>".join(map(code, found)).replace("size:", "") or "none flows through"


def calls(name: str) -> str:
    """The array calls of an example."""
    made = array_code(traced(name, lambda given: EXAMPLES[name][1](**given)))
    text = "\n".join(line.strip() for line in made.source.splitlines()[1:]).replace("out0", "out")
    for k, (slot, _) in enumerate(made.operands):
        text = re.sub(rf"\ba{k}\b", slot, text)
    return "<br>".join(map(code, text.splitlines()))


def without_arrays(name: str) -> str:
    """What computes it on a place that has a kernel language alone."""
    rule = lowering.RULES.get(name)
    simpler = (inspect.getdoc(rule) or "simpler primitives") if rule is not None else ""
    if name in ELEMENTWISE:
        return "part of one elementwise kernel"
    told = escape(line(simpler[:1].lower() + simpler[1:]).rstrip("."))
    return "; otherwise: ".join(filter(None, ["an operator" if name in OPERATORS else "", told]))


def scalars() -> str:
    """The derivatives of scalar primitives, as a table."""
    rows: list[list[str]] = []

    def compute(given: Mapping[str, Tensor]) -> Tensor:
        a, b = given["x"], given["y"]
        out, d = (symbol(slot, 0, a.dims, a.dtype) for slot in ("out", "d"))
        condition = symbol("c", 0, a.dims, "bool")
        names = {a: "a", b: "b", out: "out", d: "d", condition: "c"}
        for name, rule in SCALAR_RULES.items():
            operands = {1: [a], 2: [a, b], 3: [condition, a, b]}[PRIMITIVES[name].arity]
            parts = rule(*operands, out, d)
            told = [f"d{names[x]} = {said(part, names)}" for x, part in zip(operands, parts, strict=True)
                    if part is not None]  # fmt: skip
            rows.append([code(f"out = {name}({', '.join(names[x] for x in operands)})"),
                         "<br>".join(map(code, told)) or "0: it is made of steps"])  # fmt: skip
        return a

    traced("map", compute)
    return table(["primitive", "derivative"], rows)


def page() -> str:
    text = PAGE
    for kind in dict.fromkeys(each.kind for each in TENSOR_PRIMITIVES.values()):
        names = [name for name, each in TENSOR_PRIMITIVES.items() if each.kind == kind]
        text += f"\n## {kind.capitalize()}\n\n"
        rows = [TENSOR_PRIMITIVES[name] for name in names]
        text += table(
            ["primitive", "operands", "parameters", "dims", "dtype"],
            ([code(name), *map(escape, row[1:5])] for name, row in zip(names, rows, strict=True)),
        )
        shown = [name for name in names if name in EXAMPLES]
        text += "\n" + table(
            ["primitive", "derivative", "array calls", "with a kernel language alone"],
            ([code(name), derivative(name), calls(name), without_arrays(name)] for name in shown),
        )
    return f"{text}\n## Derivatives of scalar primitives\n\n{scalars()}"


if __name__ == "__main__":
    settle({"tensor_primitives.md": page()}, "tensor_primitives")
