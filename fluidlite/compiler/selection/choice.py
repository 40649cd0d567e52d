"""Choice: the kernel, or the parts, that were chosen for one call on one place, with the reasons of refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program import codegen_registry as generated
from fluidlite.program.codegen_registry import generators
from fluidlite.program.decompose import Part
from fluidlite.program.kernel_registry import Kernel
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared
from fluidlite.program.widen import cast_bytes


@dataclass(frozen=True)
class Choice:
    """Which kernel runs a call, where and how.

    ``how``: native, generated, generic, decomposed, widened, fallback or pinned.
    ``library``: of the kernel; for a generated one the capability.
    ``kernel``: None for a generated or decomposed one.
    ``parts``: of a decomposition, or of a call in a wider data type.
    ``refused``: candidates and reasons.
    ``moved``: a fallback for the sake of the copies around it: its own place has a kernel.
    """

    how: str
    place: Place
    library: str
    kernel: Kernel | None = None
    capability: str = ""
    parts: tuple[Part, ...] = ()
    part_choices: tuple[Choice, ...] = ()
    refused: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    moved: bool = False

    def prepare(self, call: Call, context: Any) -> Prepared:
        if self.kernel is not None:
            return self.kernel.prepare(call, context)
        if call.op.steps is not None:
            return generated.prepare_steps(call, self.part_choices, context)
        return generators[self.capability].prepare(call, context)

    @property
    def widened(self) -> tuple[str, str, str, int] | None:
        """Of a call in a wider data type: from which to which, the kernel that takes it, and the bytes of the casts."""
        if self.how != "widened":
            return None
        at = next(i for i, part in enumerate(self.parts) if part.call.op.type != "cast")
        kernel, dtype = self.part_choices[at], self.parts[at].call.key_dtype or ""
        narrow = next(part.call.dtype("X") for part in self.parts if part.call.op.type == "cast")
        return narrow, dtype, f"{kernel.how} {kernel.text}", cast_bytes(self.parts)

    @property
    def text(self) -> str:
        """The kernel in a word or two."""
        if self.parts:
            return " + ".join(part.call.op.type for part in self.parts)
        if self.kernel is None and not self.capability:
            return " + ".join(dict.fromkeys(choice.text for choice in self.part_choices)) or "no step"
        if self.kernel is None:
            return f"expression ({self.capability})"
        where = (
            next((p for p in self.kernel.places if p in ("array", "language", "memory")), "") if self.capability else ""
        )
        return f"{self.library} ({where})" if where else self.library

    @property
    def guarded(self) -> bool:
        """Whether its kernel itself writes nothing once the status word is set."""
        if self.kernel is not None:
            return self.kernel.predicated
        array = devices.unit(self.place).array if self.capability == "array" else None
        return array is None or not array.eager  # who calls NumPy looks before that

    @property
    def of_language(self) -> bool:
        """Whether its kernel is written in the kernel language, by hand or generated."""
        return self.capability == "language" or (self.kernel is not None and self.kernel.written_for == "registers")

    def indexes(self, call: Call) -> bool:
        """Whether its kernel checks indices, and sets the status word where one is out of range."""
        return self.kernel.indexes if self.kernel is not None else generated.checks_indices(call)

    def may_share(self, call: Call) -> Mapping[str, str]:
        """For output slots the input slots whose memory they may share: what the definition allows, and the kernel."""
        definition = call.op
        if not definition.may_alias or (self.kernel is not None and not self.kernel.inplace):
            return definition.must_alias
        return {**self.may_lie_on(call), **definition.must_alias}

    def may_lie_on(self, call: Call) -> Mapping[str, str]:
        """For output slots the input slots on which they may lie, as the definition allows and the kernel reads."""
        if self.kernel is None and self.capability:
            return generators[self.capability].may_lie_on(call)
        return call.op.may_alias if self.kernel is not None or not call.of_tensors else {}

    @property
    def layouts(self) -> Mapping[str, str]:
        """The layouts, by slot, that its kernel names."""
        return self.kernel.layouts if self.kernel is not None else {}

    @property
    def inplace(self) -> bool:
        """Whether an output may share memory with an input where the definition allows."""
        return self.kernel.inplace if self.kernel is not None else True
