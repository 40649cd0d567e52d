"""What ``prepare`` of a kernel gives, once for each call's metadata and context."""

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
"""A form in which a kernel would rather read an input: bytes, function, key; see :class:`Prepared`."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A kernel that is ready to run. ``prepare(call, context)`` may return ``run`` alone, if it has no more to say.

    Attributes
    ----------
    run : callable
        ``run(context, io)`` computes; it keeps no state between calls, for several threads may run it.
    workspace : int
        Bytes of scratch memory that each run finds in ``io.workspace``.
    bind : callable, optional
        ``bind(context, io)`` returns a function of no arguments that does what ``run(context, io)`` does, for operands
        whose memory stays where it is; or None, if it cannot.
    record : callable, optional
        ``record(recorder, io)`` notes the native calls that ``run`` would make, and returns True; or False, if they may
        be others at the next run.
    source : str
        The text that was generated, for people.
    function : callable, optional
        ``function(name)`` returns a Python function's text, and which operands are its arguments.
    packed : mapping of slot to (nbytes, pack, key)
        Inputs of one tensor that it would rather read in another form: its bytes, ``pack(context, source, target)``,
        which writes the form of one span to another and reads nothing else, and all that ``pack`` depends on beside
        dims and dtype; kernels of equal keys share a form. Where a compiled program only reads a variable, ``run``
        finds the form in ``io.packed(slot)``, made anew when the variable was written; everywhere else that is None.
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
    """Return what a kernel's ``prepare`` gave for a call as :class:`Prepared`.

    ``whose``: the kernel, as an error names it.
    Raises DeviceError if it is neither, or a function that carries ``workspace`` or ``bind``, which nobody would look
    at; or a number of bytes below 0, or a packed input that is none, or has no function.
    """
    if isinstance(prepared, Prepared):
        if isinstance(prepared.workspace, bool) or not isinstance(prepared.workspace, int) or prepared.workspace < 0:
            raise DeviceError(f"{whose} asks for {prepared.workspace!r} bytes of workspace; expected 0 or more")
        for slot, form in prepared.packed.items():
            nbytes, pack, _ = form if isinstance(form, tuple) and len(form) == 3 else (0, None, None)
            if not isinstance(nbytes, int) or nbytes < 0 or not callable(pack):
                raise DeviceError(f"{whose} wants {slot} packed as {form!r}; expected (0 bytes or more, function, key)")
            if len(call.ins.get(slot, ())) != 1:
                ones = [name for name, specs in call.ins.items() if len(specs) == 1]
                raise DeviceError(
                    f"{whose} wants {slot!r} packed; expected an input of one tensor: {', '.join(ones) or 'none'}"
                )
        return prepared
    if not callable(prepared):
        raise DeviceError(f"{whose} prepared {prepared!r}; expected run(context, io) or a Prepared")
    if any(hasattr(prepared, name) for name in ("workspace", "bind", "record")):
        raise DeviceError(
            f"{whose} prepared a function with attributes\n  Do: return Prepared(run, workspace=..., bind=...)"
        )
    return Prepared(prepared)
