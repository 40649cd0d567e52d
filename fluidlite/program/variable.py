"""Variable and Parameter: named values of a block, with Python's operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fluidlite.base.arguments import check_method
from fluidlite.base.dtypes import is_float
from fluidlite.base.errors import FluidError, ProgramError, ShapeError
from fluidlite.base.overloads import BinaryOverloads
from fluidlite.program.contents import tracked
from fluidlite.program.variable_metadata import VariableMetadata
from fluidlite.tensor.tensor_spec import Spec
from fluidlite.tensor.var_type import dtype_of

if TYPE_CHECKING:
    from fluidlite.program.block import Block


_COMPARISONS = {"less": "less_than", "greater": "greater_than"}
_COMPARISONS |= {name: name for name in ("less_equal", "greater_equal", "equal", "not_equal")}
_COMPARISON_NOTE = "whether a list has a variable is told by `is`, or by names: == compares elements"


def operator_of(function: str) -> str:
    """Return the operator type for the function of a Python operator, such as ``"add"`` or ``"less"``."""
    return _COMPARISONS.get(function) or f"elementwise_{function}"


def _rank(dtype: str) -> int:
    """Return the rank of a dtype in conversions (bool, integers, floats), which are implicit to higher ranks only."""
    return 2 if is_float(dtype) else 0 if dtype == "bool" else 1


class Variable(VariableMetadata, BinaryOverloads[Any, Any, Any]):
    """A named value of a block. Python's operators on it append operators to the current block.

    Attributes
    ----------
    name : str
    block : Block
    spec : Spec or None
        Declared dims (-1: known at run time), dtype and LoD levels; None until declared or inferred.
    persistable : bool
        It persists in the scope between runs.
    stop_gradient : bool
        No gradient flows through it.
    is_data : bool
        It is to be fed.
    identity : int
        Shared with its counterparts in copies of the program, which name the same value, and otherwise unique.
    line : Line or None
        The user's line that declared it, if no operator writes it.
    declared : Spec or None
        The user's declaration, if any; inference may refine it in ``spec``.
    selected : SelectedRowsOf or None
        The row numbers and height, if it holds rows of a taller tensor (``type`` is SELECTED_ROWS).
    """

    def astype(self, dtype: Any) -> Variable:
        """Append a cast."""
        block = self.block.program.current_block()
        out = block.create_temporary(dtype_of(dtype))
        block.append_op("cast", {"X": self}, {"Out": out}, {"in_dtype": self.dtype, "out_dtype": dtype_of(dtype)})
        return out

    def _of_dtype(self, dtype: str) -> Variable:
        """Return itself, or a cast of it."""
        return self if self.dtype == dtype else self.astype(dtype)

    def _scaled(self, scale: float, bias: float) -> Variable:
        if bias:
            self._need_tensor()
        block = self.block.program.current_block()
        out = block.create_temporary(self.dtype)
        block.append_op("scale", {"X": self}, {"Out": out}, {"scale": float(scale), "bias": float(bias)})
        return out if self.selected is None else out.select(self.selected)

    def _need_tensor(self) -> None:
        """Raise ProgramError if it is sparse rows, whose values are not those of the tensor."""
        if self.selected is not None and self.block.program.role != "optimize":
            raise ProgramError(
                f"{self.name!r} is sparse rows (SelectedRows) of {self.selected.height}; expected a tensor"
                "\n  Do: layers.get_tensor_from_selected_rows first, or is_sparse=False"
            )

    def _number(self, type: str, other: Any) -> int | float:
        """Return a number as an operand of this variable; raise ProgramError unless its dtype can hold it."""
        value: int | float = int(other) if hasattr(other, "__index__") else float(other)
        try:
            number = float(value)
        except OverflowError:
            raise ProgramError(f"{type} of {self.name!r} ({self.dtype}) and a number beyond all dtypes") from None
        truth = self.dtype == "bool"
        if is_float(self.dtype) or (number in (0, 1) if truth else number.is_integer()):
            return value
        kind, give = ("bool", "True or False") if truth else ("integer", "a whole number")
        raise ProgramError(
            f"{type} of {self.name!r} ({self.dtype}) and {value}: no {kind} is {value}\n"
            f"  Do: {self.name}.astype('float32'), if the number is to count; else give {give}"
        )

    def _arithmetic(self, function: str, *operands: Any) -> Any:
        """Append the operator of a function of two operands, one of which is this variable."""
        type, reverse = operator_of(function), operands[0] is not self
        other, block = operands[0 if reverse else 1], self.block.program.current_block()
        if not isinstance(other, Variable):
            if not isinstance(other, (int, float, bool)) and getattr(other, "ndim", 1) != 0:
                return NotImplemented
            value, is_integer = self._number(type, other), not is_float(self.dtype)
            number = float(value)
            if not is_integer or (number == value and not self.dtype.startswith("uint")):  # else an exact constant
                if type == "elementwise_add":
                    return self._scaled(1.0, number)
                if type == "elementwise_sub":
                    return self._scaled(-1.0, number) if reverse else self._scaled(1.0, -number)
                if type == "elementwise_mul":
                    return self._scaled(number, 0.0)
                if type == "elementwise_div" and not reverse and not is_integer and number:
                    return self._scaled(1.0 / number, 0.0)
            self._need_tensor()
            other = block.constant_like(self, value, full=reverse)
        self._need_tensor()
        other._need_tensor()
        if other.dtype != self.dtype and _rank(other.dtype) <= _rank(self.dtype):  # else the operator raises
            other = other.astype(self.dtype)
        left, right = (other, self) if reverse else (self, other)
        shorter = len(right.shape) < len(left.shape)
        axis = 0 if shorter and right.shape and right.shape[0] == -1 else -1  # as in Fluid: the batch dims meet
        if len(left.shape) < len(right.shape):
            raise ShapeError(
                f"{type} of {left.name} {list(left.shape)} and {right.name} {list(right.shape)}: "
                "the left side must have the higher rank"
            )
        out = block.create_temporary(left.dtype)
        block.append_op(type, {"X": left, "Y": right}, {"Out": out}, {"axis": axis})
        return out

    def _compare(self, function: str, *operands: Any) -> Any:
        """Append a comparison with another operand."""
        try:
            return self._arithmetic(function, *operands)
        except FluidError as error:
            if function in ("equal", "not_equal"):
                error.add_note(_COMPARISON_NOTE)
            raise

    def __neg__(self) -> Variable:
        return self._scaled(-1.0, 0.0)

    def __getitem__(self, key: Any) -> Variable:
        """Return the part selected by ints, slices, integer variables, ``...`` and None."""
        self._need_tensor()
        from fluidlite.program.indexing import indexed

        return indexed(self, key)

    __array_ufunc__ = None  # NumPy defers operators with a variable to the variable

    def set_error_clip(self, error_clip: Any) -> None:
        """Clip this variable's gradient during backward (Fluid's ``ErrorClipByValue``)."""
        clips = "a clip.ErrorClipByValue"
        self.error_clip = check_method(f"error_clip of variable {self.name!r}", error_clip, "append_clip_op", clips)

    _set_error_clip = set_error_clip  # its name since Fluid 1.3

    def __iter__(self) -> Iterator[Variable]:
        dims = self._spec().dims
        if not dims or dims[0] < 0:
            raise TypeError(f"variable {self.name!r} {list(dims)} cannot be iterated: its first dim is not known yet")
        return (self[i] for i in range(dims[0]))

    def __bool__(self) -> bool:
        if self.spec is None or self.spec.dtype != "bool":
            return True  # as in Fluid: `if bias:` tests for None
        raise TypeError(
            f"variable {self.name!r} has no truth value while the program is built; "
            f"use layers.logical_and and its like, and compare with None by `is`; {_COMPARISON_NOTE}"
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"variable {self.name!r} has no values while the program is built; fetch it from Executor.run")


class Parameter(Variable):
    """A persistable variable that training changes.

    Attributes
    ----------
    trainable : bool
    optimize_attr : dict
        ``{"learning_rate": factor}``.
    regularizer, gradient_clip_attr : object or None
    """

    trainable: bool = tracked("trainable", bool)
    optimize_attr: dict[str, Any] = tracked("optimize_attr", dict)

    def __init__(self, block: Block, name: str, shape: Sequence[int], dtype: Any, **options: Any) -> None:
        dims = tuple(shape)
        if any(d < 0 for d in dims):
            raise ShapeError(f"parameter {name!r} has dims {list(dims)}; every one must be known")
        levels = options.pop("lod_level", 0)
        if isinstance(levels, bool) or not isinstance(levels, int) or not 0 <= levels <= 3:
            raise ProgramError(f"parameter {name!r}: lod_level is {levels!r}; expected 0 to 3")
        super().__init__(block, name, Spec.of(dims, dtype_of(dtype), lod_level=levels), persistable=True)
        what, clips = f"parameter {name!r}:", "one of fluid.clip's"
        self.trainable = options.pop("trainable", True)
        self.optimize_attr = options.pop("optimize_attr", None) or {"learning_rate": 1.0}
        regularizer, clip = options.pop("regularizer", None), options.pop("gradient_clip_attr", None)
        self.regularizer = check_method(f"{what} regularizer", regularizer, "__call__", "one of fluid.regularizer's")
        self.gradient_clip_attr = check_method(f"{what} gradient_clip_attr", clip, "create_operators", clips)
        self.error_clip = options.pop("error_clip", None)
        self.do_model_average = options.pop("do_model_average", None)
        self.stop_gradient = options.pop("stop_gradient", False) or not self.trainable
        if options:
            raise ProgramError(f"parameter {name!r} got unknown options {sorted(options)}")

    def declare(self, spec: Spec) -> None:
        """Set the inferred spec, with the LoD levels of the declaration."""
        level = self.lod_level
        super().declare(spec.with_(lod_level=level) if level != spec.lod_level else spec)
