"""Backward: gradient operators appended to a program, in reverse order of the forward ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fluidlite import unique_name
from fluidlite.base.arguments import listed
from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import GradientError
from fluidlite.framework.derived import gradient_rule, whole_rule
from fluidlite.framework.gradient_paths import (
    NoDerivativeError,
    Paths,
    find_paths,
    forward_part,
    free_inputs,
    refuse_missing,
    refuse_missing_output,
    stopped,
)
from fluidlite.framework.opdef import GRAD, GradRule
from fluidlite.framework.operator import EMPTY, Operator, grad_name
from fluidlite.framework.program import Block, Program
from fluidlite.framework.program_edit import sub_blocks
from fluidlite.framework.registry import ops
from fluidlite.framework.spec import Spec
from fluidlite.framework.undo import undone_on_error
from fluidlite.framework.variable import Parameter, Variable

Callback = Callable[..., None]


class GradMaker:
    """What a gradient function of an operator's definition appends with: ``grad(maker)``."""

    def __init__(self, backward: _Backward, op: Operator) -> None:
        self._backward = backward
        self.operator = op
        self.asked: set[str] = set()
        """Slots whose gradients the function has asked for."""
        self._finished = {name: backward.incoming(name) for name in op.output_arg_names}
        backward.begin(op)

    def count(self, slot: str) -> int:
        """Number of variables in a slot of the forward operator."""
        return len(self.operator.input(slot) or self.operator.output(slot))

    def spec(self, slot: str, i: int = 0) -> Spec:
        """Declared metadata of a forward variable."""
        names = self.operator.input(slot) or self.operator.output(slot)
        return self._backward.block.var(names[i])._spec()

    def attr(self, name: str) -> Any:
        """An attribute of the forward operator."""
        return self.operator.attrs[name]

    def input(self, slot: str, i: int = 0) -> str:
        """Name of what holds a forward input."""
        return self._backward.held(self.operator, slot, self.operator.input(slot)[i])

    def output(self, slot: str, i: int = 0) -> str:
        """Name of what holds a forward output."""
        return self._backward.held(self.operator, slot, self.operator.output(slot)[i])

    def output_grad(self, slot: str, i: int = 0) -> str:
        """Name of the gradient of a forward output; zeros are appended if nothing gave one."""
        self.asked.add(slot)
        name = self.operator.output(slot)[i]
        finished = self._finished[name]
        return finished if finished != EMPTY else self._backward.incoming(name, needed=True)

    def output_grads(self, slot: str) -> list[str]:
        """Names of the gradients of all variables of a forward output slot."""
        return [self.output_grad(slot, i) for i in range(self.count(slot))]

    def input_grad(self, slot: str, i: int = 0) -> str | None:
        """A name to write (a part of) the gradient of a forward input to, or None if it is not wanted."""
        self.asked.add(slot)
        name = self._backward.outgoing(self.operator, slot, self.operator.input(slot)[i])
        return None if name == EMPTY else name

    def temporary(self) -> str:
        """Name of a new variable, for what one operator that is appended hands to another."""
        return self._backward.block.create_temporary().name

    def op(
        self, type: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None
    ) -> None:
        """Append a gradient operator, unless none of its outputs is wanted (None)."""
        named = {slot: [EMPTY if name is None else name for name in _list(names)] for slot, names in outputs.items()}
        self._backward.append(self.operator, type, inputs, named, attrs)


