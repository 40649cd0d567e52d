"""Optimisers whose weight decay is no part of the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluidlite import layers
from fluidlite.clip import BaseGradientClipAttr
from fluidlite.layer_helper import check_function, refuse
from fluidlite.optimizer import Optimizer
from fluidlite.program.operator import Operator
from fluidlite.program.program import program_guard
from fluidlite.program.variable import Variable

__all__ = ["extend_with_decoupled_weight_decay"]


class _Decoupled(Optimizer):
    """Takes ``weight_decay`` times each parameter from it, before the optimiser's own update."""

    def __init__(
        self, weight_decay: Any, apply_decay_param_fun: Callable[[str], bool] | None = None, **options: Any
    ) -> None:
        if not isinstance(weight_decay, (int, float, Variable)):
            refuse("weight_decay", weight_decay, "a number, or a Variable [1]")
        check_function("apply_decay_param_fun", apply_decay_param_fun, "a function of a parameter's name, or None")
        super().__init__(**options)
        self._weight_decay = weight_decay
        self._none = not isinstance(weight_decay, Variable) and weight_decay == 0
        self._decays = apply_decay_param_fun or (lambda name: True)

    def apply_gradients(self, params_grads: Any, grad_clip: BaseGradientClipAttr | None = None) -> list[Operator]:
        """Append the decay, and what the optimiser appends."""
        for param, grad in params_grads:
            if grad is None or not param.trainable or not self._decays(param.name) or self._none:
                continue
            program = param.block.program
            with program_guard(program), program.roles("optimize"):
                layers.assign(param - param * self._weight_decay, param)
        return super().apply_gradients(params_grads, grad_clip)


def extend_with_decoupled_weight_decay(base_optimizer: type[Optimizer]) -> type[Any]:
    """Return a class of optimisers that do as ``base_optimizer``, and let parameters decay (as AdamW does).

    Before an update each parameter loses ``weight_decay`` times itself. The decay is no part of the gradient: neither
    the learning rate nor what the optimiser accumulates has a part in it.

    Parameters
    ----------
    base_optimizer : type
        Such as ``fluid.optimizer.Adam``. The class takes ``weight_decay``, a number or a Variable,
        ``apply_decay_param_fun``, a function that says of a parameter's name whether it decays, and the keywords of
        ``base_optimizer``.

    Examples
    --------
    >>> AdamW = fluid.contrib.extend_with_decoupled_weight_decay(fluid.optimizer.Adam)
    >>> optimizer = AdamW(weight_decay=0.01, learning_rate=0.001)
    """
    if not isinstance(base_optimizer, type) or not issubclass(base_optimizer, Optimizer):
        refuse("base_optimizer", base_optimizer, "a class of optimisers, such as fluid.optimizer.Adam")
    return type(f"{base_optimizer.__name__}WithDecoupledWeightDecay", (_Decoupled, base_optimizer), {})
