"""Backward: gradient operators appended to a program, in reverse order of the forward ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fluidlite import unique_name
from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import GradientError
from fluidlite.framework.opdef import GRAD, GradRule
from fluidlite.framework.operator import EMPTY, Operator, grad_name
from fluidlite.framework.program import Block, Program
from fluidlite.framework.program_edit import sub_blocks
from fluidlite.framework.registry import ops
from fluidlite.framework.spec import Spec
from fluidlite.framework.variable import Parameter, Variable

Callback = Callable[..., None]


class GradMaker:
    """What a gradient function of an operator's definition appends with: ``grad(maker)``."""

    def __init__(self, backward: _Backward, op: Operator) -> None:
        self._backward = backward
        self.operator = op
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
        """Name of a forward input."""
        return self.operator.input(slot)[i]

    def output(self, slot: str, i: int = 0) -> str:
        """Name of a forward output."""
        return self.operator.output(slot)[i]

    def output_grad(self, slot: str, i: int = 0) -> str:
        """Name of the gradient of a forward output; zeros are appended if nothing gave one."""
        name = self.operator.output(slot)[i]
        finished = self._finished[name]
        return finished if finished != EMPTY else self._backward.incoming(name, needed=True)

    def output_grads(self, slot: str) -> list[str]:
        """Names of the gradients of all variables of a forward output slot."""
        return [self.output_grad(slot, i) for i in range(self.count(slot))]

    def input_grad(self, slot: str, i: int = 0) -> str | None:
        """A name to write (a part of) the gradient of a forward input to, or None if it is not wanted."""
        name = self._backward.outgoing(self.operator.input(slot)[i])
        return None if name == EMPTY else name

    def op(
        self, type: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None
    ) -> None:
        """Append a gradient operator."""
        self._backward.append(self.operator, type, inputs, outputs, attrs)


class _Backward:
    def __init__(self, block: Block, wanted: set[str], blocked: set[str], callbacks: Sequence[Callback] = ()) -> None:
        self.block = block
        self.wanted = wanted
        self.blocked = blocked
        self.callbacks = callbacks
        self.parts: dict[str, list[str]] = {}
        self.renamed: dict[str, int] = {}
        self._pending_renames: dict[str, str] = {}
        self._bases: dict[str, str] = {}
        self._writers: dict[str, Operator] = {}
        self.keep: set[str] = set()

    def requires(self, name: str) -> bool:
        """Whether the gradient of a variable is wanted."""
        return name in self.wanted and name not in self.blocked

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
        """What an operator updates in place: its gradient is consumed, that of the value before begins."""
        for name in op.output_arg_names:
            if name in op.input_arg_names:
                for part in self.parts.pop(name, ()):
                    self._writers.pop(part, None)

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

    def outgoing(self, name: str) -> str:
        """A name to write one more part of an input's gradient to."""
        if not self.requires(name):
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
        writers: dict[str, list[Operator]] = {}
        for op in reversed(operators):
            for name in op.output_arg_names:
                writers.setdefault(name, []).append(op)
            if not any(self.parts.get(name) for name in op.output_arg_names):
                continue
            if not any(self.requires(name) for name in op.input_arg_names):
                self._consume(op)
                continue
            if sub_blocks(op):
                raise GradientError(f"{op} runs a sub-block; its gradient is not defined")
            rule = op.definition.grad
            if rule is None:
                self._consume(op)
                continue
            # What is read must be finished before the operator's own inputs take new parts under the same names.
            if callable(rule):
                rule(GradMaker(self, op))
            else:
                self._refuse_overwritten(op, rule, writers)
                self._by_rule(op, rule)

    def _refuse_overwritten(self, op: Operator, rule: GradRule, writers: Mapping[str, Sequence[Operator]]) -> None:
        """Raise GradientError if a value that the gradient reads is no longer there when backward runs.

        ``writers`` are the operators from this one on that write a name, the last one first.
        """
        definition = ops.get(rule.type)
        for slot in rule.reads:
            declared = definition.input(slot)
            if slot.endswith(GRAD) or (declared is not None and declared.metadata_only):
                continue
            given = op.input(slot)
            for name in given or op.output(slot):
                after = [other for other in writers.get(name, ()) if given or other is not op]
                if after:
                    raise GradientError(
                        f"{op}: its gradient reads {slot} {name!r}, which {after[-1]} overwrites"
                        "\n  Do: write to a variable of another name"
                    )

    def _consume(self, op: Operator) -> None:
        for name in op.output_arg_names:
            if name not in op.input_arg_names and name not in self.keep:
                self.parts.pop(name, None)

    def _by_rule(self, op: Operator, rule: GradRule) -> None:
        definition = ops.get(rule.type)
        inputs: dict[str, list[str]] = {}
        for slot in rule.reads:
            if slot.endswith(GRAD):
                base = slot.removesuffix(GRAD)
                declared = definition.input(slot)
                needed = declared is None or not declared.dispensable
                names = [self.incoming(name, needed) for name in op.output(base)]
                names = [name for name in names if name != EMPTY]
            else:
                names = op.input(slot) or op.output(slot)
            if names:
                inputs[slot] = names
        self.begin(op)
        outputs = {
            slot + GRAD: [self.outgoing(name) for name in op.input(slot)] for slot in rule.writes if op.input(slot)
        }
        if rule.attrs is not None:
            attrs = rule.attrs(op)
        else:
            attrs = {attr.name: op.attrs[attr.name] for attr in definition.attrs if attr.name in op.attrs}
        attrs = {name: value for name, value in attrs.items() if value is not None}
        self.append(op, rule.type, inputs, outputs, attrs)

    def result(self, name: str) -> str | None:
        """Name of the finished gradient of a leaf, or None."""
        return self.incoming(name) if self.parts.get(name) else None


