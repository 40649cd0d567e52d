"""Initializers: each appends one operator to the startup program that computes a parameter's initial value."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from math import inf, prod, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from fluidlite.base.arguments import check_bool, check_int, exact_int_text, number
from fluidlite.base.context_value import context_value
from fluidlite.base.dtypes import NUMPY, is_float
from fluidlite.base.errors import DtypeError, ProgramError

if TYPE_CHECKING:
    from fluidlite.program.block import Block
    from fluidlite.program.operator import Operator
    from fluidlite.program.variable import Variable

__all__ = [
    "MSRA",
    "Bilinear",
    "BilinearInitializer",
    "Constant",
    "ConstantInitializer",
    "Initializer",
    "MSRAInitializer",
    "Normal",
    "NormalInitializer",
    "NumpyArray",
    "NumpyArrayInitializer",
    "TruncatedNormal",
    "TruncatedNormalInitializer",
    "Uniform",
    "UniformInitializer",
    "Xavier",
    "XavierInitializer",
    "force_init_on_cpu",
    "init_on_cpu",
]

_forced: ContextVar[bool] = ContextVar("fluidlite_init_on_cpu", default=False)


def force_init_on_cpu() -> bool:
    """Whether the caller is inside :func:`init_on_cpu`."""
    return _forced.get()


def init_on_cpu() -> AbstractContextManager[bool]:
    """Mark constants that are appended inside with the hint ``force_cpu``.

    Fluid has this hint; here the executor decides the place of parameters, and ``device_guard`` that of operators.
    """
    return context_value(_forced, True)


class Initializer:
    """Base of all initializers, which are called with a variable and the block to append to."""

    def __call__(self, var: Variable, block: Block) -> Operator:
        """Append the operator that computes the initial value of ``var``."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it initializes")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name.lstrip('_')}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"


def _fans(var: Variable) -> tuple[int, int]:
    """Return fan-in and fan-out of a weight; trailing dims are a filter's receptive field."""
    dims = var.shape
    if len(dims) < 2:
        size = max(1, prod(dims))
        return size, size
    if len(dims) == 2:
        return max(1, dims[0]), max(1, dims[1])
    field = max(1, prod(dims[2:]))
    return max(1, dims[1]) * field, max(1, dims[0]) * field


def _append(initializer: Initializer, type: str, var: Variable, block: Block, **attrs: Any) -> Operator:
    if type != "fill_constant" and not is_float(var.dtype):
        raise DtypeError(
            f"{var.name!r} is {var.dtype}; {initializer!r} makes floating-point numbers\n"
            "  Do: use initializer.Constant for integers"
        )
    return block.append_op(type, {}, {"Out": var}, {"shape": list(var.shape), "dtype": var.dtype, **attrs})


class ConstantInitializer(Initializer):
    """A constant value.

    Parameters
    ----------
    value : float
    force_cpu : bool
        A hint of Fluid, stored only: the executor decides the place of parameters.
    """

    def __init__(self, value: float = 0.0, force_cpu: bool = False) -> None:
        rounded = number("initializer.Constant: value", value)
        self._value = value if exact_int_text(value) else rounded
        self._force_cpu = check_bool("initializer.Constant: force_cpu", force_cpu)

    def __call__(self, var: Variable, block: Block) -> Operator:
        more: dict[str, Any] = {"force_cpu": True} if self._force_cpu or force_init_on_cpu() else {}
        if text := exact_int_text(self._value):
            more["str_value"] = text
        return _append(self, "fill_constant", var, block, value=float(self._value), **more)


class UniformInitializer(Initializer):
    """Uniform in [low, high); ``seed`` 0 means the startup program's seed.

    In row-major order, ``diag_num`` elements are set to ``diag_val``, with ``diag_step`` others between them.
    """

    def __init__(
        self,
        low: float = -1.0,
        high: float = 1.0,
        seed: int = 0,
        diag_num: int = 0,
        diag_step: int = 0,
        diag_val: float = 1.0,
    ) -> None:
        self._low, self._high = (number("initializer.Uniform: low and high", each) for each in (low, high))
        self._seed = check_int("initializer.Uniform: seed", seed)
        if not self._low <= self._high:
            raise ProgramError(f"initializer.Uniform: low is {low} and high is {high}; expected low <= high")
        diagonal = {
            "diag_num": check_int("initializer.Uniform: diag_num", diag_num),
            "diag_step": check_int("initializer.Uniform: diag_step", diag_step),
            "diag_val": number("initializer.Uniform: diag_val", diag_val),
        }
        if diag_num < 0 or diag_step < 0:
            raise ProgramError(
                f"initializer.Uniform: diag_num is {diag_num} and diag_step is {diag_step}; expected 0 or more"
            )
        self._diagonal = diagonal if diag_num else {}

    def __call__(self, var: Variable, block: Block) -> Operator:
        limits = {"min": self._low, "max": self._high}
        return _append(self, "uniform_random", var, block, **limits, seed=self._seed, **self._diagonal)


