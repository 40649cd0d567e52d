"""Learning-rate schedules: operators that compute a rate from the number of the run.

All but ``noam_decay`` count from 0 (Fluid's convention), ``noam_decay`` from 1. There is one counter,
``@LR_DECAY_COUNTER@``, in a program, and as in Fluid the first schedule sets its start. Fluid uses control flow; here
schedules multiply by masks of 0 and 1, which keeps the selected value exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from math import pi
from typing import Any, ParamSpec

from fluidlite.base.arguments import check_list
from fluidlite.base.dtypes import compute_dtype
from fluidlite.layer_helper import check_bool, check_float, check_int, refuse
from fluidlite.layers import ops
from fluidlite.layers.nn import scale
from fluidlite.layers.products import pow
from fluidlite.layers.reduce import reduce_sum
from fluidlite.layers.tensor import autoincreased_step_counter, cast, fill_constant, sums
from fluidlite.program.program import default_main_program
from fluidlite.program.variable import Parameter, Variable

_P = ParamSpec("_P")


def _schedule(function: Callable[_P, Variable]) -> Callable[_P, Variable]:
    """Mark the operators that ``function`` appends as the schedule's."""

    @wraps(function)  # the underscore: errors name the function inside
    def _scheduled(*args: _P.args, **kwargs: _P.kwargs) -> Variable:
        with default_main_program().roles("lr_sched"):
            rate = function(*args, **kwargs)
        rate.stop_gradient = True
        return rate

    return _scheduled


def _decay_step_counter(begin: int = 0) -> Variable:
    return cast(autoincreased_step_counter("@LR_DECAY_COUNTER@", begin=begin), "float32")


def _periods(step: Variable, decay_steps: float, staircase: bool) -> Variable:
    """The step divided by ``decay_steps``."""
    steps = check_float("decay_steps", decay_steps)
    if steps <= 0:
        refuse("decay_steps", decay_steps, "a number above 0")
    # A division, as at multiples of decay_steps a product with the inverse might round below an integer.
    part = ops.elementwise_div(step, fill_constant([1], "float32", steps))
    return ops.floor(part) if check_bool("staircase", staircase) else part


def _is_below(step: Variable, bound: float) -> Variable:
    """1 where step < bound, else 0."""
    return cast(ops.less_than(step, fill_constant([1], "float32", bound)), "float32")


def _not(flag: Variable) -> Variable:
    return scale(flag, -1.0, 1.0)


@_schedule
def noam_decay(d_model: float, warmup_steps: float, learning_rate: float = 1.0) -> Variable:
    """Return learning_rate d_model^-0.5 min(step^-0.5, step warmup_steps^-1.5).

    Returns: float32 [1]
    """
    steps, width = check_float("warmup_steps", warmup_steps), check_float("d_model", d_model)
    for argument, value in (("warmup_steps", steps), ("d_model", width)):
        if not value > 0:
            refuse(argument, value, "a number above 0")
    step = _decay_step_counter(begin=1)
    falling = pow(step, -0.5)
    rising = scale(step, steps**-1.5)
    factor = check_float("learning_rate", learning_rate) * width**-0.5
    return scale(ops.elementwise_min(falling, rising), factor)


@_schedule
def exponential_decay(learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False) -> Variable:
    """Return learning_rate decay_rate^(step / decay_steps); with ``staircase`` the power is floored.

    Returns: float32 [1]
    """
    base = fill_constant([1], "float32", check_float("decay_rate", decay_rate))
    power = _periods(_decay_step_counter(), decay_steps, staircase)
    return scale(ops.elementwise_pow(base, power), check_float("learning_rate", learning_rate))


@_schedule
def natural_exp_decay(learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False) -> Variable:
    """Return learning_rate exp(-decay_rate step / decay_steps); with ``staircase`` the quotient is floored.

    Returns: float32 [1]
    """
    power = scale(_periods(_decay_step_counter(), decay_steps, staircase), -check_float("decay_rate", decay_rate))
    return scale(ops.exp(power), check_float("learning_rate", learning_rate))


