"""Backward: gradient operators appended to a program, in reverse order of the forward ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fluidlite.base.arguments import check_list, name_of
from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import GradientError
from fluidlite.program.block import Block
from fluidlite.program.derived import gradient_rule, whole_rule
from fluidlite.program.edit import has_declared_io, sub_blocks
from fluidlite.program.gradient_maker import GradMaker, name_outputs
from fluidlite.program.gradient_parts import Callback, GradientParts
from fluidlite.program.gradient_paths import (
    NoDerivativeError,
    Paths,
    blocked_variables,
    find_paths,
    forward_part,
    free_inputs,
    refuse_missing,
    refuse_missing_output,
)
from fluidlite.program.operator import EMPTY, Operator
from fluidlite.program.program import Program
from fluidlite.program.registry import ops
from fluidlite.program.rows_gradients import look_up_by_rows
from fluidlite.program.rules import GradRule
from fluidlite.program.undo import undone_on_error
from fluidlite.program.variable import Parameter, Variable
from fluidlite.program.variable_metadata import copy_operator
from fluidlite.tensor.tensor_spec import all_dims_compatible


class Backward(GradientParts):
    """Visits operators from the last to the first, and appends the gradient operators of each."""

    def __init__(
        self, block: Block, paths: Paths, keep: set[str], callbacks: Sequence[Callback] = (), by_rows: bool = False
    ) -> None:
        super().__init__(block, keep, callbacks)
        self.by_rows = by_rows
        self.paths = paths
        self.forward: set[Operator] = set()
        self._positions: dict[Operator, int] = {}
        self._overwriters: dict[str, list[Operator]] = {}
        self._copies: dict[tuple[str, Operator], str] = {}

    def outgoing(self, op: Operator, slot: str, name: str) -> str:
        """Return the variable for a new partial gradient of an input; EMPTY if that gradient is not needed."""
        return self.new_part(name) if name in self.paths.into(op).get(slot, ()) else EMPTY

    def walk(self, operators: Sequence[Operator]) -> None:
        """Append the gradient operators of operators, the last operator first."""
        self.forward = set(operators)
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
            if self.by_rows and look_up_by_rows(self, op):
                continue
            if sub_blocks(op) and not has_declared_io(op):
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
                name_outputs(op, rule)
                self._refuse_outputs(op, read, set(rule.outputs))
                self._by_rule(op, rule)
            else:
                maker = GradMaker(self, op)
                with op.definition.attribute_errors(f"{op}: its gradient rule", GradientError):
                    rule(maker)
                refuse_missing(op, into, maker.differentiated_slots)
                self._refuse_outputs(op, read, maker.differentiated_slots)

    def _refuse_outputs(self, op: Operator, read: Sequence[tuple[str, str]], accepted_slots: set[str]) -> None:
        """Raise GradientError if the gradient operator ignores an output that the target depends on."""
        for slot, name in read:
            if slot not in accepted_slots:
                refuse_missing_output(op, self.paths.into(op), slot, name)

    def forward_value(self, op: Operator, slot: str, name: str) -> str:
        """Return the variable that holds a value of a forward operator when backward runs.

        A value that an operator outside of the forward part overwrites later (an update of state) is copied first.

        Raises GradientError if a forward operator overwrites it.
        """
        is_input = slot in op.inputs
        later_writers = [
            writer
            for writer in self._overwriters.get(name, ())
            if self._positions[writer] > self._positions[op] or (is_input and writer is op)
        ]
        if not later_writers:
            return name
        overwriter = next((writer for writer in later_writers if writer in self.forward), None)
        variable = self.block.find_var(name)
        if overwriter is not None and (variable is None or variable.spec is None or is_float(variable.dtype)):
            raise GradientError(
                f"{op}: its gradient reads {slot} {name!r}, which {overwriter} overwrites"
                "\n  Do: write to a variable of another name"
            )
        key = name, later_writers[0]
        if key not in self._copies:
            block = self.block
            copy_name = self._copies[key] = block.create_temporary(prefix=f"{name}.held", stop_gradient=True).name
            at = block.ops.index(later_writers[0])
            block._insert(
                at,
                copy_operator(block.var(name)),
                {"X": [name]},
                {"Out": [copy_name]},
                None,
                role="backward",
                line=op.line,
            )
        return self._copies[key]

    def _consume(self, op: Operator) -> None:
        """Finish the gradients of an operator without derivatives; state updated in place counts as one value."""
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
                needed = needed or any(self.parts.get(name) for name in op.output(base))  # one of a list: all of it
                names = [self.incoming(name, needed) for name in op.output(base)]
                names = [name for name in names if name != EMPTY]
            else:
                declared = definition.input(slot)
                names = op.input(slot) or op.output(slot)
                if declared is None or not declared.metadata_only:
                    names = [self.forward_value(op, slot, name) for name in names]
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
        self.append(rule.type, inputs, outputs, attrs, op)


def _names(items: Iterable[Variable | str] | None) -> set[str]:
    variables = check_list("no_grad_set", items if items is not None else (), "variables or names")
    names = [name_of(item) for item in variables]
    if None in names:
        raise GradientError(f"no_grad_set is {items!r:.80}; expected variables or names")
    return {name for name in names if name is not None}


@contextmanager
def _undone_on_error(block: Block) -> Iterator[None]:
    """Remove appended operators and restore the outputs of existing operators if the block raises."""
    old_outputs = [(op, op.outputs) for op in block.ops]
    try:
        with undone_on_error(block):
            yield
    except BaseException:  # an interruption too
        for op, outputs in old_outputs:
            op._outputs = outputs
        block.program.touch()
        raise


def _append(
    loss: Variable,
    variables: Sequence[Variable],
    leaves: set[str],
    blocked: set[str],
    callbacks: Sequence[Callback],
    needed: bool,
    by_rows: bool,
) -> list[tuple[Any, Variable]]:
    block, spec = loss.block, loss._spec()
    forward = forward_part(block, [loss.name])
    requested = {variable.name for variable in variables}
    backward = Backward(block, find_paths(forward, leaves - blocked, block, blocked), requested, callbacks, by_rows)
    with block.program.roles("backward"), _undone_on_error(block):
        start = block.create_var(backward.base(loss.name))
        first = block.append_op(
            "fill_constant", {}, {"Out": start}, {"shape": list(spec.dims), "value": 1.0, "dtype": spec.dtype}
        )
        backward.seed(loss.name, start.name, first)
        backward.walk(forward)
        results = [(variable, backward.result(variable.name)) for variable in variables]
        for name in backward.parts:  # so that other gradients can be fetched as x@GRAD
            backward.incoming(name)
        pairs = [(variable, block.var(name)) for variable, name in results if name is not None]
        if needed and not pairs:
            raise GradientError(
                f"the loss {loss.name!r} depends on none of the parameters {[v.name for v in variables]}\n"
                "  Do: check stop_gradient, and that operators between have gradients"
            )
    return pairs


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | None = None,
    no_grad_set: Iterable[Variable | str] | None = None,
    callbacks: Sequence[Callback] | None = None,
    *,
    by_rows: bool = False,
) -> list[tuple[Parameter, Variable]]:
    """Append the operators that compute the gradients of a loss.

    Parameters
    ----------
    loss : Variable
        One element.
    parameter_list : list, optional
        The parameters to differentiate by; default: all trainable ones. As in Fluid, other variables are allowed.
    no_grad_set : set, optional
        Variables through which no gradient flows.
    by_rows : bool
        Gradients of tables of ``lookup_table(is_sparse=True)`` are rows (``Variable.selected``), as optimisers need;
        by default they are dense tensors.

    Returns
    -------
    list of (Parameter, gradient Variable)

    Raises
    ------
    GradientError
        If the loss is no single float, depends on no requested parameter, or depends on one through an operator without
        that derivative. The block is unchanged.
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
        variables = [
            program.global_block().own(p, "parameter_list of append_backward")
            for p in check_list(
                "parameter_list of append_backward", parameter_list, "parameters or their names", GradientError
            )
        ]
    else:
        variables = [p for p in program.all_parameters() if p.trainable and not p.stop_gradient]
    for callback in check_list("callbacks of append_backward", callbacks or (), "functions", GradientError):
        if not callable(callback):
            raise GradientError(f"callbacks of append_backward holds {callback!r:.60}; expected functions")
    blocked = _names(no_grad_set) | blocked_variables(block)
    names = {variable.name for variable in variables}
    free = free_inputs(block) - names
    while True:
        try:
            pairs = _append(
                loss, variables, names | free, blocked, callbacks or (), parameter_list is not None, by_rows
            )
            break
        except NoDerivativeError as exc:
            if exc.origin not in free:
                raise
            free.discard(exc.origin)  # not names: no gradient instead of an incomplete one
    return pairs


