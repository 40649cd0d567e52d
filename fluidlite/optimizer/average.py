"""ModelAverage and ExponentialMovingAverage: averages of parameters, for evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fluidlite import unique_name
from fluidlite.base.dtypes import compute_dtype
from fluidlite.base.errors import ProgramError
from fluidlite.layer_helper import check_float, check_int
from fluidlite.layers import nn, ops, tensor
from fluidlite.optimizer.base import Optimizer, ParamAndGrad
from fluidlite.platform.device_registry import devices
from fluidlite.program.block import Block
from fluidlite.program.op_guards import device_guard, name_scope
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program, default_main_program, program_guard
from fluidlite.program.variable import Parameter, Variable
from fluidlite.regularizer import WeightDecayRegularizer

__all__ = ["ExponentialMovingAverage", "ModelAverage"]
_COUNTER = "@EMA_STEP_COUNTER@"


def _declare(block: Block, var: Variable) -> Variable:
    """Declare a variable of the training program in another program, which then uses it in the same scope."""
    return block.create_var(var.name, var.shape, var.dtype, persistable=True, stop_gradient=True)


class _AveragedParameters:
    """Two programs: one backs up the parameters and replaces them by averages, the other restores them."""

    def __init__(self, program: Program) -> None:
        averaged = [p for p in program.global_block().all_parameters() if p.do_model_average is not False]
        self._backups = [(param, unique_name.generate(f"{param.name}.tmp")) for param in averaged]
        self.apply_program = Program()
        self.restore_program = Program()
        with program_guard(self.restore_program):
            block = self.restore_program.global_block()
            for param, backup in self._backups:
                tensor.assign(
                    block.create_var(backup, param.shape, param.dtype, persistable=True), _declare(block, param)
                )

    def _build(self) -> None:
        with program_guard(self.apply_program):
            block = self.apply_program.global_block()
            self._prepare(block)
            for param, backup in self._backups:
                duplicate = _declare(block, param)
                tensor.assign(duplicate, block.create_var(backup, param.shape, param.dtype, persistable=True))
                tensor.assign(self._append_average(block, param)._of_dtype(param.dtype), duplicate)

    def _prepare(self, block: Block) -> None:
        """Append operators that run once, before all parameters."""

    def _append_average(self, block: Block, param: Parameter) -> Variable:
        """Append operators that compute a parameter's average, in the dtype in which the parameter computes."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a parameter's average is")

    @contextmanager
    def apply(self, executor: Any, need_restore: bool = True) -> Iterator[None]:
        """Return a context in which averages replace the parameters of the scope.

        Parameters
        ----------
        executor : Executor
        need_restore : bool
            Whether they are restored at the end; else call :meth:`restore`.
        """
        executor.run(self.apply_program)
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    def restore(self, executor: Any) -> None:
        """Restore the trained parameters."""
        executor.run(self.restore_program)


class ModelAverage(_AveragedParameters, Optimizer):
    """The mean of the parameters over a window of updates; made after ``minimize``, used in ``with ... apply(exe)``.

    The window is ``min(max_average_window, average_window_rate * updates)`` long, and never shorter than
    ``min_average_window``. Parameters with ``do_model_average=False`` in their ParamAttr are left out.

    Parameters
    ----------
    average_window_rate : float
    min_average_window, max_average_window : int
    regularization : WeightDecayRegularizer, optional
        Taken for Fluid's sake.
    name : str, optional
        Prefix of the state's names.
    """

    def __init__(
        self,
        average_window_rate: float,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
    ) -> None:
        Optimizer.__init__(self, 0.0, regularization=regularization, name=name)
        self.average_window = check_float("average_window_rate", average_window_rate)
        self.min_average_window = check_int("min_average_window", min_average_window)
        self.max_average_window = check_int("max_average_window", max_average_window)
        program = default_main_program()
        _AveragedParameters.__init__(self, program)
        with program.roles("optimize"), name_scope("move_average"):
            for param, _ in self._backups:
                self._append_average_accumulate_op(program.current_block(), param)
        self._build()

    def _append_average_accumulate_op(self, block: Block, param: Parameter) -> Operator:
        wide = compute_dtype(param.dtype)
        state = {f"sum_{i}": self._add_accumulator(f"sum_{i}", param, wide) for i in (1, 2, 3)}
        for name in ("num_accumulates", "old_num_accumulates", "num_updates"):
            state[name] = self._add_accumulator(name, param, dtype="int64", shape=[1])
        return block.append_op(
            "average_accumulates",
            {"param": param._of_dtype(wide), **{f"in_{name}": var for name, var in state.items()}},
            {f"out_{name}": var for name, var in state.items()},
            {
                "average_window": self.average_window,
                "min_average_window": self.min_average_window,
                "max_average_window": self.max_average_window,
            },
        )

    def _append_average(self, block: Block, param: Parameter) -> Variable:
        def of(*names: str) -> Variable:
            return tensor.sums([_declare(block, self._get_accumulator(name, param)) for name in names])

        total, count = of("sum_1", "sum_2", "sum_3"), of("num_accumulates", "old_num_accumulates")
        return ops.layer("elementwise_div")(total, tensor.cast(count, total.dtype))

    def _append_optimize_op(self, block: Block, param_and_grad: ParamAndGrad) -> Operator:
        raise ProgramError(
            "optimizer.ModelAverage trains nothing\n  Do: minimize with another optimizer, and make this one after it"
        )


