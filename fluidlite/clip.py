"""Clipping of gradients: by value, by norm, by the norm of all together; and of errors inside the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.framework.opdef import GRAD
from fluidlite.framework.program import Block, Program, default_main_program, program_guard
from fluidlite.framework.variable import Parameter, Variable
from fluidlite.layers import nn, ops, tensor

__all__ = [
    "BaseErrorClipAttr", "BaseGradientClipAttr", "ErrorClipByValue", "GradientClipByGlobalNorm", "GradientClipByNorm",
    "GradientClipByValue", "append_error_clip_ops", "append_gradient_clip_ops", "set_gradient_clip",
]  # fmt: skip

ParamsGrads = list[tuple[Parameter, Variable | None]]


def _number(what: str, argument: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise ProgramError(f"clip.{what}: argument {argument!r} is {value!r}; expected a number")
    return float(value)


def _range(what: str, max: Any, min: Any) -> tuple[float, float]:
    high = _number(what, "max", max)
    low = -high if min is None else _number(what, "min", min)
    if low > high:
        raise ProgramError(f"clip.{what}: min is {low} and max is {high}; expected min <= max (min defaults to -max)")
    return low, high


# Errors inside the network -----------------------------------------------------------------------------------------


class BaseErrorClipAttr:
    """Base of what ``Variable.error_clip`` may be."""

    def append_clip_op(self, block: Block, index: int, grad_name: str) -> None:
        """Insert the operators that clip a gradient in place, before the operator of that index."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it clips")


class ErrorClipByValue(BaseErrorClipAttr):
    """Clip the gradient of a variable, as backward passes through it, to [min, max].

    Parameters
    ----------
    max : float
    min : float, optional
        Default: -max.
    """

    def __init__(self, max: float, min: float | None = None) -> None:
        self.min, self.max = _range("ErrorClipByValue", max, min)

    def append_clip_op(self, block: Block, index: int, grad_name: str) -> None:
        block.insert_op(index, "clip", {"X": grad_name}, {"Out": grad_name}, {"min": self.min, "max": self.max})

    def __repr__(self) -> str:
        return f"ErrorClipByValue(max={self.max}, min={self.min})"


def append_error_clip_ops(block: Block) -> None:
    """Clip the gradients of variables that have an ``error_clip``, right where each is complete."""
    with block.program.roles("backward"):
        for variable in list(block.vars.values()):
            clip = variable.error_clip
            if clip is None:
                continue
            if not isinstance(clip, BaseErrorClipAttr):
                raise ProgramError(f"error_clip of {variable.name!r} is {clip!r}; expected a clip.ErrorClipByValue")
            name = variable.name + GRAD
            writers = [i for i, op in enumerate(block.ops) if op.role == "backward" and name in op.output_arg_names]
            if writers:
                clip.append_clip_op(block, writers[-1] + 1, name)


# Gradients of parameters -------------------------------------------------------------------------------------------


class BaseGradientClipAttr:
    """Base of what ``Parameter.gradient_clip_attr`` may be."""

    def process_context(self, context: dict[str, Any], param: Parameter, grad: Variable) -> None:
        """Look at every gradient before any is clipped."""

    def create_operators(self, context: dict[str, Any], param: Parameter, grad: Variable) -> Variable:
        """Append what clips a gradient; return the clipped one."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it clips")


class GradientClipByValue(BaseGradientClipAttr):
    """Clip every element to [min, max].

    Parameters
    ----------
    max : float
    min : float, optional
        Default: -max.
    """

    def __init__(self, max: float, min: float | None = None) -> None:
        self.min, self.max = _range("GradientClipByValue", max, min)

    def create_operators(self, context: dict[str, Any], param: Parameter, grad: Variable) -> Variable:
        clipped: Variable = ops.layer("clip")(grad, min=self.min, max=self.max)
        return clipped

    def __repr__(self) -> str:
        return f"GradientClipByValue(max={self.max}, min={self.min})"


class GradientClipByNorm(BaseGradientClipAttr):
    """Scale each gradient whose L2 norm is above ``clip_norm`` down to it."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = _number("GradientClipByNorm", "clip_norm", clip_norm)

    def create_operators(self, context: dict[str, Any], param: Parameter, grad: Variable) -> Variable:
        return nn.clip_by_norm(grad, self.clip_norm)

    def __repr__(self) -> str:
        return f"GradientClipByNorm({self.clip_norm})"


