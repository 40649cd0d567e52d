"""Choice: the kernel, or the parts of a decomposition, selected for one call on one place, with reasons of refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place
from fluidlite.program import codegen_registry as generated
from fluidlite.program.codegen_registry import generators
from fluidlite.program.decompose import DecompositionPart
from fluidlite.program.kernel_registry import Kernel
from fluidlite.program.op_call import Call
from fluidlite.program.prepared import Prepared
from fluidlite.program.widen import cast_bytes


@dataclass(frozen=True)
class Choice:
    """The result of kernel selection for a call.

    ``how``: native, generated, generic, decomposed, widened, fallback or pinned.
    ``library``: the library of the kernel; of a generated kernel, the capability.
    ``kernel``: None for generated kernels and decompositions.
    ``parts``: the calls of a decomposition, or of a computation in a wider dtype; ``part_choices``: their choices.
    ``refused``: the refused candidates with reasons.
    ``moved``: a fallback that saves copies between neighbours, although its own place has a kernel.
    """

    how: str
    place: Place
    library: str
    kernel: Kernel | None = None
    capability: str = ""
    parts: tuple[DecompositionPart, ...] = ()
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
        """The narrow dtype, the wide dtype, the kernel and the bytes of the casts of a widened call; else None."""
        if self.how != "widened":
            return None
        computing = next(i for i, part in enumerate(self.parts) if part.call.op.type != "cast")
        inner, dtype = self.part_choices[computing], self.parts[computing].call.key_dtype or ""
        narrow = next(part.call.dtype("X") for part in self.parts if part.call.op.type == "cast")
        return narrow, dtype, f"{inner.how} {inner.text}", cast_bytes(self.parts)

    @property
    def text(self) -> str:
        """The kernel or the parts, in short."""
        if self.parts:
            return " + ".join(part.call.op.type for part in self.parts)
        if self.kernel is None and not self.capability:
            return " + ".join(dict.fromkeys(choice.text for choice in self.part_choices)) or "no step"
        if self.kernel is None:
            return f"expression ({self.capability})"
        capability = (
            next((p for p in self.kernel.places if p in ("array", "language", "memory")), "") if self.capability else ""
        )
        return f"{self.library} ({capability})" if capability else self.library

    @property
    def guarded(self) -> bool:
        """Whether its kernel is predicated: it writes nothing once the error flag is set."""
        if self.kernel is not None:
            return self.kernel.predicated
        array = devices.unit(self.place).array if self.capability == "array" else None
        return array is None or not array.eager  # before calls of an eager namespace the host checks the flag

    @property
    def is_kernel_language(self) -> bool:
        """Whether its kernel is in the kernel language, written by hand or generated."""
        return self.capability == "language" or (self.kernel is not None and self.kernel.written_for == "registers")

    def indexes(self, call: Call) -> bool:
        """Whether its kernel checks indices, and sets the error flag if one is out of range."""
        return self.kernel.indexes if self.kernel is not None else generated.checks_indices(call)

    def inplace_slots(self, call: Call) -> Mapping[str, str]:
        """By output slot the input slot that it may overwrite in place, as the definition and the kernel allow."""
        definition = call.op
        if not definition.may_alias or (self.kernel is not None and not self.kernel.inplace):
            return definition.must_alias
        return {**self.aliasable_slots(call), **definition.must_alias}

    def aliasable_slots(self, call: Call) -> Mapping[str, str]:
        """By output slot the input slot that it may overwrite, as far as the kernel's order of accesses allows."""
        if self.kernel is None and self.capability:
            return generators[self.capability].aliasable_slots(call)
        return call.op.may_alias if self.kernel is not None or not call.of_tensors else {}

    @property
    def layouts(self) -> Mapping[str, str]:
        """The layouts that its kernel declares, by slot."""
        return self.kernel.layouts if self.kernel is not None else {}

    @property
    def inplace(self) -> bool:
        """Whether the kernel may overwrite an input in place where the definition allows it."""
        return self.kernel.inplace if self.kernel is not None else True
