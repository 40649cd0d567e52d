"""LookaheadOptimizer: slow weights that follow the fast ones of another optimiser."""

from __future__ import annotations

from fluidlite import unique_name
from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import check_float, check_int
from fluidlite.layers import tensor
from fluidlite.optimizer.base import Optimizer, ParamsGrads
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program, default_startup_program, program_guard
from fluidlite.program.variable import Variable

__all__ = ["LookaheadOptimizer"]


class LookaheadOptimizer:
    """Lookahead (Zhang and others, 2019): every k steps both weights become alpha fast + (1 - alpha) slow.

    Parameters
    ----------
    inner_optimizer : Optimizer
        Updates the fast weights, which are the parameters.
    alpha : float
        In [0, 1].
    k : int
        Steps between two updates of the slow weights, 1 or more.
    """

    type = "lookahead"

    def __init__(self, inner_optimizer: Optimizer, alpha: float = 0.5, k: int = 5) -> None:
        if not isinstance(inner_optimizer, Optimizer):
            raise ProgramError(
                f"optimizer.LookaheadOptimizer: argument 'inner_optimizer' is {inner_optimizer!r}; "
                "expected one of fluid.optimizer's, such as SGD(0.1)"
            )
        self.inner_optimizer = inner_optimizer
        self.alpha = check_float("alpha", alpha)
        if not 0.0 <= self.alpha <= 1.0:
            raise ProgramError(f"optimizer.LookaheadOptimizer: argument 'alpha' is {alpha!r}; expected 0 to 1")
        self.k = check_int("k", k, minimum=1)

    def minimize(self, loss: Variable, startup_program: Program | None = None) -> tuple[list[Operator], ParamsGrads]:
        """Append the inner optimiser's step, and the update of the slow weights; return the inner one's result."""
        result = self.inner_optimizer.minimize(loss, startup_program)
        program, startup = loss.block.program, startup_program or default_startup_program()
        block, startup_block = program.global_block(), startup.global_block()
        with program_guard(program, startup), program.roles("optimize"):
            step = tensor.create_global_var(
                [1], 0, "int32", persistable=True, name=unique_name.generate("lookahead_step")
            )
            tensor.increment(step)
            for param in program.all_parameters():
                name = param.name + "@SLOW"
                slow = block.create_var(name, param.shape, param.dtype, persistable=True, stop_gradient=True)
                first = startup_block.create_var(name, param.shape, param.dtype, persistable=True, stop_gradient=True)
                if not startup_block.has_var(
                    param.name
                ):  # another program initializes it, as that of a network's layer
                    startup_block.create_var(param.name, param.shape, param.dtype, persistable=True)
                startup_block.append_op("assign", {"X": param.name}, {"Out": first})
                program.current_block().append_op(
                    "lookahead_update",
                    {"Fast": param, "Slow": slow, "Step": step},
                    {"FastOut": param, "SlowOut": slow},
                    {"alpha": self.alpha, "k": self.k},
                )
        return result
