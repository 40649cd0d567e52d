"""State in the forms that kernels would rather read: kept from run to run, and made again when it was written."""

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

MOST_BYTES = 1 << 30
"""Bytes of forms that are kept in the memory of a context; what does not fit is packed by its kernel at each run."""


class _Form:
    """One form of a piece of memory, for one context."""

    def __init__(self, source: Tensor, wanted: Form, context: Context) -> None:
        assert source.allocation is not None
        self.context = context
        self.nbytes, self._pack, _ = wanted
        self._source: Allocation = source.allocation  # held: another one cannot take its place unseen
        self._from = source.span()
        self._held = memory_of(context.place, context).alloc(self.nbytes, context)
        self.span = self._held.span()
        self._contents: object = None

    def renew(self) -> None:
        """Make it again, unless nobody can have written since it was made."""
        contents = self._source.contents
        if contents is None or contents != self._contents:
            self._contents = None  # if packing fails, it is not taken for made
            self._pack(self.context, self._from, self.span)
            self._contents = contents


_forms: WeakValueDictionary[Any, _Form] = WeakValueDictionary()
"""What executables have: those of several batch sizes share one form of a variable."""


class PackedState:
    """An action: makes the forms that one executable reads again, where state was written since.

    ``state``: what the program reads and does not write.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state
        self._forms: dict[_Form, Launch] = {}

    @property
    def empty(self) -> bool:
        """Whether no kernel reads a form."""
        return not self._forms

    def of(self, step: Launch, prepared: Prepared, context: Context) -> dict[str, Span] | None:
        """The forms of a launch's inputs by slot; those that are state, and that cannot be written unseen."""
        found = {}
        for slot, wanted in prepared.packed.items():
            at = step.call.index[slot]
            tensor = self._state.get(step.ins[at] or "")
            form = _form(tensor, wanted, context) if tensor is not None and tensor.spec == step.in_specs[at] else None
            if form is not None:
                self._forms.setdefault(form, step)
                found[slot] = form.span
        return found or None

    def __call__(self) -> None:
        for form, step in self._forms.items():
            try:
                form.renew()
            except Exception as exc:
                raise StepError(step) from exc


def _form(tensor: Tensor, wanted: Form, context: Context) -> _Form | None:
    allocation = tensor.allocation
    nbytes, _, key = wanted
    if not nbytes or allocation is None or allocation.contents is None or tensor.place != context.place:
        return None
    key = context, allocation, tensor.byte_offset, tensor.spec, nbytes, key
    form = _forms.get(key)
    if form is None:
        others = [each() for each in _forms.valuerefs()]  # a list at once: other threads add theirs
        kept = sum(each.nbytes for each in others if each is not None and each.context is context)
        if kept + nbytes > MOST_BYTES:
            return None
        try:
            form = _forms[key] = _Form(tensor, wanted, context)
        except OutOfMemoryError:
            return None
    return form