def _variables(argument: str, value: Any, *kinds: type) -> list[Any]:
    """Return one variable or several as a list, or raise GradientError."""
    what = f"{argument} of fluid.gradients"
    items = check_list(what, value, "a Variable, or a list of them", GradientError, one=Variable)
    for item in items:
        if not isinstance(item, kinds or (Variable,)):
            raise GradientError(f"{what} holds {item!r:.80}; expected a Variable")
    return items


def gradients(
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
        None if no target depends on the input, or only through ``stop_gradient`` and operators whose derivative is 0
        almost everywhere.

    Raises
    ------
    GradientError
        If a target depends on an input through an operator that has no derivative there: it names the operator, and
        its input. The block stays as it was.
    """
    outs, ins = _variables("targets", targets), _variables("inputs", inputs)
    start_gradients: list[Variable | None]
    if target_gradients is None:
        start_gradients = [None] * len(outs)
    else:
        start_gradients = list(_variables("target_gradients", target_gradients, Variable, type(None)))
    if len(start_gradients) != len(outs):
        raise GradientError(f"fluid.gradients got {len(outs)} targets and {len(start_gradients)} target_gradients")
    if not outs:
        raise GradientError("fluid.gradients needs at least one target")
    block = outs[0].block
    for what, variables in (("targets", outs), ("inputs", ins), ("target_gradients", start_gradients)):
        for variable in variables:
            if variable is not None:
                block.own(variable, f"{what} of fluid.gradients")
    names = {variable.name for variable in ins}
    blocked = (_names(no_grad_set) | blocked_variables(block)) - names
    forward = forward_part(block, [variable.name for variable in outs])
    backward = Backward(block, find_paths(forward, names, block, blocked), names)
    with block.program.roles("backward"), _undone_on_error(block):
        for target, gradient in zip(outs, start_gradients, strict=True):
            writer = None
            if gradient is None and target.is_array:
                raise GradientError(
                    f"the target {target.name!r} is a tensor array; fluid.gradients starts from tensors"
                    "\n  Do: layers.array_read(array, i), or layers.tensor_array_to_tensor"
                )
            if gradient is None:
                zeros = block.create_temporary(target.dtype)
                gradient = block.create_var(backward.base(target.name))
                block.append_op("fill_zeros_like", {"X": target}, {"Out": zeros})
                writer = block.append_op("scale", {"X": zeros}, {"Out": gradient}, {"scale": 1.0, "bias": 1.0})
            elif target.is_array and gradient.is_array:
                pass  # elements are compared when they are read
            elif not all_dims_compatible(gradient.shape, target.shape):
                raise GradientError(
                    f"the gradient of {target.name!r} {list(target.shape)} has dims {list(gradient.shape)}"
                )
            elif gradient.dtype != target.dtype:
                raise GradientError(f"the gradient of {target.name!r}, {target.dtype}, is {gradient.dtype}")
            elif -1 in (*gradient.shape, *target.shape):  # gradient kernels rely on dims: compare at run time
                checked = block.create_var(backward.base(target.name))
                writer = block.append_op("assign_like", {"X": gradient, "Like": target}, {"Out": checked})
                gradient = checked
            backward.seed(target.name, gradient.name, writer)
        backward.walk(forward)
        results = [backward.result(variable.name) for variable in ins]
    return [block.var(name) if name is not None else None for name in results]


def calc_gradient(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Iterable[Variable | str] | None = None,
) -> Variable | list[Variable | None] | None:
    """Return :func:`gradients`, but as in Fluid the gradient of one input without a list."""
    results = gradients(targets, inputs, target_gradients, no_grad_set)
    return results[0] if len(results) == 1 else results