class _Backward:
    def __init__(self, block: Block, paths: Paths, keep: set[str], callbacks: Sequence[Callback] = ()) -> None:
        self.block = block
        self.paths = paths
        self.keep = keep
        self.callbacks = callbacks
        self.parts: dict[str, list[str]] = {}
        self.renamed: dict[str, int] = {}
        self._pending_renames: dict[str, str] = {}
        self._bases: dict[str, str] = {}
        self._writers: dict[str, Operator] = {}
        self._forward: set[Operator] = set()
        self._positions: dict[Operator, int] = {}
        self._overwriters: dict[str, list[Operator]] = {}
        self._copies: dict[tuple[str, Operator], str] = {}
        self.results: dict[str, str] = {}

    def seed(self, name: str, gradient: str, writer: Operator | None = None) -> None:
        """Say that ``gradient``, which ``writer`` makes, holds the gradient of a target."""
        self.parts.setdefault(name, []).append(gradient)
        if writer is not None:
            self._writers[gradient] = writer

    def base(self, name: str) -> str:
        """Name of a variable's gradient: ``x@GRAD``, or a fresh one if an earlier backward has made that."""
        found = self._bases.get(name)
        if found is None:
            found = grad_name(name)
            if found in self.block.vars:
                found = unique_name.generate(found)
            self._bases[name] = found
        return found

    def begin(self, op: Operator) -> None:
        """What an operator writes has its gradient consumed; what the name held before begins one of its own."""
        for name in op.output_arg_names:
            if name in op.input_arg_names:  # in place: a gradient that is asked for is that of the value before
                self._forget(name)
            else:
                self._finish(name)

    def _forget(self, name: str) -> None:
        for part in self.parts.pop(name, ()):
            self._writers.pop(part, None)

    def _finish(self, name: str) -> None:
        """No earlier operator knows the value: keep its gradient if that is asked for, and the name for another's."""
        if name in self.keep and name not in self.results and self.parts.get(name):
            self.results[name] = self.incoming(name)
            self._bases[name] = unique_name.generate(grad_name(name))
            self.renamed.pop(name, None)
        self._forget(name)

    def incoming(self, name: str, needed: bool = False) -> str:
        """Name of an output's finished gradient; EMPTY, or zeros if it is needed, when nothing reads the output."""
        parts = self.parts.get(name)
        if not parts:
            if not needed or name == EMPTY:
                return EMPTY
            target = self._declare(name)
            self._append_raw("fill_zeros_like", {"X": [name]}, {"Out": [target]}, None, None)
            self.parts[name] = [target]
            return target
        if len(parts) > 1:
            target = self._declare(name)
            self._append_raw("sum", {"X": list(parts)}, {"Out": [target]}, None, None)
            self.parts[name] = [target]
        return self.parts[name][0]

    def _declare(self, name: str, gradient: str | None = None) -> str:
        gradient = gradient or self.base(name)
        forward = self.block.find_var(name)
        self.block.create_var(gradient)
        made = self.block.vars[gradient]
        if forward is not None and forward.spec is not None:
            made.declare(forward.spec)
        return gradient

    def outgoing(self, op: Operator, slot: str, name: str) -> str:
        """A name to write one more part of an input's gradient to; EMPTY if it is not wanted."""
        if name not in self.paths.into(op).get(slot, ()):
            return EMPTY
        parts = self.parts.setdefault(name, [])
        base = self.base(name)
        if not parts:
            parts.append(base)
        else:
            if parts == [base]:  # the first part gives its name up for the sum
                first = f"{base}@RENAME@0"
                self._rename_last(base, first, name)
                parts[0] = first
                self.renamed[name] = 0
            self.renamed[name] = self.renamed.get(name, 0) + 1
            parts.append(f"{base}@RENAME@{self.renamed[name]}")
        return self._declare(name, parts[-1])

    def _rename_last(self, old: str, new: str, name: str) -> None:
        self._declare(name, new)
        writer = self._writers.pop(old, None)
        if writer is not None:
            writer.rename_output(old, new)
            self._writers[new] = writer
        else:  # the operator that is being made names the variable twice
            self._pending_renames[old] = new

    def append(
        self,
        forward: Operator,
        type: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        attrs: Mapping[str, Any] | None,
    ) -> None:
        """Append a gradient operator of ``forward``."""
        if all(name == EMPTY for names in outputs.values() for name in _list(names)):
            return
        kept = {slot: names for slot, names in outputs.items() if any(name != EMPTY for name in _list(names))}
        self._append_raw(type, inputs, kept, attrs, forward)

    def _append_raw(
        self, type: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], attrs: Mapping[str, Any] | None,
        forward: Operator | None,
    ) -> None:  # fmt: skip
        renames, self._pending_renames = self._pending_renames, {}
        if forward is not None and "op_device" in forward.hints:  # a gradient runs where its operator does
            attrs = {**(attrs or {}), "op_device": forward.hints["op_device"]}
        outputs = {slot: [renames.get(n, n) for n in _list(names)] for slot, names in outputs.items()}
        made = self.block._insert(
            len(self.block.ops),
            type,
            inputs,
            outputs,
            attrs,
            role="backward",
            line=forward.line if forward is not None else None,
        )
        self._writers.update(dict.fromkeys(made.output_arg_names, made))
        for callback in self.callbacks:
            callback(block=self.block, context={n: n.split(GRAD)[0] for names in outputs.values() for n in names})

    def walk(self, operators: Sequence[Operator]) -> None:
        """Append the gradients of operators, last first."""
        self._forward = set(operators)
        self._positions = {op: at for at, op in enumerate(self.block.ops)}
        for op in self.block.ops:
            for name in op.output_arg_names:
                self._overwriters.setdefault(name, []).append(op)
        for op in reversed(operators):
            if not any(self.parts.get(name) for name in op.output_arg_names):
                continue
            into = self.paths.into(op)
            if not into:
                self._consume(op)
                continue
            if sub_blocks(op):
                raise GradientError(f"{op} runs a sub-block; its gradient is not defined")
            read = [
                (slot, name)
                for slot, names in op.outputs.items()
                if op.definition.stops(slot) is None
                for name in names
                if self.parts.get(name)
            ]
            rule = gradient_rule(op.definition)
            if not read:
                self._consume(op)
            elif rule is None:
                refuse_missing(op, into, ())
            elif isinstance(rule, GradRule):
                if not {slot for slot, _ in read} <= set(rule.outputs):
                    rule = whole_rule(op.definition) or rule
                refuse_missing(op, into, rule.writes)
                _name_outputs(op, rule)
                self._refuse_outputs(op, read, set(rule.outputs))
                self._by_rule(op, rule)
            else:
                maker = GradMaker(self, op)
                rule(maker)
                refuse_missing(op, into, maker.asked)
                self._refuse_outputs(op, read, maker.asked)

    def _refuse_outputs(self, op: Operator, read: Sequence[tuple[str, str]], taken: set[str]) -> None:
        """Raise GradientError if the gradient does not take what the target's derivative says of an output."""
        for slot, name in read:
            if slot not in taken:
                refuse_missing_output(op, self.paths.into(op), slot, name)

    def held(self, op: Operator, slot: str, name: str) -> str:
        """The variable that holds a value of a forward operator when backward runs.

        What an operator beside the forward ones overwrites later (an update of state, say) is copied before it.

        Raises
        ------
        GradientError
            If a forward operator overwrites it.
        """
        given = slot in op.inputs
        after = [
            other
            for other in self._overwriters.get(name, ())
            if self._positions[other] > self._positions[op] or (given and other is op)
        ]
        if not after:
            return name
        overwriting = next((other for other in after if other in self._forward), None)
        if overwriting is not None:
            raise GradientError(
                f"{op}: its gradient reads {slot} {name!r}, which {overwriting} overwrites"
                "\n  Do: write to a variable of another name"
            )
        key = name, after[0]
        if key not in self._copies:
            block = self.block
            made = self._copies[key] = block.create_temporary(prefix=f"{name}.held", stop_gradient=True).name
            at = block.ops.index(after[0])
            block._insert(at, "assign", {"X": [name]}, {"Out": [made]}, None, role="backward", line=op.line)
        return self._copies[key]

    def _consume(self, op: Operator) -> None:
        """An operator through which no derivative flows; state that it updates in place counts as one value."""
        for name in op.output_arg_names:
            if name not in op.input_arg_names:
                self._finish(name)

    def _by_rule(self, op: Operator, rule: GradRule) -> None:
        definition = ops.get(rule.type)
        inputs: dict[str, list[str]] = {}
        for slot in rule.read_for(self.paths.into(op)):
            base = rule.output_of(slot)
            if base is not None:
                declared = definition.input(slot)
                needed = declared is None or not declared.dispensable
                names = [self.incoming(name, needed) for name in op.output(base)]
                names = [name for name in names if name != EMPTY]
            else:
                declared = definition.input(slot)
                names = op.input(slot) or op.output(slot)
                if declared is None or not declared.metadata_only:
                    names = [self.held(op, slot, name) for name in names]
            if names:
                inputs[slot] = names
        self.begin(op)
        outputs = {
            slot + rule.suffix: [self.outgoing(op, slot, name) for name in op.input(slot)]
            for slot in rule.writes
            if op.input(slot)
        }
        if rule.attrs is not None:
            attrs = rule.attrs(op)
        else:
            attrs = {attr.name: op.attrs[attr.name] for attr in definition.attrs if attr.name in op.attrs}
        attrs = {name: value for name, value in attrs.items() if value is not None}
        self.append(op, rule.type, inputs, outputs, attrs)

    def result(self, name: str) -> str | None:
        """Name of the finished gradient of what a name holds last, or None."""
        if name in self.results:
            return self.results[name]
        return self.incoming(name) if self.parts.get(name) else None


