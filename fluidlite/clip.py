"""Clipping of gradients by value, by norm or by global norm; and of gradients inside the network (error clip)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fluidlite import layers
from fluidlite.base.arguments import check_instance, check_list, number, text
from fluidlite.base.dtypes import compute_dtype
from fluidlite.base.errors import ProgramError
from fluidlite.layers import ops, tensor
from fluidlite.program.block import Block
from fluidlite.program.opdef import GRAD
from fluidlite.program.program import Program, default_main_program, program_guard
from fluidlite.program.saved_options import saved
from fluidlite.program.variable import Parameter, Variable

__all__ = [
    "BaseErrorClipAttr",
    "BaseGradientClipAttr",
    "ErrorClipByValue",
    "GradientClipBase",
    "GradientClipByGlobalNorm",
    "GradientClipByNorm",
    "GradientClipByValue",
    "append_error_clip_ops",
    "append_gradient_clip_ops",
    "set_gradient_clip",
]

ParamsGrads = list[tuple[Parameter, Variable | None]]
NeedClip = Callable[[Parameter], bool]


def _range(what: str, max: Any, min: Any) -> tuple[float, float]:
    high = number(f"clip.{what}: max", max)
    low = -high if min is None else number(f"clip.{what}: min", min)
    if not low <= high:
        raise ProgramError(f"clip.{what}: min is {low} and max is {high}; expected min <= max (min defaults to -max)")
    return low, high


def _norm(what: str, value: Any) -> float:
    norm = number(f"clip.{what}: clip_norm", value)
    if not norm >= 0:
        raise ProgramError(f"clip.{what}: clip_norm is {value}; expected a number of 0 or more")
    return norm


# Errors inside the network -----------------------------------------------------------------------------------------


class BaseErrorClipAttr:
    """Base of the objects for ``Variable.error_clip``."""

    def append_clip_op(self, block: Block, index: int, grad_name: str) -> None:
        """Insert the operators that clip a gradient in place, before the operator of that index."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it clips")


@saved("error_clip", "max", "min")
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


def error_clip_callback(block: Block, context: Any) -> None:
    """Do nothing: backward always inserts the operators of ``error_clip``; Fluid's scripts pass this function to it."""


