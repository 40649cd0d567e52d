"""Generated kernels for the kernel language capability."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from operator import attrgetter, itemgetter
from typing import Any
from weakref import WeakKeyDictionary

from fluidlite.base.dtypes import HALVES
from fluidlite.base.lru_cache import LRUCache
from fluidlite.codegen.broadcast import Pattern, pattern_of
from fluidlite.codegen.kernel_source import Launch, launching
from fluidlite.codegen.language_writer import LANES, Source, Writer
from fluidlite.codegen.lower import alias_of, refusal, typed_of
from fluidlite.codegen.typed import Typed
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared

MANY = 1 << 17
"""Elements with operands that are broadcast that are worth several threads, where items are long runs."""

_sources: WeakKeyDictionary[Any, LRUCache[tuple[Source, ...]]] = WeakKeyDictionary()


@dataclass
class Step:
    """One launch: kernel, items, and where each argument comes from."""

    kernel: Any
    items: int
    group: int | None
    arguments: list[tuple[str, Any]]


class KernelLanguageGenerator:
    """Makes kernels of scalar expressions, which add nothing up, in a kernel language's C."""

    def refuse(self, call: Call, unit: Any) -> str | None:
        """Why no kernel can be generated, or None."""
        if unit.language is None:
            return "the device has no kernel language"
        reason = refusal(call, unit.info.dtypes)
        if reason is not None:
            return reason
        code = typed_of(call)
        for dtype in {*code.inputs.values(), *map(itemgetter(1), code.outputs), *map(attrgetter("dtype"), code.instrs)}:
            needed = "int16" if dtype in HALVES else dtype
            if needed not in unit.language.types:
                return f"the kernel language has no {dtype}"
        return None

    def may_lie_on(self, call: Call) -> Mapping[str, str]:
        """For output slots the input slots on which they may lie: each element is read before it is written."""
        return call.op.may_alias

    def prepare(self, call: Call, context: Any) -> Any:
        """Return ``run(context, io)``."""
        code = typed_of(call)
        pattern = pattern_of(call)
        assert not pattern.sums
        plain = _Plan(call, code, pattern, context, False)
        made: list[_Plan] = []

        def guard(context: Any) -> _Plan:
            if not made:
                made.append(_Plan(call, code, pattern, context, True))
            return made[0]

        return runner(plain, guard if alias_of(call) else None, call.index)


class _Plan:
    """The launches of one call."""

    def __init__(self, call: Call, code: Typed, pattern: Pattern, context: Any, guarded: bool) -> None:
        self.code, self.pattern = code, pattern
        self.scalars = code.values(call.attrs)
        self.steps: list[Step] = []
        self.sources: list[str] = []
        self._strides = {slot: pattern.strides(slot) for slot in pattern.flags}
        language = context.language
        cache = _sources.get(language) or _sources.setdefault(language, LRUCache(1024, "kernel texts", 32 << 20))
        writer = Writer(code, language, pattern, guarded)
        entry = "fl_" + call.op.type.replace(".", "_")
        full: dict[tuple[int, ...], list[tuple[str, str, int]]] = {}
        for output in code.outputs:
            full.setdefault(tuple(k for k, f in enumerate(pattern.flags[output[0]]) if f), []).append(output)
        # Large outputs first: those of fewer dims may be updated in place, and the large ones read them as they were.
        for dims, outputs in sorted(full.items(), key=lambda item: (-len(item[0]), item[0])):
            self._elementwise(writer, cache, entry, tuple(outputs), dims, context, guarded)

    def _add(self, source: Source, context: Any, items: int, group: int | None, elements: int = 0) -> None:
        kernel = context.compile(source.text, source.entry, source.parameters)
        arguments: list[tuple[str, Any]] = []
        for kind, what in source.arguments:
            if kind == "size":
                arguments.append(("number", self.pattern.dims[what]))
            elif kind == "stride":
                arguments.append(("number", self._strides[what[0]][what[1]]))
            elif kind == "scalar":
                arguments.append(("number", self.scalars[what]))
            elif kind in ("items", "elements"):
                arguments.append(("number", items if kind == "items" else elements))
            else:
                arguments.append((kind, what))
        self.steps.append(Step(kernel, items, group, arguments))
        self.sources.append(source.text)

    def _elementwise(
        self,
        writer: Writer,
        cache: LRUCache[tuple[Source, ...]],
        entry: str,
        outputs: tuple[tuple[str, str, int], ...],
        dims: tuple[int, ...],
        context: Any,
        guarded: bool,
    ) -> None:
        sizes = [self.pattern.dims[k] for k in dims]
        key = (self.code.key, tuple(self.pattern.flags.items()), guarded, entry, outputs, dims)
        (source,) = cache.get(key, lambda: (writer.elementwise(entry, outputs, dims),))
        kinds = {kind for kind, _ in source.arguments}
        if "size" not in kinds:
            self._add(source, context, -(-prod(sizes) // source.each), None, elements=prod(sizes))
        else:
            items = prod(sizes[:-1]) * -(-sizes[-1] // writer.run)
            long = writer.run > LANES and prod(sizes) >= MANY  # items that are worth a thread's while
            self._add(source, context, items, max(1, min(items // 64, 16)) if long else None)


def runner(plain: _Plan, guard: Callable[[Any], _Plan] | None, positions: Mapping[str, int]) -> Prepared:
    """Return what runs the launches: those that ``guard`` makes where a deferred error may be there."""

    def launches(context: Any, io: Any) -> list[Launch]:
        plan = guard(io.context) if guard is not None and getattr(context, "suspect", True) else plain
        found = []
        for step in plan.steps:
            args: list[Any] = []
            for kind, what in step.arguments:
                if kind == "number":
                    args.append(what)
                elif kind in ("in", "out"):
                    tensor = io.tensors[positions[what]]
                    if tensor.allocation is None:
                        tensor.allocate(context)
                    args += tensor.span()[:2]
                elif kind == "random":
                    args.append(io.random[what])
                else:
                    args += context.status_args()
            found.append((step.kernel, step.items, args, step.group))
        return found

    same = guard is None and "random" not in [kind for step in plain.steps for kind, _ in step.arguments]
    return launching(launches, same, source="\n".join(plain.sources))
