"""Generates elementwise kernels for devices with a kernel language."""

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
from fluidlite.codegen.kernel_source import Launch, prepared_launches
from fluidlite.codegen.language_writer import LANES, ElementwiseWriter, KernelText
from fluidlite.codegen.lower import alias_of, refusal, typed_of
from fluidlite.codegen.typed import Typed
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared

MIN_PARALLEL_ELEMENTS = 1 << 17
"""With broadcast operands, and items that are long runs, fewer elements run in one thread."""

_sources: WeakKeyDictionary[Any, LRUCache[KernelText]] = WeakKeyDictionary()


@dataclass
class KernelLaunch:
    """One launch: kernel, work-items, work-group size, and the source of each argument."""

    kernel: Any
    items: int
    group: int | None
    arguments: list[tuple[str, Any]]


class KernelLanguageGenerator:
    """Generates kernels of scalar expressions without reductions, in a kernel language's C."""

    def refuse(self, call: Call, unit: Any) -> str | None:
        """The reason why no kernel can be generated, or None."""
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

    def aliasable_slots(self, call: Call) -> Mapping[str, str]:
        """For output slots the input slots that they may alias: each element is read before it is written."""
        return call.op.may_alias

    def prepare(self, call: Call, context: Any) -> Any:
        """Return ``run(context, io)``."""
        code = typed_of(call)
        pattern = pattern_of(call)
        assert not pattern.sums
        plain = _Launches(call, code, pattern, context, False)
        cached: list[_Launches] = []

        def guard(context: Any) -> _Launches:
            if not cached:
                cached.append(_Launches(call, code, pattern, context, True))
            return cached[0]

        return runner(plain, guard if alias_of(call) else None, call.index)


class _Launches:
    """The launches of one call; ``predicated``: its kernels do nothing while the error flag is set."""

    def __init__(self, call: Call, code: Typed, pattern: Pattern, context: Any, predicated: bool) -> None:
        self.code, self.pattern = code, pattern
        self.scalars = code.values(call.attrs)
        self.launches: list[KernelLaunch] = []
        self.sources: list[str] = []
        self._strides = {slot: pattern.strides(slot) for slot in pattern.flags}
        language = context.language
        cache = _sources.get(language) or _sources.setdefault(language, LRUCache(1024, "kernel texts", 32 << 20))
        writer = ElementwiseWriter(code, language, pattern, predicated)
        entry = "fl_" + call.op.type.replace(".", "_")
        by_dims: dict[tuple[int, ...], list[tuple[str, str, int]]] = {}
        for output in code.outputs:
            by_dims.setdefault(tuple(k for k, f in enumerate(pattern.flags[output[0]]) if f), []).append(output)
        # Outputs with more dims first: those with fewer may be updated in place, and the others read the old values.
        for dims, outputs in sorted(by_dims.items(), key=lambda item: (-len(item[0]), item[0])):
            self._elementwise(writer, cache, entry, tuple(outputs), dims, context, predicated)

    def _add(self, source: KernelText, context: Any, items: int, group: int | None, elements: int = 0) -> None:
        kernel = context.compile(source.text, source.entry, source.parameters)
        arguments: list[tuple[str, Any]] = []
        for kind, value in source.arguments:
            if kind == "size":
                arguments.append(("number", self.pattern.dims[value]))
            elif kind == "stride":
                arguments.append(("number", self._strides[value[0]][value[1]]))
            elif kind == "scalar":
                arguments.append(("number", self.scalars[value]))
            elif kind in ("items", "elements"):
                arguments.append(("number", items if kind == "items" else elements))
            else:
                arguments.append((kind, value))
        self.launches.append(KernelLaunch(kernel, items, group, arguments))
        self.sources.append(source.text)

    def _elementwise(
        self,
        writer: ElementwiseWriter,
        cache: LRUCache[KernelText],
        entry: str,
        outputs: tuple[tuple[str, str, int], ...],
        dims: tuple[int, ...],
        context: Any,
        predicated: bool,
    ) -> None:
        sizes = [self.pattern.dims[k] for k in dims]
        key = (self.code.key, tuple(self.pattern.flags.items()), predicated, entry, outputs, dims)
        source = cache.get(key, lambda: writer.elementwise(entry, outputs, dims))
        kinds = {kind for kind, _ in source.arguments}
        if "size" not in kinds:
            self._add(source, context, -(-prod(sizes) // source.elements_per_item), None, elements=prod(sizes))
        else:
            items = prod(sizes[:-1]) * -(-sizes[-1] // writer.run)
            parallel = writer.run > LANES and prod(sizes) >= MIN_PARALLEL_ELEMENTS
            self._add(source, context, items, max(1, min(items // 64, 16)) if parallel else None)


def runner(plain: _Launches, guard: Callable[[Any], _Launches] | None, positions: Mapping[str, int]) -> Prepared:
    """Return the prepared kernel; ``guard`` makes predicated launches, for runs with a possible deferred error."""

    def launches(context: Any, io: Any) -> list[Launch]:
        variant = guard(io.context) if guard is not None and getattr(context, "may_have_error", True) else plain
        calls = []
        for launch in variant.launches:
            args: list[Any] = []
            for kind, value in launch.arguments:
                if kind == "number":
                    args.append(value)
                elif kind in ("in", "out"):
                    tensor = io.tensors[positions[value]]
                    if tensor.allocation is None:
                        tensor.allocate(context)
                    args += tensor._location()
                elif kind == "random":
                    args.append(io.random[value])
                else:
                    args += context.status_args()
            calls.append((launch.kernel, launch.items, args, launch.group))
        return calls

    same = guard is None and "random" not in [kind for launch in plain.launches for kind, _ in launch.arguments]
    return prepared_launches(launches, same, source="\n".join(plain.sources))
