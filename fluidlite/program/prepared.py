"""Prepared: the result of a kernel's ``prepare``, cached by the call's metadata and the context."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fluidlite.base.errors import DeviceError
from fluidlite.platform.device_memory import Span
from fluidlite.program.kernel_io import IO
from fluidlite.program.op_call import Call

Run = Callable[[Any, IO], Any]
Bind = Callable[[Any, IO], "Callable[[], Any] | None"]
Form = tuple[int, Callable[[Any, Span, Span], Any], Hashable]
"""The packed form of an input: bytes, packing function, key; see :class:`Prepared`."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A kernel that is ready to run. ``prepare(call, context)`` may return ``run`` alone if no other field is needed.

    Attributes
    ----------
    run : callable
        ``run(context, io)`` computes; it has no state between calls, because several threads may call it.
    workspace : int
        Bytes of scratch memory that each run gets in ``io.workspace``.
    bind : callable, optional
        ``bind(context, io)`` returns a function without arguments that is equivalent to ``run(context, io)``, for
        operands with static addresses; or None if this is impossible.
    record : callable, optional
        ``record(recorder, io)`` records the native calls that ``run`` would make, and returns True; or returns False if
        the next run may make other calls.
    source : str
        The generated source, for readers.
    function : callable, optional
        ``function(name)`` returns the text of a Python function, and the indices of the operands that it takes.
    packed : mapping of slot to (nbytes, pack, key)
        Inputs of one tensor with a packed form that it can read instead: the bytes of that form,
        ``pack(context, source, target)``, which writes it and reads only ``source``, and a key of all that ``pack``
        depends on besides dims and dtype; kernels with equal keys share it. If a compiled program only reads a
        variable, ``io.packed(slot)`` returns the form, repacked after the variable was written; otherwise None.
    """

    run: Run
    workspace: int = 0
    bind: Bind | None = None
    record: Callable[[Any, IO], bool] | None = None
    source: str = ""
    function: Callable[[str], tuple[str, Collection[int]]] | None = None
    packed: Mapping[str, Form] = field(default_factory=dict)

    def __call__(self, context: Any, io: IO) -> Any:
        """Run it."""
        return self.run(context, io)


def as_prepared(prepared: Any, call: Call, whose: str) -> Prepared:
    """Return the result of a kernel's ``prepare`` for a call as :class:`Prepared`.

    ``whose``: the kernel, as an error names it.
    Raises DeviceError if it is neither a function nor :class:`Prepared`, or a function with attributes ``workspace`` or
    ``bind``, which would be ignored; or if its workspace is negative, or a packed input is invalid.
    """
    if isinstance(prepared, Prepared):
        if isinstance(prepared.workspace, bool) or not isinstance(prepared.workspace, int) or prepared.workspace < 0:
            raise DeviceError(f"{whose} asks for {prepared.workspace!r} bytes of workspace; expected 0 or more")
        for slot, form in prepared.packed.items():
            nbytes, pack, _ = form if isinstance(form, tuple) and len(form) == 3 else (0, None, None)
            if not isinstance(nbytes, int) or nbytes < 0 or not callable(pack):
                raise DeviceError(f"{whose} wants {slot} packed as {form!r}; expected (0 bytes or more, function, key)")
            if len(call.ins.get(slot, ())) != 1:
                single = [name for name, specs in call.ins.items() if len(specs) == 1]
                raise DeviceError(
                    f"{whose} wants {slot!r} packed; expected an input of one tensor: {', '.join(single) or 'none'}"
                )
        return prepared
    if not callable(prepared):
        raise DeviceError(f"{whose} prepared {prepared!r}; expected run(context, io) or a Prepared")
    if any(hasattr(prepared, name) for name in ("workspace", "bind", "record")):
        raise DeviceError(
            f"{whose} prepared a function with attributes\n  Do: return Prepared(run, workspace=..., bind=...)"
        )
    return Prepared(prepared)
