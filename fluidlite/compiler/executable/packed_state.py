"""Packed state: copies of state in the layouts that kernels read, cached between runs and renewed after writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from fluidlite.base.errors import OutOfMemoryError
from fluidlite.compiler.planning.plan import Launch
from fluidlite.compiler.run_errors import StepError
from fluidlite.memory import memory_of
from fluidlite.memory.allocation import Allocation
from fluidlite.platform.context import Context
from fluidlite.platform.device_memory import Span
from fluidlite.program.prepared import Form, Prepared
from fluidlite.tensor.tensor import Tensor

MAX_PACKED_BYTES = 1 << 30
"""Maximum bytes of packed copies in the memory of one context; beyond it, kernels pack their inputs at each run."""


class _PackedCopy:
    """The packed copy of one tensor, in the memory of one context."""

    def __init__(self, source: Tensor, form: Form, context: Context) -> None:
        assert source.allocation is not None
        self.context = context
        self.nbytes, self._pack, _ = form
        self._source: Allocation = source.allocation  # a reference: its address is not reused meanwhile
        self._from = source.span()
        self._allocation = memory_of(context.place, context).alloc(self.nbytes, context)
        self.span = self._allocation.span()
        self._contents: object = None

    def renew(self) -> None:
        """Pack the source again, unless it cannot have been written since."""
        contents = self._source.contents
        if contents is None or contents != self._contents:
            self._contents = None  # stays invalid if packing fails
            self._pack(self.context, self._from, self.span)
            self._contents = contents


_copies: WeakValueDictionary[Any, _PackedCopy] = WeakValueDictionary()
"""Packed copies in use: executables of several batch sizes share that of a variable."""


class PackedState:
    """An action that renews the packed copies that one executable reads, where state was written since.

    ``state``: tensors that the program reads and does not write.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state
        self._copies: dict[_PackedCopy, Launch] = {}

    @property
    def empty(self) -> bool:
        """Whether no kernel reads a packed copy."""
        return not self._copies

    def of(self, step: Launch, prepared: Prepared, context: Context) -> dict[str, Span] | None:
        """Return the packed copies of a launch's inputs by slot, for inputs that are state whose writes are counted."""
        spans = {}
        for slot, form in prepared.packed.items():
            at = step.call.index[slot]
            tensor = self._state.get(step.ins[at] or "")
            copy = _copy_of(tensor, form, context) if tensor is not None and tensor.spec == step.in_specs[at] else None
            if copy is not None:
                self._copies.setdefault(copy, step)
                spans[slot] = copy.span
        return spans or None

    def __call__(self) -> None:
        for copy, step in self._copies.items():
            try:
                copy.renew()
            except Exception as exc:
                raise StepError(step) from exc


def _copy_of(tensor: Tensor, form: Form, context: Context) -> _PackedCopy | None:
    allocation = tensor.allocation
    nbytes, _, key = form
    if not nbytes or allocation is None or allocation.contents is None or tensor.place != context.place:
        return None
    key = context, allocation, tensor.byte_offset, tensor.spec, nbytes, key
    copy = _copies.get(key)
    if copy is None:
        forms = [each() for each in _copies.valuerefs()]  # list() first: other threads insert
        nbytes_in_use = sum(each.nbytes for each in forms if each is not None and each.context is context)
        if nbytes_in_use + nbytes > MAX_PACKED_BYTES:
            return None
        try:
            copy = _copies[key] = _PackedCopy(tensor, form, context)
        except OutOfMemoryError:
            return None
    return copy
