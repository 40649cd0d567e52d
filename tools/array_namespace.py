"""Writes docs/reference/array_namespace.md, what an array namespace must and may have, from the code's lists.

python tools/array_namespace.py
"""

from __future__ import annotations

import textwrap

from pages import code, settle, table

from fluidlite.codegen.primitives import PRIMITIVES
from fluidlite.render.array_functions import OPTIONAL, REQUIRED, REQUIRED_DTYPES

PAGE = """\
# What an array namespace must have and may have

Written by `tools/array_namespace.py` from the lists in `fluidlite/render/array_functions.py`.

A place whose device returns an array namespace ([array_device.md](../array_device.md)) computes every operator that is
said as an expression by calls of it. A certificate begins with these lists: `fluidlite certify PLACE` fails at once
where something is missing that is needed, and names it.

## Functions that it must have

With the arguments of the [Array API standard](https://data-apis.org/array-api/): {count} functions.

Scalar primitives are these ([what each gives](primitives.md)):

{scalar}

Everything else is made of these:

{others}

## Data types that it must have

{dtypes}, and each dtype that `DeviceInfo(dtypes=...)` names, under that name (`xp.float64`), but for `float16` and
`bfloat16`: those are stored, and computed in float32.

## What its arrays must have

`shape`, `ndim`, `dtype`, and the standard's operators and indexing. They are written in place: `out[...] = value`,
assignment to slices, and `reshape(x, dims, copy=False)` of what is contiguous.

## What it may have

Each is used where it is there; where it is not, what stands beside it takes its place, with the same results.

{optional}
`scatter_add`, and other functions that are no part of a namespace, are asked of the device: `extra(name)`, see
[array_device.md](../array_device.md).

Opaque operators, such as sorting and beam search, are no expressions: their kernels use further functions of the
standard.
"""


def words(names: list[str]) -> str:
    """Names as code, in lines."""
    text = ", ".join(f"`{name}`" for name in names)
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def page() -> str:
    called = {name for each in PRIMITIVES.values() for name in (each.xp, each.xp_int)}
    scalar = [name for name in REQUIRED if name in called]
    others = [name for name in REQUIRED if name not in called]
    rows = [[code(name), fallback] for name, fallback in OPTIONAL.items()]
    return PAGE.format(
        dtypes=words(list(REQUIRED_DTYPES)),
        count=len(REQUIRED),
        scalar=words(scalar),
        others=words(others),
        optional=table(["function", "without it"], rows),
    )


if __name__ == "__main__":
    settle({"array_namespace.md": page()}, "array_namespace")
