"""The global map of operators, and ``register_op``, which declares one."""

from __future__ import annotations

import difflib
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from fluidlite.base.bell import ensure_loaded
from fluidlite.base.epoch import epoch
from fluidlite.base.errors import OperatorNotFoundError, RegistryError
from fluidlite.base.fork import new_rlock
from fluidlite.base.plugin_modules import plugin_modules
from fluidlite.framework.opdef import (
    Attr,
    Constant,
    ExpressionRule,
    GradRule,
    Infer,
    OpDef,
    ScalarRule,
    Slot,
)
from fluidlite.framework.relayout import Rule

_TYPE = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*\Z")

HINTS = frozenset(
    {
        "op_role",
        "op_role_var",
        "op_namescope",
        "op_callstack",
        "op_device",
        "op_library",
        "use_cudnn",
        "use_mkldnn",
        "use_quantizer",
        "is_test",
        "force_cpu",
        "data_format",
        "workspace_size_MB",
        "exhaustive_search",
        "mkldnn_data_type",
        "fuse_with_relu",
    }
)
"""Attributes of Fluid that any operator takes: roles and hints. One that a definition declares is checked as such."""


class OpRegistry:
    """All operator definitions, by type."""

    def __init__(self) -> None:
        self.generation = 0
        self._ops: dict[str, OpDef] = {}
        self._noted: dict[str, OpDef] = {}
        self._hidden: dict[OpDef, OpDef] = {}
        self._lock = new_rlock()
        self.find_derived: Callable[[str], OpDef | None] = lambda type: None
        """Finds operators that are derived of others when they are first asked for."""

    def add(self, op: OpDef, override: bool = False) -> None:
        """Register a definition; the same type twice is an error that names both origins."""
        with self._lock:
            other = self._ops.get(op.type)
            if other is not None and other is not op and not override:
                raise RegistryError(
                    f"operator {op.type!r} is registered twice: at {other.origin} and at {op.origin}.\n"
                    "  Do: name it otherwise, or say override=True"
                )
            if other is not None and other is not op:
                self._hidden[op] = other
            self._ops[op.type] = op
            self.generation += 1
            epoch.begin()

    def remove(self, op: OpDef) -> None:
        """Take a definition out again."""
        with self._lock:
            hidden = self._hidden.pop(op, None)
            if self._ops.get(op.type) is op:
                del self._ops[op.type]
                if hidden is not None:  # what it overrode is back
                    self._ops[op.type] = hidden
                self.generation += 1
                epoch.begin()

    def note(self, op: OpDef) -> None:
        """Know a definition that programs hold and no place runs: it is found by its type, and listed nowhere."""
        self._noted[op.type] = op

    def find(self, type: str) -> OpDef | None:
        """The definition of that type, or None."""
        found = self._ops.get(type)
        if found is None:
            ensure_loaded()
            found = self._ops.get(type) or self._noted.get(type) or self.find_derived(type)
        return found

    def get(self, type: str) -> OpDef:
        """The definition of that type.

        Raises
        ------
        OperatorNotFoundError
            With the closest names.
        """
        found = self.find(type)
        if found is None:
            near = difflib.get_close_matches(str(type), self._ops, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise OperatorNotFoundError(f"no operator is called {type!r}{hint}\n  Do: fluidlite ops lists all")
        return found

    def __iter__(self) -> Iterator[OpDef]:
        ensure_loaded()
        return iter(sorted(self._ops.values(), key=lambda op: op.type))

    def __contains__(self, type: str) -> bool:
        return self.find(type) is not None

    def __len__(self) -> int:
        ensure_loaded()
        return len(self._ops)


ops = OpRegistry()
collecting = threading.local()
"""``collecting.found`` is a list while the loader imports a plugin's operators; None or absent otherwise."""


def declared_at(frame: FrameType) -> str:
    """Where an operator is declared, as file:line.

    The frame's line; or, where that is in a helper which declares for other modules of its package, the line of the
    module that calls the helper.
    """
    package, caller = frame.f_globals.get("__package__"), frame
    while caller.f_code.co_name != "<module>" and caller.f_back is not None:
        caller = caller.f_back
    if not package or caller.f_globals.get("__package__") != package:
        caller = frame
    return f"{caller.f_code.co_filename}:{caller.f_lineno}"


def _slots(slots: Iterable[Slot | str]) -> tuple[Slot, ...]:
    return tuple(slot if isinstance(slot, Slot) else Slot(slot) for slot in slots)


def register_op(
    type: str,
    *,
    inputs: Iterable[Slot | str] = (),
    outputs: Iterable[Slot | str] = (),
    attrs: Iterable[Attr] = (),
    infer: Infer | None = None,
    grad: GradRule | Callable[..., Any] | None = None,
    scalar: ScalarRule | None = None,
    expression: ExpressionRule | None = None,
    decompose: Callable[..., Any] | None = None,
    kernel_dtype: str | None = None,
    may_alias: Mapping[str, str] | None = None,
    must_alias: Mapping[str, str] | None = None,
    view: tuple[str, str] | None = None,
    host_only: str | None = None,
    random: bool = False,
    dynamic: bool = False,
    effect: bool = False,
    constant: Constant | None = None,
    run: Callable[..., None] | None = None,
    in_layout: Rule | None = None,
    marker: bool = False,
    dtypes: Mapping[str, tuple[str, ...]] | None = None,
    stop_gradient: Mapping[str, str] | None = None,
    no_gradient: Mapping[str, str] | None = None,
    doc: str = "",
    memory: str = "",
    source: str = "",
    version: int = 1,
    override: bool = False,
) -> OpDef:
    """Declare an operator, once.

    Parameters
    ----------
    type : str
        Its name, as in Fluid.
    inputs, outputs : slots
        In order; a text is a plain slot.
    attrs : attributes
        Typed, checked, with defaults.
    infer : callable
        ``infer(call) -> {output slot: Spec or list of Spec}``: pure; at build time dims may be -1, at bind time
        they are exact. It raises through ``call.fail`` and its siblings.
    grad : GradRule or callable
        ``grad(maker)`` appends gradient operators; see :mod:`fluidlite.framework.backward`.
    scalar : ScalarRule
        The operator as a function of scalars: kernels are generated from it.
    expression : ExpressionRule
        The operator as a function of tensors: its shapes, kernels and gradient follow from it.
    decompose : callable
        ``decompose(call, build)`` says it with other operators; see :mod:`fluidlite.framework.decompose`.
    kernel_dtype : str
        The slot whose dtype chooses the kernel (default: the first input's).
    may_alias, must_alias : mapping of output slot to input slot
        Pairs that may share memory; pairs that are one variable updated in place.
    view : (output slot, input slot)
        The output has the input's bytes under other dims.
    host_only : str
        Pins the operator to the host; the text is the reason.
    random, dynamic, effect : bool
        It draws random numbers; its outputs' dims depend on values (inference says -1, the kernel calls
        ``io.resize``); it does something besides writing its outputs, so that it runs even if nobody reads them.
    constant : callable
        ``constant(call) -> {output slot: numbers or None}``: what it writes, where metadata tells that. Operators
        that take the output as metadata (a slot with ``value=True``) then need no look at the device.
    in_layout : callable
        ``in_layout(call, layout) -> Relaid or None``: how it is said on memory that lies in a layout; for elementwise
        operators it is known.
    run : callable
        ``run(frame, op)`` of an operator without kernels (print, control flow): it takes tensors from
        ``frame.read(slot)`` and hands its own to ``frame.write(slot, tensors)``.
    marker : bool
        It only marks variables, and never runs (feed, fetch).
    dtypes : mapping of slot to tuple of str
        Dtypes a slot takes; anything else is a DtypeError at build time.
    stop_gradient : mapping of input or output slot to str
        Slots through which no derivative flows, and why: the derivative is 0 almost everywhere (a choice of an index,
        a count), or it stops there on purpose. Slots that are no floats, whose numbers are not read
        (``metadata_only``), or that update state in place (``must_alias``) need no entry.
    no_gradient : mapping of input or output slot to str
        Slots that have a derivative which ``grad`` does not give, and what a program can do instead: backward raises
        there with this text. It raises for any other slot that ``grad`` leaves out too.
    memory : str
        What its kernels allocate beside the outputs, and why, if that with the outputs is more than twice these.

    Raises
    ------
    RegistryError
        If the type is taken or malformed, or the declaration contradicts itself.
    """
    if not isinstance(type, str) or not _TYPE.match(type):
        raise RegistryError(f"{type!r} is not an operator type; use lower-case words, such as 'elementwise_add'")
    op = OpDef(
        type=type, inputs=_slots(inputs), outputs=_slots(outputs), attrs=tuple(attrs), infer=infer, grad=grad,
        scalar=scalar, expression=expression, decompose=decompose, kernel_dtype=kernel_dtype, may_alias=may_alias or {},
        must_alias=must_alias or {}, view=view, host_only=host_only, random=random, dynamic=dynamic, effect=effect,
        constant=constant, run=run, dtypes=dtypes or {}, doc=doc, memory=memory,
        source=source, version=version, marker=marker, in_layout=in_layout, origin=declared_at(sys._getframe(1)),
        stop_gradient=stop_gradient or {}, no_gradient=no_gradient or {},
    )  # fmt: skip
    for out, given in {**op.may_alias, **op.must_alias}.items():
        if op.output(out) is None or op.input(given) is None:
            raise RegistryError(f"operator {type!r}: alias {out!r} <- {given!r} names an unknown slot")
    if infer is None and run is None and not marker:
        raise RegistryError(f"operator {type!r} needs an inference function, or run(frame, op)")
    if isinstance(grad, GradRule):
        for name in grad.reads:
            base = grad.output_of(name)
            known = op.output(base) if base is not None else (op.input(name) or op.output(name))
            if known is None:
                raise RegistryError(f"operator {type!r}: its gradient reads unknown slot {name!r}")
        for name in grad.writes:
            if op.input(name) is None:
                raise RegistryError(f"operator {type!r}: its gradient writes unknown slot {name!r}")
            if name in op.stop_gradient or name in op.no_gradient:
                raise RegistryError(f"operator {type!r}: its gradient writes {name!r}, which is declared to have none")
        for name, slot in grad.only_for.items():
            if name not in grad.reads or slot not in grad.writes:
                raise RegistryError(f"operator {type!r}: its gradient reads {name!r} for {slot!r}, which are not both")
    for name in (*op.stop_gradient, *op.no_gradient):
        if op.input(name) is None and op.output(name) is None:
            raise RegistryError(f"operator {type!r}: {name!r}, declared to have no gradient, is an unknown slot")
    plugin = plugin_modules.declare((op, override), sys._getframe(1))
    found = getattr(collecting, "found", None)
    if found is not None:
        found.append((op, override))
    elif plugin is None or plugin in plugin_modules.loaded:  # else the plugin brings it when it is loaded
        ops.add(op, override)
    return op