class GradientClipByGlobalNorm(BaseGradientClipAttr):
    """Scale all gradients of a group by one factor, so that the L2 norm of all together is ``clip_norm`` at most.

    Parameters
    ----------
    clip_norm : float
    group_name : str
        Groups are clipped apart.
    """

    def __init__(self, clip_norm: float, group_name: str = "default_group") -> None:
        if not isinstance(group_name, str):
            raise ProgramError(f"clip.GradientClipByGlobalNorm: group_name is {group_name!r}; expected a text")
        self.clip_norm = _number("GradientClipByGlobalNorm", "clip_norm", clip_norm)
        self.group_name = group_name

    def process_context(self, context: dict[str, Any], param: Parameter, grad: Variable) -> None:
        group = context.setdefault(self.group_name, {"clip_norm": self.clip_norm, "squares": [], "scale": None})
        if group["clip_norm"] != self.clip_norm:
            raise ProgramError(
                f"clip.GradientClipByGlobalNorm: group {self.group_name!r} has clip_norm {group['clip_norm']} and, for "
                f"{param.name!r}, {self.clip_norm}; expected one value\n"
                "  Do: give groups of different norms different names"
            )
        group["squares"].append(nn.reduce_sum(ops.layer("square")(grad)))

    def create_operators(self, context: dict[str, Any], param: Parameter, grad: Variable) -> Variable:
        group = context[self.group_name]
        if group["scale"] is None:
            norm = ops.layer("sqrt")(tensor.sums(group["squares"]))
            bound = tensor.fill_constant([1], norm.dtype, self.clip_norm)
            group["scale"] = ops.layer("elementwise_div")(bound, ops.layer("elementwise_max")(bound, norm))
        clipped: Variable = ops.layer("elementwise_mul")(grad, group["scale"])
        return clipped

    def __repr__(self) -> str:
        return f"GradientClipByGlobalNorm({self.clip_norm}, {self.group_name!r})"


def set_gradient_clip(
    clip: BaseGradientClipAttr,
    param_list: Iterable[Parameter | str] | None = None,
    program: Program | None = None,
) -> None:
    """Say how the gradients of parameters are clipped, before ``minimize``.

    Parameters
    ----------
    clip : BaseGradientClipAttr
    param_list : list of parameters or names, optional
        Default: all of the program.
    program : Program, optional
        Default: the main program.
    """
    if not isinstance(clip, BaseGradientClipAttr):
        raise ProgramError(f"clip.set_gradient_clip: clip is {clip!r}; expected one of clip.GradientClipBy...")
    program = program or default_main_program()
    chosen = program.all_parameters() if param_list is None else list(param_list)
    if not chosen:
        raise ProgramError(
            "clip.set_gradient_clip: the program has no parameters yet\n  Do: call it after the layers, before minimize"
        )
    for item in chosen:
        param = program.global_block().var(item) if isinstance(item, str) else item
        if not isinstance(param, Parameter):
            raise ProgramError(f"clip.set_gradient_clip: param_list has {item!r}; expected parameters or their names")
        param.gradient_clip_attr = clip


def append_gradient_clip_ops(
    param_grads: Sequence[tuple[Parameter, Variable | None]], clip: BaseGradientClipAttr | None = None
) -> ParamsGrads:
    """Append what clips the gradients; return the pairs with the clipped ones.

    Parameters
    ----------
    param_grads : list of (parameter, gradient or None)
    clip : BaseGradientClipAttr, optional
        For parameters that have none of their own.
    """
    plan: list[tuple[Parameter, Variable, BaseGradientClipAttr | None]] = []
    for param, grad in param_grads:
        chosen = param.gradient_clip_attr or clip
        if chosen is not None and not isinstance(chosen, BaseGradientClipAttr):
            raise ProgramError(f"gradient_clip of {param.name!r} is {chosen!r}; expected one of clip.GradientClipBy...")
        if grad is not None:
            plan.append((param, grad, chosen))
    clipped: dict[str, Variable] = {}
    context: dict[str, Any] = {}
    for param, grad, chosen in plan:
        if chosen is not None:
            with program_guard(grad.block.program), grad.block.program.roles("optimize"):
                chosen.process_context(context, param, grad)
    for param, grad, chosen in plan:
        if chosen is not None:
            with program_guard(grad.block.program), grad.block.program.roles("optimize"):
                clipped[param.name] = chosen.create_operators(context, param, grad)
    return [(param, clipped.get(param.name, grad)) for param, grad in param_grads]