class NormalInitializer(Initializer):
    """Normal with mean ``loc`` and standard deviation ``scale``; ``seed`` 0 means the startup program's seed."""

    _type = "gaussian_random"

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> None:
        who = f"initializer.{type(self).__name__}"
        self._loc, self._scale = number(f"{who}: loc", loc), number(f"{who}: scale", scale)
        self._seed = check_int(f"{who}: seed", seed)
        if not self._scale >= 0:
            raise ProgramError(f"{who}: scale is {scale}; expected 0 or more")

    def __call__(self, var: Variable, block: Block) -> Operator:
        return _append(self, self._type, var, block, mean=self._loc, std=self._scale, seed=self._seed)


class TruncatedNormalInitializer(NormalInitializer):
    """As Normal, truncated at two standard deviations from the mean."""

    _type = "truncated_gaussian_random"


def _fan(initializer: str, argument: str, value: float | None) -> float | None:
    """Check a user's fan-in or fan-out; None: from the variable's dims."""
    if value is None:
        return None
    fan = number(f"initializer.{initializer}: {argument}", value)
    if not 0 <= fan < inf:
        raise ProgramError(f"initializer.{initializer}: {argument} is {value}; expected a number of 0 or more")
    return fan


class XavierInitializer(Initializer):
    """Random numbers whose variance is 2 / (fan_in + fan_out) (Glorot and Bengio, 2010).

    Parameters
    ----------
    uniform : bool
        Uniform in +-sqrt(6 / (fan_in + fan_out)), else normal.
    fan_in, fan_out : float or None
        None: from the variable's dims.
    seed : int
        0: the startup program's.
    """

    def __init__(
        self, uniform: bool = True, fan_in: float | None = None, fan_out: float | None = None, seed: int = 0
    ) -> None:
        self._uniform = check_bool("initializer.Xavier: uniform", uniform)
        self._fan_in, self._fan_out = _fan("Xavier", "fan_in", fan_in), _fan("Xavier", "fan_out", fan_out)
        self._seed = check_int("initializer.Xavier: seed", seed)
        if self._fan_in == self._fan_out == 0:
            raise ProgramError("initializer.Xavier: fan_in and fan_out are 0; expected one above it")

    def __call__(self, var: Variable, block: Block) -> Operator:
        user_fans = self._fan_in, self._fan_out
        total = sum(fan if user_fan is None else user_fan for user_fan, fan in zip(user_fans, _fans(var), strict=True))
        return _spread(self, var, block, 2.0 / total, self._uniform, self._seed)


class MSRAInitializer(Initializer):
    """Random numbers whose variance is 2 / fan_in, for rectified units (He and others, 2015).

    Parameters
    ----------
    uniform : bool
        Uniform in +-sqrt(6 / fan_in), else normal.
    fan_in : float or None
        None: from the variable's dims.
    seed : int
        0: the startup program's.
    """

    def __init__(self, uniform: bool = True, fan_in: float | None = None, seed: int = 0) -> None:
        self._uniform, self._fan_in = check_bool("initializer.MSRA: uniform", uniform), _fan("MSRA", "fan_in", fan_in)
        self._seed = check_int("initializer.MSRA: seed", seed)
        if self._fan_in == 0:
            raise ProgramError("initializer.MSRA: fan_in is 0; expected a number above it")

    def __call__(self, var: Variable, block: Block) -> Operator:
        fan_in = _fans(var)[0] if self._fan_in is None else self._fan_in
        return _spread(self, var, block, 2.0 / fan_in, self._uniform, self._seed)


def _spread(
    initializer: Initializer, var: Variable, block: Block, variance: float, uniform: bool, seed: int
) -> Operator:
    if uniform:
        limit = sqrt(3.0 * variance)
        return _append(initializer, "uniform_random", var, block, min=-limit, max=limit, seed=seed)
    return _append(initializer, "gaussian_random", var, block, mean=0.0, std=sqrt(variance), seed=seed)