def _name_outputs(op: Operator, rule: GradRule) -> None:
    """Give a forward operator variables for outputs that it was built without, and that its gradient reads."""
    definition = ops.get(rule.type)
    known = {slot.name: slot for slot in op.definition.outputs}
    missing = []
    for name in rule.reads:
        slot, read = known.get(rule.output_of(name) or name), definition.input(name)
        needed = read is not None and not read.dispensable and not op.input(name)
        if slot is not None and needed and not slot.duplicable and not op.output(slot.name):
            missing.append(slot.name)
    for slot_name in missing:
        made = op.block.create_temporary(prefix=f"{op.type}.{slot_name}", stop_gradient=True)
        op.outputs = {**op.outputs, slot_name: [made.name]}
    if missing:
        op.infer()
        op.block.program.touch()


def _list(names: Any) -> list[str]:
    return list(names) if isinstance(names, (list, tuple)) else [names]


def _names(items: Iterable[Variable | str] | None) -> set[str]:
    return {item if isinstance(item, str) else item.name for item in items or ()}


@contextmanager
def _undone_on_error(block: Block) -> Iterator[None]:
    """What is appended inside, or named of the operators there are, is taken back if something raises."""
    named = [(op, op.outputs) for op in block.ops]
    try:
        with undone_on_error(block):
            yield
    except BaseException:  # an interruption too
        for op, outputs in named:
            op.outputs = outputs
        block.program.touch()
        raise