@_schedule
def inverse_time_decay(
    learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Variable:
    """Return learning_rate / (1 + decay_rate step / decay_steps); with ``staircase`` the quotient is floored.

    Returns: float32 [1]
    """
    divisor = scale(_periods(_decay_step_counter(), decay_steps, staircase), check_float("decay_rate", decay_rate), 1.0)
    return ops.elementwise_div(fill_constant([1], "float32", check_float("learning_rate", learning_rate)), divisor)


@_schedule
def polynomial_decay(
    learning_rate: float,
    decay_steps: float,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Variable:
    """Return (learning_rate - end) (1 - step / decay_steps)^power + end.

    decay_steps: After them the rate stays at the end; with ``cycle`` it restarts with one more ``decay_steps``
    Returns: float32 [1]
    """
    part = _periods(_decay_step_counter(), decay_steps, staircase=False)
    one = fill_constant([1], "float32", 1.0)
    if cycle:
        part = ops.elementwise_div(part, ops.elementwise_max(ops.ceil(part), one))
    else:
        part = ops.elementwise_min(part, one)
    end = check_float("end_learning_rate", end_learning_rate)
    decayed = pow(ops.elementwise_sub(one, part), check_float("power", power))
    return scale(decayed, check_float("learning_rate", learning_rate) - end, end)


@_schedule
def piecewise_decay(boundaries: Sequence[float], values: Sequence[float]) -> Variable:
    """Return values[i], where i is the number of boundaries that the step has reached.

    boundaries: Steps, rising
    values: One more than boundaries
    Returns: float32 [1]
    """
    bounds = [check_float("boundaries", b) for b in check_list("boundaries", boundaries, "a list of steps")]
    rates = [check_float("values", v) for v in check_list("values", values, "a list of rates")]
    if len(rates) != len(bounds) + 1:
        refuse("values", values, f"{len(bounds) + 1} numbers, one more than boundaries")
    if any(a >= b for a, b in pairwise(bounds)):
        refuse("boundaries", boundaries, "rising numbers")
    if not bounds:
        return fill_constant([1], "float32", rates[0])
    step = _decay_step_counter()
    below = [_is_below(step, bound) for bound in bounds]
    # Exactly one term is not 0: below the first bound, between two bounds, or from the last bound on.
    terms = [scale(below[0], rates[0])]
    terms += [scale(ops.elementwise_sub(b, a), rate) for (a, b), rate in zip(pairwise(below), rates[1:-1], strict=True)]
    terms.append(scale(_not(below[-1]), rates[-1]))
    return sums(terms)


@_schedule
def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> Variable:
    """Return learning_rate (cos(pi epoch / epochs) + 1) / 2, the epoch being step / step_each_epoch, floored.

    Returns: float32 [1]
    """
    epoch = _periods(_decay_step_counter(), check_int("step_each_epoch", step_each_epoch, minimum=1), staircase=True)
    wave = ops.cos(scale(epoch, pi / check_int("epochs", epochs, minimum=1)))
    half = check_float("learning_rate", learning_rate) / 2
    return scale(wave, half, half)


@_schedule
def linear_lr_warmup(learning_rate: Any, warmup_steps: float, start_lr: float, end_lr: float) -> Variable:
    """Return a rate that rises from ``start_lr`` to ``end_lr`` in ``warmup_steps``, and then is ``learning_rate``.

    learning_rate: A number, or a Variable, which may be another schedule's
    Returns: float32 [1]
    """
    if not isinstance(learning_rate, Variable):
        learning_rate = fill_constant([1], "float32", check_float("learning_rate", learning_rate))
    start, end = check_float("start_lr", start_lr), check_float("end_lr", end_lr)
    step = _decay_step_counter()
    rising = scale(_periods(step, warmup_steps, staircase=False), end - start, start)
    below = _is_below(step, float(warmup_steps))
    return sums([ops.elementwise_mul(rising, below), ops.elementwise_mul(learning_rate, _not(below))])


def append_LARS(params_grads: Sequence[tuple[Parameter, Variable]], learning_rate: Any, weight_decay: float) -> None:
    """Set a learning rate for each parameter: learning_rate |param| / (|grad| + weight_decay |param|).

    params_grads: Pairs of a parameter and its gradient
    learning_rate: A number, or a Variable
    """
    decay = check_float("weight_decay", weight_decay)
    for param, grad in params_grads:
        with param.block.program.roles("lr_sched"):
            param_rate = param.optimize_attr["learning_rate"]
            widened = (var._of_dtype(compute_dtype(var.dtype)) for var in (param, grad))
            p, g = (ops.sqrt(reduce_sum(ops.square(var))) for var in widened)
            ratio = ops.elementwise_div(p, ops.elementwise_add(g, scale(p, decay)))._of_dtype("float32")
            for factor in (param_rate, learning_rate):
                if isinstance(factor, Variable):
                    ratio = ops.elementwise_mul(ratio, factor)
                elif factor != 1.0:
                    ratio = scale(ratio, check_float("learning_rate", factor))
            ratio.stop_gradient = True
            param.optimize_attr["learning_rate"] = ratio