def _list(names: Any) -> list[str]:
    return list(names) if isinstance(names, (list, tuple)) else [names]


def _names(items: Iterable[Variable | str] | None) -> set[str]:
    return {item if isinstance(item, str) else item.name for item in items or ()}


def _reachable(operators: Sequence[Operator], leaves: set[str], block: Block, blocked: set[str]) -> set[str]:
    """Variables that depend on the leaves through differentiable operators."""
    reached = set(leaves)
    for op in operators:
        if reached.isdisjoint(op.input_arg_names) or op.definition.grad is None:
            continue
        for name in op.output_arg_names:
            variable = block.find_var(name)
            if name in blocked or variable is None or variable.stop_gradient:
                continue
            if variable.spec is not None and not is_float(variable.spec.dtype):
                continue
            reached.add(name)
    return reached


def _stopped(block: Block) -> set[str]:
    found = set()
    scope: Block | None = block
    while scope is not None:
        found |= {name for name, variable in scope.vars.items() if variable.stop_gradient}
        scope = scope.parent
    return found


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
        If the loss is no single float, or does not depend on any wanted parameter.
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
        chosen = [program.global_block().var(p if isinstance(p, str) else p.name) for p in parameter_list]
    else:
        chosen = [p for p in program.all_parameters() if p.trainable and not p.stop_gradient]
    blocked = _names(no_grad_set) | _stopped(block)
    forward = _forward_part(block, [loss.name])
    leaves = {variable.name for variable in chosen} | _free_inputs(block)
    wanted = _reachable(forward, leaves - blocked, block, blocked)
    backward = _Backward(block, wanted, blocked, callbacks or ())
    with program.roles("backward"):
        start = block.create_var(backward.base(loss.name))
        first = block.append_op(
            "fill_constant", {}, {"Out": start}, {"shape": list(spec.dims), "value": 1.0, "dtype": spec.dtype}
        )
        backward.seed(loss.name, start.name, first)
        backward.walk(forward)
        pairs: list[tuple[Any, Variable]] = []
        for variable in chosen:
            gradient = backward.result(variable.name)
            if gradient is not None:
                pairs.append((variable, block.var(gradient)))
    if not pairs and parameter_list is not None:
        raise GradientError(
            f"the loss {loss.name!r} depends on none of the parameters {[v.name for v in chosen]}\n"
            "  Do: check stop_gradient, and that operators between have gradients"
        )
    return pairs


def _free_inputs(block: Block) -> set[str]:
    """Fed variables and others that nothing writes, through which gradients may flow (stop_gradient False)."""
    written = {name for op in block.ops for name in op.output_arg_names}
    found = set()
    for name, variable in block.vars.items():
        frozen = variable.stop_gradient or (isinstance(variable, Parameter) and not variable.trainable)
        if name not in written and not frozen and variable.spec is not None and is_float(variable.spec.dtype):
            found.add(name)
    return found


def _forward_part(block: Block, targets: Sequence[str]) -> list[Operator]:
    """Operators up to the last that writes a target, and that the targets depend on."""
    wanted = set(targets)
    kept = []
    for op in reversed(block.ops):
        if wanted.isdisjoint(op.output_arg_names):
            continue
        kept.append(op)
        wanted.update(op.input_arg_names)
    return kept[::-1]


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
        None where a target does not depend on the input.
    """
    outs: list[Variable] = [targets] if isinstance(targets, Variable) else list(targets)
    ins: list[Variable] = [inputs] if isinstance(inputs, Variable) else list(inputs)
    given: list[Variable | None]
    if target_gradients is None:
        given = [None] * len(outs)
    else:
        given = [target_gradients] if isinstance(target_gradients, Variable) else list(target_gradients)
    if len(given) != len(outs):
        raise GradientError(f"calc_gradient got {len(outs)} targets and {len(given)} target_gradients")
    if not outs:
        raise GradientError("calc_gradient needs at least one target")
    block = outs[0].block
    names = {variable.name for variable in ins}
    blocked = (_names(no_grad_set) | _stopped(block)) - names
    forward = _forward_part(block, [variable.name for variable in outs])
    wanted = _reachable(forward, names, block, blocked)
    backward = _Backward(block, wanted, blocked)
    backward.keep = names  # the gradient of an intermediate variable that was asked for
    with block.program.roles("backward"):
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