class ExponentialMovingAverage(_AveragedParameters):
    """Moving averages of the parameters: average = decay average + (1 - decay) parameter at every :meth:`update`.

    ``apply`` divides by 1 - decay^updates, as the averages start at 0.

    Parameters
    ----------
    decay : float
    thres_steps : Variable, optional
        The number of steps t: the decay is min(decay, (t + 1) / (t + 10)).
    name : str, optional
        Prefix of the averages' names.
    """

    def __init__(self, decay: float = 0.999, thres_steps: Variable | None = None, name: str | None = None) -> None:
        self._decay = check_float("decay", decay)
        self._name = name if name is not None else ""
        name = unique_name.generate(_COUNTER)  # of each average: programs may share a scope
        self._counter = _COUNTER if name == f"{_COUNTER}_0" else name  # that of Paddle's files
        program = default_main_program()
        super().__init__(program)
        with program.roles("optimize"), name_scope("moving_average"):
            self._decay_var = self._decay_schedule(thres_steps)
        self._averages: dict[str, Variable] = {}
        for param, _ in self._backups:
            self._averages[param.name] = tensor.create_global_var(
                param.shape,
                0.0,
                compute_dtype(param.dtype),
                persistable=True,
                name=unique_name.generate(f"{self._name}{param.name}_ema"),
            )
        self._build()

    def _decay_schedule(self, steps: Variable | None) -> Variable:
        rate = tensor.create_global_var(
            [1], self._decay, "float32", persistable=True, name=unique_name.generate("scheduled_ema_decay_rate")
        )
        if steps is not None:
            steps = tensor.cast(steps, "float32")
            early = ops.layer("elementwise_div")(nn.scale(steps, bias=1.0), nn.scale(steps, bias=10.0))
            tensor.assign(ops.layer("elementwise_min")(early, tensor.fill_constant([1], "float32", self._decay)), rate)
        return rate

    def update(self) -> None:
        """Append operators that update the averages; call it once, after ``minimize``."""
        program = default_main_program()
        if program.current_block() is not program.global_block():
            raise ProgramError(
                "optimizer.ExponentialMovingAverage.update is called in a block; it counts runs, of which not each may "
                "run the block\n  Do: call it outside of branches and loops"
            )
        with program.roles("optimize"), name_scope("moving_average"):
            tensor.autoincreased_step_counter(self._counter)
            mul, add = ops.layer("elementwise_mul"), ops.layer("elementwise_add")
            for param, _ in self._backups:
                average = self._averages[param.name]
                decay, value = self._decay_var._of_dtype(average.dtype), param._of_dtype(average.dtype)
                decayed, added = mul(average, decay), mul(value, nn.scale(decay, -1.0, 1.0))
                tensor.assign(add(decayed, added), average)

    def _prepare(self, block: Block) -> None:
        counter = tensor.create_global_var([1], 0, "int64", persistable=True, name=self._counter)
        with device_guard(devices.host().kind):  # 1 - power cancels in float32, and not each device has float64
            step = tensor.cast(counter, "float64")
            power = ops.layer("elementwise_pow")(_declare(block, self._decay_var)._of_dtype("float64"), step)
            zero = tensor.fill_constant([1], "float64", 0.0)
            before = tensor.cast(ops.layer("equal")(step, zero), "float64")  # 1 before the first update: 1 - power is 0
            self._divisor = ops.layer("elementwise_add")(nn.scale(power, -1.0, 1.0), before)

    def _append_average(self, block: Block, param: Parameter) -> Variable:
        average = _declare(block, self._averages[param.name])
        with device_guard(devices.host().kind):
            divisor = self._divisor._of_dtype(average.dtype)
        return ops.layer("elementwise_div")(average, divisor)