def append_error_clip_ops(block: Block) -> None:
    """Clip the gradients of variables with an ``error_clip``, after the last operator that writes each."""
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
    """Base of the objects for ``Parameter.gradient_clip_attr`` and an optimiser's ``grad_clip``.

    Parameters
    ----------
    need_clip : callable, optional
        Parameters for which it returns False keep their gradients.
    """

    need_clip: NeedClip | None = None

    def __init__(self, need_clip: NeedClip | None = None) -> None:
        if need_clip is not None and not callable(need_clip):
            raise ProgramError(
                f"clip.{type(self).__name__}: need_clip is {need_clip!r}; expected a function of a parameter"
            )
        self.need_clip = need_clip

    def __call__(self, params_grads: Sequence[tuple[Parameter, Variable | None]]) -> ParamsGrads:
        """Append the clipping of all these gradients; return the pairs with clipped gradients."""
        return _clipped(params_grads, lambda param: self)

    def process_context(self, context: dict[str, Any], param: Parameter, grad: Variable) -> None:
        """Called for every gradient before any is clipped."""

    def create_operators(self, context: dict[str, Any], param: Parameter, grad: Variable) -> Variable:
        """Append the clipping of a gradient; return the clipped one."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it clips")


@saved("gradient_clip", "max", "min", "need_clip")
class GradientClipByValue(BaseGradientClipAttr):
    """Clip every element to [min, max].

    Parameters
    ----------
    max : float
    min : float, optional
        Default: -max.
    need_clip : callable, optional
        Parameters for which it returns False keep their gradients.
    """

    def __init__(self, max: float, min: float | None = None, need_clip: NeedClip | None = None) -> None:
        super().__init__(need_clip)
        self.min, self.max = _range("GradientClipByValue", max, min)

    def create_operators(self, context: dict[str, Any], param: Parameter, grad: Variable) -> Variable:
        clipped: Variable = ops.layer("clip")(grad, min=self.min, max=self.max)
        return clipped

    def __repr__(self) -> str:
        return f"GradientClipByValue(max={self.max}, min={self.min})"


@saved("gradient_clip", "clip_norm", "need_clip")
class GradientClipByNorm(BaseGradientClipAttr):
    """Scale each gradient whose L2 norm is above ``clip_norm`` down to it.

    Parameters
    ----------
    clip_norm : float
    need_clip : callable, optional
        Parameters for which it returns False keep their gradients.
    """

    def __init__(self, clip_norm: float, need_clip: NeedClip | None = None) -> None:
        super().__init__(need_clip)
        self.clip_norm = _norm("GradientClipByNorm", clip_norm)

    def create_operators(self, context: dict[str, Any], param: Parameter, grad: Variable) -> Variable:
        clipped: Variable = layers.clip_by_norm(grad, self.clip_norm)
        return clipped

    def __repr__(self) -> str:
        return f"GradientClipByNorm({self.clip_norm})"


@saved("gradient_clip", "clip_norm", "group_name", "need_clip")
class GradientClipByGlobalNorm(BaseGradientClipAttr):
    """Scale all gradients of a group by one factor, so that their global L2 norm is at most ``clip_norm``.

    Parameters
    ----------
    clip_norm : float
    group_name : str
        Groups are clipped separately.
    need_clip : callable, optional
        Parameters for which it returns False keep their gradients, which then do not count in the norm.
    """

    def __init__(self, clip_norm: float, group_name: str = "default_group", need_clip: NeedClip | None = None) -> None:
        super().__init__(need_clip)
        self.group_name = text("clip.GradientClipByGlobalNorm: group_name", group_name)
        self.clip_norm = _norm("GradientClipByGlobalNorm", clip_norm)

    def process_context(self, context: dict[str, Any], param: Parameter, grad: Variable) -> None:
        group = context.setdefault(self.group_name, {"clip_norm": self.clip_norm, "squares": [], "scale": None})
        if group["clip_norm"] != self.clip_norm:
            raise ProgramError(
                f"clip.GradientClipByGlobalNorm: group {self.group_name!r} has clip_norm {group['clip_norm']} and, for "
                f"{param.name!r}, {self.clip_norm}; expected one value\n"
                "  Do: give groups of different norms different names"
            )
        wide = grad._of_dtype(compute_dtype(grad.dtype))  # squares would overflow in a half type
        group["squares"].append(layers.reduce_sum(ops.layer("square")(wide)))

    def create_operators(self, context: dict[str, Any], param: Parameter, grad: Variable) -> Variable:
        group = context[self.group_name]
        if group["scale"] is None:
            widest = max((each.dtype for each in group["squares"]), key=lambda dtype: dtype == "float64")
            norm = ops.layer("sqrt")(tensor.sums([each._of_dtype(widest) for each in group["squares"]]))
            bound = tensor.fill_constant([1], norm.dtype, self.clip_norm)
            one, ratio = tensor.fill_constant([1], norm.dtype, 1.0), ops.layer("elementwise_div")(bound, norm)
            # Within the bound nothing is divided: both may be 0, or infinite.
            fits = ops.layer("less_equal")(norm, bound)
            scale = norm.block.create_temporary(norm.dtype)
            norm.block.append_op("where", {"Condition": fits, "X": one, "Y": ratio}, {"Out": scale})
            group["scale"] = scale
        dtype = compute_dtype(grad.dtype)
        clipped: Variable = ops.layer("elementwise_mul")(grad._of_dtype(dtype), group["scale"]._of_dtype(dtype))
        return clipped._of_dtype(grad.dtype)

    def __repr__(self) -> str:
        return f"GradientClipByGlobalNorm({self.clip_norm}, {self.group_name!r})"


def set_gradient_clip(
    clip: BaseGradientClipAttr,
    param_list: Iterable[Parameter | str] | None = None,
    program: Program | None = None,
) -> None:
    """Set the clipping of parameters' gradients, before ``minimize``.

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
    what = "clip.set_gradient_clip:"
    program = check_instance(f"{what} program", program, Program) if program is not None else default_main_program()
    params: list[Any] = [*program.all_parameters()]
    if param_list is not None:
        params = check_list(f"{what} param_list", param_list, "parameters or their names")
    if not params:
        raise ProgramError(
            "clip.set_gradient_clip: the program has no parameters yet\n  Do: call it after the layers, before minimize"
        )
    for item in params:
        param = program.global_block().var(item) if isinstance(item, str) else item
        if not isinstance(param, Parameter):
            raise ProgramError(f"clip.set_gradient_clip: param_list has {item!r}; expected parameters or their names")
        param.gradient_clip_attr = clip


def append_gradient_clip_ops(
    param_grads: Sequence[tuple[Parameter, Variable | None]], clip: BaseGradientClipAttr | None = None
) -> ParamsGrads:
    """Append the clipping of gradients; return the pairs with clipped gradients.

    Parameters
    ----------
    param_grads : list of (parameter, gradient or None)
    clip : BaseGradientClipAttr, optional
        Overrides the parameters' own and that of ``set_gradient_clip``.
    """
    return _clipped(param_grads, lambda param: clip or param.gradient_clip_attr)


def _clipped(
    param_grads: Sequence[tuple[Parameter, Variable | None]], clip_of: Callable[[Parameter], Any]
) -> ParamsGrads:
    plan: list[tuple[Parameter, Variable, BaseGradientClipAttr | None]] = []
    for param, grad in param_grads:
        clip = clip_of(param)
        if clip is not None and not isinstance(clip, BaseGradientClipAttr):
            raise ProgramError(f"gradient_clip of {param.name!r} is {clip!r}; expected one of clip.GradientClipBy...")
        if clip is not None and clip.need_clip is not None and not clip.need_clip(param):
            clip = None
        if grad is not None:
            plan.append((param, grad, clip))
    clipped: dict[str, Variable] = {}
    context: dict[str, Any] = {}
    for param, grad, clip in plan:
        if clip is not None:
            with program_guard(grad.block.program), grad.block.program.roles("optimize"):
                clip.process_context(context, param, grad)
    for param, grad, clip in plan:
        if clip is not None:
            with program_guard(grad.block.program), grad.block.program.roles("optimize"):
                clipped_grad = clipped[param.name] = clip.create_operators(context, param, grad)
                if grad.selected is not None and clipped_grad.selected is None:
                    clipped_grad.select(grad.selected)  # the unique rows of a sparse gradient keep their indices
    return [(param, clipped.get(param.name, grad)) for param, grad in param_grads]


GradientClipBase = BaseGradientClipAttr
