"""The registry of operators, and ``register_op``, which declares one."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType

from fluidlite.base.arguments import did_you_mean
from fluidlite.base.errors import OperatorNotFoundError, RegistryError
from fluidlite.base.fork import new_rlock
from fluidlite.base.invalidation import cache_version
from fluidlite.base.plugin_callback import ensure_loaded
from fluidlite.base.plugin_modules import plugin_modules
from fluidlite.program.opdef import Attr, OpDef, Slot
from fluidlite.program.operator_options import (
    Aliasing,
    Differentiation,
    Execution,
    Inference,
    Lowering,
    Option,
    Options,
    Registration,
)
from fluidlite.program.rules import GradRule

_TYPE_PATTERN = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*\Z")

_DERIVED_FIELDS = ("reads", "dispensable", "only_for", "doc", "memory")
_EXPRESSION_FIELDS = ("library", "gradient_library", "stored", "decomposed")

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
"""Fluid's attributes that every operator accepts: roles and hints. One that a definition declares is checked."""


class OpRegistry:
    def __init__(self) -> None:
        self.generation = 0
        self._ops: dict[str, OpDef] = {}
        self._unlisted: dict[str, OpDef] = {}
        self._hidden: dict[OpDef, OpDef] = {}
        self._lock = new_rlock()
        self.find_derived: Callable[[str], OpDef | None] = lambda type: None
        """Finds derived operators, which are created on their first use."""

    def add(self, op: OpDef, override: bool = False) -> None:
        """Register a definition; a second definition of a type is an error that names both origins."""
        with self._lock:
            other = self._ops.get(op.type)
            if other is not None and other is not op and not override:
                raise RegistryError(
                    f"operator {op.type!r} is registered twice: at {other.origin} and at {op.origin}.\n"
                    "  Do: name it otherwise, or say Registration(override=True)"
                )
            if other is not None and other is not op:
                self._hidden[op] = other
            self._ops[op.type] = op
            self.generation += 1
            cache_version.invalidate()

    def remove(self, op: OpDef) -> None:
        with self._lock:
            hidden = self._hidden.pop(op, None)
            if self._ops.get(op.type) is op:
                del self._ops[op.type]
                if hidden is not None:  # restore the overridden definition
                    self._ops[op.type] = hidden
                self.generation += 1
                cache_version.invalidate()

    def note(self, op: OpDef) -> None:
        """Add a definition that programs contain but no place runs: it is found by its type, and not listed."""
        self._unlisted[op.type] = op

    def find(self, type: str) -> OpDef | None:
        definition = self._ops.get(type)
        if definition is None:
            ensure_loaded()
            definition = self._ops.get(type) or self._unlisted.get(type) or self.find_derived(type)
        return definition

    def get(self, type: str) -> OpDef:
        """Return the definition of that type, or raise OperatorNotFoundError with the closest names."""
        definition = self.find(type)
        if definition is None:
            suggestion = did_you_mean(type, self._ops, 3)
            raise OperatorNotFoundError(f"no operator is called {type!r}{suggestion}\n  Do: fluidlite ops lists all")
        return definition

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
"""``collecting.operators`` is a list while the loader imports a plugin's operators; None or absent otherwise."""


def declared_at(frame: FrameType) -> str:
    """Return the file:line of an operator's declaration.

    This is the frame's line; or, in a helper that declares operators for modules of its package, the line of the module
    that calls the helper.
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
    *options: Option,
    inputs: Iterable[Slot | str] = (),
    outputs: Iterable[Slot | str] = (),
    attrs: Iterable[Attr] = (),
    dtypes: Mapping[str, tuple[str, ...]] | None = None,
    doc: str = "",
    source: str = "",
) -> OpDef:
    """Declare an operator, once.

    Parameters
    ----------
    type : str
        Its name, as in Fluid.
    *options : Inference, Aliasing, Differentiation, Execution, Lowering, Registration
        Further properties, in any order, each at most once; see :mod:`fluidlite.program.operator_options`. An
        operator without ``Execution(run=...)`` needs an ``Inference``.
    inputs, outputs : slots
        In order; a text is a plain slot.
    attrs : attributes
        Typed, checked, with defaults.
    dtypes : mapping of slot to tuple of str
        Dtypes that a slot accepts; any other is a DtypeError at build time.
    doc, source : str
        Its computation, and the source of the formula.

    Raises
    ------
    RegistryError
        If the type is malformed or registered already, or the declaration contradicts itself.
    """
    if not isinstance(type, str) or not _TYPE_PATTERN.match(type):
        raise RegistryError(f"{type!r} is not an operator type; use lower-case words, such as 'elementwise_add'")
    opts = Options(f"operator {type!r}", options)
    inference, aliasing, differentiation = opts.get(Inference), opts.get(Aliasing), opts.get(Differentiation)
    execution, lowering, registration = opts.get(Execution), opts.get(Lowering), opts.get(Registration)
    opts.refuse(Differentiation, _DERIVED_FIELDS, "declare it with @operator, or its gradient with @gradient")
    opts.refuse(Lowering, _EXPRESSION_FIELDS, "declare it with @operator, or its gradient with @gradient")
    op = OpDef(
        type=type,
        inputs=_slots(inputs),
        outputs=_slots(outputs),
        attrs=tuple(attrs),
        grad=differentiation.rule,
        scalar=lowering.scalar,
        expression=lowering.expression,
        decompose=lowering.decompose,
        may_alias=aliasing.may,
        must_alias=aliasing.must,
        view=aliasing.view,
        dtypes=dtypes or {},
        doc=doc,
        source=source,
        version=registration.version,
        in_layout=lowering.in_layout,
        origin=declared_at(sys._getframe(1)),
        stop_gradient=differentiation.stop_gradient,
        no_gradient=differentiation.no_gradient,
        **vars(inference),
        **vars(execution),
    )
    _check(op)
    declared = (op, registration.override)
    plugin = plugin_modules.declare(declared, sys._getframe(1))
    collected = getattr(collecting, "operators", None)
    if collected is not None:
        collected.append(declared)
    elif plugin is None or plugin in plugin_modules.loaded:  # else the plugin registers it when it is loaded
        ops.add(*declared)
    return op


def _check(op: OpDef) -> None:
    type, grad = op.type, op.grad
    for out, source in [*op.may_alias.items(), *op.must_alias.items(), *((op.view,) if op.view else ())]:
        if op.output(out) is None or op.input(source) is None:
            raise RegistryError(f"operator {type!r}: alias {out!r} <- {source!r} names an unknown slot")
    if op.kernel_dtype is not None and op.input(op.kernel_dtype) is None and op.output(op.kernel_dtype) is None:
        raise RegistryError(f"operator {type!r}: kernel_dtype={op.kernel_dtype!r} is an unknown slot")
    if op.infer is None and op.run is None and not op.marker:
        raise RegistryError(
            f"operator {type!r} needs an inference function, or run(frame, op)"
            "\n  Do: give Inference(infer) or Execution(run=run)"
        )
    if isinstance(grad, GradRule):
        for name in grad.reads:
            base = grad.output_of(name)
            base_slot = op.output(base) if base is not None else (op.input(name) or op.output(name))
            if base_slot is None:
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
