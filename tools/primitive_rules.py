"""Writes docs/reference/primitives.md, the rules of the primitives, from the table in fluidlite/codegen/primitives.py.

python tools/primitive_rules.py
"""

from __future__ import annotations

from pages import settle

from fluidlite.codegen.primitives import PRIMITIVES, Primitive

HEAD = """\
# The primitives and their rules

Written by `tools/primitive_rules.py` from the table in `fluidlite/codegen/primitives.py`.

Every elementwise operator, its gradient, and whatever is fused of them consist of these primitives. Each has several
renderings: calls of an array namespace, C that the CPU's compiler translates, OpenCL C, CUDA C. **What a primitive
gives does not depend on the rendering, nor on how many elements there are**, in these things:

- what is NaN, infinite or zero, and every sign (next to the largest and the smallest number, as far as the bound says);
- integers, which wrap: division by zero gives 0;
- comparisons, choices, and rounding to whole numbers;
- numbers below the least normal one, which count and are results like others.

Other results are off by no more than the bound of the table, in units in the last place (ulp) of the exact result; 0.5
is rounded correctly, 0 is exact. Below the least normal number, the unit is that of the least normal number. float16
and bfloat16 are computed in float32 and rounded: 0.5 ulp, and an eight-thousandth of float32's bound.

An expression of several primitives carries their errors on: a difference of numbers that are nearly equal is as far off
as they are. Numbers and float attributes alone are computed on the host, in float64, and rounded once.

A driver may be less exact: an OpenCL device that is no CPU uses its own `exp`, `log`, `pow`, `sin`, `cos` and `tanh`,
with the bounds of the OpenCL specification (3, 3, 16, 4, 4 and 5 ulp), and may round divisions and roots of float32
less well, or flush its numbers below the least normal one, if it says so.

| primitive | rule | float32 | float64 |
|---|---|---|---|
"""


def row(primitive: Primitive) -> str:
    """A line of the table."""
    if primitive.kind in ("compare", "logical", "test"):
        bounds = ("", "")
    else:
        bounds = (format(primitive.ulp[0], "g"), format(primitive.ulp[1], "g"))
    return f"| `{primitive.name}` | {primitive.rule} | {bounds[0]} | {bounds[1]} |\n"


def page() -> str:
    return HEAD + "".join(map(row, PRIMITIVES.values()))


if __name__ == "__main__":
    settle({"primitives.md": page()}, "primitives")