def _append(
    loss: Variable, chosen: Sequence[Variable], leaves: set[str], blocked: set[str], callbacks: Sequence[Callback],
    needed: bool,
) -> list[tuple[Any, Variable]]:  # fmt: skip
    block, spec = loss.block, loss._spec()
    forward = forward_part(block, [loss.name])
    asked = {variable.name for variable in chosen}
    backward = _Backward(block, find_paths(forward, leaves - blocked, block, blocked), asked, callbacks)
    with block.program.roles("backward"), _undone_on_error(block):
        start = block.create_var(backward.base(loss.name))
        first = block.append_op(
            "fill_constant", {}, {"Out": start}, {"shape": list(spec.dims), "value": 1.0, "dtype": spec.dtype}
        )
        backward.seed(loss.name, start.name, first)
        backward.walk(forward)
        found = [(variable, backward.result(variable.name)) for variable in chosen]
        pairs = [(variable, block.var(name)) for variable, name in found if name is not None]
        if needed and not pairs:
            raise GradientError(
                f"the loss {loss.name!r} depends on none of the parameters {[v.name for v in chosen]}\n"
                "  Do: check stop_gradient, and that operators between have gradients"
            )
    return pairs


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | None = None,
    no_grad_set: Iterable[Variable | str] | None = None,
    callbacks: Sequence[Callback] | None = None,
) -> list[tuple[Parameter, Variable]]:
    """Append the operators that compute the gradients of a loss.

    Parameters
    ----------
    loss : Variable
        One element.
    parameter_list : list, optional
        The parameters wanted; default: all trainable ones. As in Fluid, it may name other variables too.
    no_grad_set : set, optional
        Variables through which no gradient flows.

    Returns
    -------
    list of (Parameter, gradient Variable)

    Raises
    ------
    GradientError
        If the loss is no single float, does not depend on any wanted parameter, or depends on a wanted one through an
        operator that has no derivative there. The block stays as it was.
    """
    if not isinstance(loss, Variable):
        raise GradientError(f"append_backward takes the loss as a Variable, got {type(loss).__name__}")
    block = loss.block
    program: Program = block.program
    spec = loss._spec()
    if spec.size != 1 or not is_float(spec.dtype):
        raise GradientError(
            f"the loss {loss.name!r} is {spec!r}; backward starts from one float"
            "\n  Do: reduce it, such as layers.mean(loss)"
        )
    if parameter_list is not None:
        chosen = [
            program.global_block().own(p, "parameter_list of append_backward")
            for p in listed(
                "parameter_list of append_backward", parameter_list, "parameters or their names", GradientError
            )
        ]
    else:
        chosen = [p for p in program.all_parameters() if p.trainable and not p.stop_gradient]
    blocked = _names(no_grad_set) | stopped(block)
    asked = {variable.name for variable in chosen}
    free = free_inputs(block) - asked
    while True:
        try:
            pairs = _append(loss, chosen, asked | free, blocked, callbacks or (), parameter_list is not None)
            break
        except NoDerivativeError as exc:
            if exc.origin not in free:
                raise
            free.discard(exc.origin)  # nobody has asked for it: it has no gradient, rather than a part of one
    return pairs


