"""Generates elementwise kernels of array calls for devices with an array namespace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from types import CodeType
from typing import Any

from fluidlite.base.lru_cache import LRUCache
from fluidlite.codegen import functions
from fluidlite.codegen.array import BLOCK, SPREAD_OPS, ArrayLayout, Emitted, OutEmitter, scratch_bytes
from fluidlite.codegen.array_api_emitter import PureEmitter
from fluidlite.codegen.array_text import function_text
from fluidlite.codegen.broadcast import Pattern, pattern_of, value_flags
from fluidlite.codegen.lower import alias_of, refusal, typed_of
from fluidlite.codegen.typed import Typed
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared

MIN_SPREAD_ELEMENTS = 2048
"""From this number of elements on, spreading a number operand to an array is faster."""

COMPOSITE_OPS = ("uniform", "gaussian", "erf", "gelu", "normcdf", "normpdf", "pow", "round")
"""Functions that consist of several array operations: they run in blocks even alone."""

_constants: LRUCache[Any] = LRUCache(32, "arrays of one number")
_emissions: LRUCache[tuple[Emitted, CodeType]] = LRUCache(2048, "array code", 32 << 20)


class Environment:
    """The environment that generated source reads once, when its ``make(env)`` is called."""

    partial = partial

    def __init__(self, context: Any, style: str) -> None:
        self.context, self.array = context, context.array
        self.xp = context.array.xp
        self.style = style
        self.blocked = False
        self.scalars: tuple[Any, ...] = ()

    def function(self, name: str) -> Any:
        """A function of the namespace; ``where`` takes ``out``, too, and a device may provide a faster one."""
        if name != "where" or self.style != "out":
            return getattr(self.xp, name)
        extra = self.array.extra("where")
        return extra if extra is not None else partial(functions.where, self.context)

    def helper(self, name: str) -> Any:
        """A function that the namespace lacks; it takes the namespace as first argument."""
        extra = self.array.extra(name) if name == "erf" else None
        return getattr(functions, name) if extra is None else lambda xp, x: extra(x)

    def dtype(self, name: str) -> Any:
        """A dtype of the namespace."""
        return functions.dtype_object(self.xp, name)

    @property
    def reshape(self) -> Callable[[Any, tuple[int, ...]], Any]:
        """The reshape function; in the ``out`` style it returns a view."""
        return _reshape if self.style == "out" else self.xp.reshape

    def spread(self, number: Any) -> Any:
        """An array filled with a number, as large as the problem or its block; problems share its memory."""
        volume = self.volume if self.blocked else self.size
        dims = self.block if self.blocked else self.dims
        if volume > BLOCK:
            return self.xp.full(dims, number, number.dtype)
        filled = _constants.get((number.dtype.str, number.tobytes()), lambda: self.xp.full(BLOCK, number, number.dtype))
        return filled[:volume].reshape(dims)

    def sizes(self, call: Call, pattern: Pattern, code: Typed, layout: ArrayLayout, emitted: Emitted) -> int:
        """Set the sizes of one problem; returns the workspace in bytes."""
        self.size = pattern.size
        self.dims = pattern.domain if layout.natural else pattern.dims
        self.shapes = {slot: pattern.shape(slot) for slot in pattern.flags}
        self.summed = {
            slot: tuple(d if a or k else 1 for d, a, k in zip(pattern.dims, adds, pattern.flags[slot], strict=True))
            for slot, adds in pattern.sums.items()
        }
        self.finals = {slot: call.dims(slot) for slot, _, _ in code.outputs}
        self.rows, *self.rest = pattern.dims
        self.inner = prod(self.rest)
        self.step = min(self.rows, max(1, BLOCK // max(self.inner, 1)))
        self.block = (self.step, *self.rest)
        self.volume = self.step * self.inner
        self.offsets = scratch_bytes(emitted.scratch, self.volume)
        return self.offsets[-1]


def _has_spread_numbers(code: Typed) -> bool:
    plain = ("const", "scalar")
    return any(i.op in SPREAD_OPS and any(code.instrs[arg].op in plain for arg in i.args) for i in code.instrs)


def _reshape(array: Any, dims: tuple[int, ...]) -> Any:
    return array.reshape(dims)


class ArrayGenerator:
    """Generates kernels of scalar expressions as array calls."""

    def refuse(self, call: Call, unit: Any) -> str | None:
        """The reason why no kernel can be generated, or None."""
        if unit.array is None:
            return "the device has no array namespace"
        return refusal(call, unit.array_dtypes)

    def aliasable_slots(self, call: Call) -> Mapping[str, str]:
        """For output slots the input slots that they may alias: each element is read before it is written."""
        return call.op.may_alias

    def prepare(self, call: Call, context: Any) -> Any:
        """Return ``run(context, io)``."""
        code = typed_of(call)
        pattern = pattern_of(call)
        capability = context.array
        alias = alias_of(call)
        predicated = bool(alias) and not capability.eager
        style = "out" if capability.out and not predicated else "pure"
        flags = value_flags(code.instrs, pattern.flags)
        sums_are_full = all(
            [all((*flags[value], *pattern.sums[slot])) for slot, _, value in code.outputs if slot in pattern.sums]
        )
        steps = sum([instr.op not in ("input", "const", "scalar") for instr in code.instrs])
        eager = style == "out" and capability.eager and sums_are_full
        spread = eager and pattern.size >= MIN_SPREAD_ELEMENTS and _has_spread_numbers(code)
        blocked = (
            eager and pattern.size > BLOCK and (steps > 1 or spread or any(i.op in COMPOSITE_OPS for i in code.instrs))
        )
        layout = ArrayLayout(
            {slot: call.index[slot] for slot in pattern.flags},
            pattern.flags,
            pattern.sums,
            pattern.natural and not blocked and not pattern.sums,
            blocked,
            alias,
            spread,
            predicated,
            style == "out" and capability.eager and pattern.size == 1,
        )
        layout_key = [tuple(each.items()) if isinstance(each, Mapping) else each for each in vars(layout).values()]
        key = (code.key, style, *layout_key)

        def make() -> tuple[Emitted, CodeType]:
            emitted = (OutEmitter if style == "out" else PureEmitter)(code, layout).emit()
            return emitted, compile(emitted.source, f"<fluidlite {call.op.type}>", "exec")

        emitted, compiled = _emissions.get(key, make)
        env = Environment(context, style)
        env.blocked = blocked
        env.scalars = code.values(call.attrs)
        workspace = env.sizes(call, pattern, code, layout, emitted)
        namespace: dict[str, Any] = {}
        exec(compiled, namespace)
        run, bind = namespace["make"](env)
        return Prepared(
            run,
            workspace,
            bind,
            source=emitted.source,
            function=lambda name: function_text(name, code, layout, emitted, env),
        )