class NumpyArrayInitializer(Initializer):
    """The values of an array, stored in the startup program and converted to the variable's dtype.

    Parameters
    ----------
    value : numpy.ndarray
        In the variable's dims.
    """

    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        if not isinstance(value, np.ndarray):
            raise ProgramError(f"initializer.NumpyArray: value is {type(value).__name__}; expected a numpy.ndarray")
        if value.dtype.kind not in "biuf" and value.dtype != NUMPY["bfloat16"]:
            raise DtypeError(f"initializer.NumpyArray: value has dtype {value.dtype}; expected real numbers")
        self._value = value.copy()

    def __call__(self, var: Variable, block: Block) -> Operator:
        if tuple(var.shape) != self._value.shape:
            raise ProgramError(
                f"initializer.NumpyArray: value has dims {list(self._value.shape)}, "
                f"and {var.name!r} is {list(var.shape)}; expected the same"
            )
        return _append_values(self._value, var, block)


class BilinearInitializer(Initializer):
    """The weight [output channels, input channels, size, size] of a transposed convolution that upsamples images.

    Every channel holds the same filter of bilinear interpolation. With stride ``factor`` the size is
    ``2 * factor - factor % 2`` and the padding ``ceil((factor - 1) / 2)``.
    """

    def __call__(self, var: Variable, block: Block) -> Operator:
        dims = tuple(var.shape)
        if len(dims) != 4 or dims[2] != dims[3]:
            raise ProgramError(
                f"initializer.Bilinear: {var.name!r} is {list(dims)}; expected 4 dims, of which the last two are equal"
            )
        if not is_float(var.dtype):
            raise DtypeError(f"initializer.Bilinear: {var.name!r} is {var.dtype}; expected floating-point numbers")
        factor = -(-dims[3] // 2)
        center = (2 * factor - 1 - factor % 2) / (2.0 * factor)
        line = 1 - np.abs(np.arange(dims[3]) / factor - center)
        return _append_values(np.broadcast_to(np.outer(line, line), dims), var, block)


def _append_values(values: np.ndarray[Any, Any], var: Variable, block: Block) -> Operator:
    return block.append_op("assign_value", {}, {"Out": var}, value_attrs(values, var.dtype))


def value_attrs(values: np.ndarray[Any, Any], dtype: str) -> dict[str, Any]:
    """The attributes of an assign_value operator for ``values`` in ``dtype``."""
    flat = values.ravel()
    if is_float(dtype):
        return {"shape": list(values.shape), "dtype": dtype, "fp32_values": flat.astype(np.float64).tolist()}
    with np.errstate(invalid="ignore"):  # values that do not fit differ after conversion
        integers = flat.astype(bool if dtype == "bool" else np.int64)
    if not np.array_equal(integers, flat):
        raise DtypeError(f"the values are {flat.dtype}, and not all of them can be {dtype}")
    return {"shape": list(values.shape), "dtype": dtype, "int32_values": integers.astype(np.int64).tolist()}


def set_global_initializer(weight_init: Initializer | None, bias_init: Initializer | None = None) -> None:
    """Set the default initialisers of new layers' parameters, where neither user nor layer names one.

    Parameters
    ----------
    weight_init : Initializer or None
        Replaces Xavier's; None: Xavier's.
    bias_init : Initializer or None
        Replaces 0; None: 0.

    Raises
    ------
    ProgramError
        One is no initialiser; then neither is changed.
    """
    for name, initializer in (("weight_init", weight_init), ("bias_init", bias_init)):
        if initializer is not None and not isinstance(initializer, Initializer):
            raise ProgramError(
                f"set_global_initializer: {name} is {initializer!r:.80}; expected an initialiser, or None"
            )
    _global[:] = [weight_init, bias_init]


def global_initializers() -> tuple[Initializer | None, Initializer | None]:
    """The initialisers of :func:`set_global_initializer`, for weights and for biases."""
    return _global[0], _global[1]


_global: list[Initializer | None] = [None, None]

Constant = ConstantInitializer
Uniform = UniformInitializer
Normal = NormalInitializer
TruncatedNormal = TruncatedNormalInitializer
Xavier = XavierInitializer
Bilinear = BilinearInitializer
NumpyArray = NumpyArrayInitializer
MSRA = MSRAInitializer