def _variables(argument: str, value: Any, *kinds: type) -> list[Any]:
    """One variable or several as a list, or GradientError."""
    items = (
        [value]
        if isinstance(value, Variable)
        else listed(f"{argument} of fluid.gradients", value, "a Variable, or a list of them", GradientError)
    )
    for item in items:
        if not isinstance(item, kinds or (Variable,)):
            raise GradientError(f"{argument} of fluid.gradients holds {item!r:.80}; expected a Variable")
    return items


def calc_gradient(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Iterable[Variable | str] | None = None,
) -> list[Variable | None]:
    """Append the operators that compute the gradients of targets with respect to inputs.

    Parameters
    ----------
    target_gradients : list, optional
        Gradients of the targets, of equal dims; None: ones.

    Returns
    -------
    list of Variable or None
        None where no target depends on the input, or only through ``stop_gradient`` and operators whose derivative is
        0 almost everywhere.

    Raises
    ------
    GradientError
        If a target depends on an input through an operator that has no derivative there: it names the operator, and
        its input. The block stays as it was.
    """
    outs, ins = _variables("targets", targets), _variables("inputs", inputs)
    given: list[Variable | None]
    if target_gradients is None:
        given = [None] * len(outs)
    else:
        given = list(_variables("target_gradients", target_gradients, Variable, type(None)))
    if len(given) != len(outs):
        raise GradientError(f"calc_gradient got {len(outs)} targets and {len(given)} target_gradients")
    if not outs:
        raise GradientError("calc_gradient needs at least one target")
    block = outs[0].block
    for what, variables in (("targets", outs), ("inputs", ins), ("target_gradients", given)):
        for variable in variables:
            if variable is not None:
                block.own(variable, f"{what} of fluid.gradients")
    names = {variable.name for variable in ins}
    blocked = (_names(no_grad_set) | stopped(block)) - names
    forward = forward_part(block, [variable.name for variable in outs])
    backward = _Backward(block, find_paths(forward, names, block, blocked), names)
    with block.program.roles("backward"), _undone_on_error(block):
        for target, gradient in zip(outs, given, strict=True):
            writer = None
            if gradient is None:
                zeros = block.create_temporary(target.dtype)
                gradient = block.create_var(backward.base(target.name))
                block.append_op("fill_zeros_like", {"X": target}, {"Out": zeros})
                writer = block.append_op("scale", {"X": zeros}, {"Out": gradient}, {"scale": 1.0, "bias": 1.0})
            elif len(gradient.shape) != len(target.shape) or any(
                a != b and -1 not in (a, b) for a, b in zip(gradient.shape, target.shape, strict=True)
            ):
                raise GradientError(
                    f"the gradient of {target.name!r} {list(target.shape)} has dims {list(gradient.shape)}"
                )
            elif gradient.dtype != target.dtype:
                raise GradientError(f"the gradient of {target.name!r}, {target.dtype}, is {gradient.dtype}")
            elif -1 in (*gradient.shape, *target.shape):  # kernels of gradients rely on dims: compare when it runs
                checked = block.create_var(backward.base(target.name))
                writer = block.append_op("assign_like", {"X": gradient, "Like": target}, {"Out": checked})
                gradient = checked
            backward.seed(target.name, gradient.name, writer)
        backward.walk(forward)
        found = [backward.result(variable.name) for variable in ins]
    return [block.var(name) if name is not None else None for name in found]


gradients = calc_gradient
