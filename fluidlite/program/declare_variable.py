"""Declarations of variables and parameters in a block, with their checks and the rules for a repeated declaration."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fluidlite.base.arguments import check_int
from fluidlite.base.errors import ProgramError, ShapeError
from fluidlite.program.source_location import source_location
from fluidlite.program.variable import Parameter, Variable
from fluidlite.program.variable_metadata import ROWS, SelectedRowsOf
from fluidlite.tensor.tensor_array import array_spec
from fluidlite.tensor.tensor_spec import Spec, dims_problem
from fluidlite.tensor.var_type import VarType, dtype_of

if TYPE_CHECKING:
    from fluidlite.program.block import Block


def declared_dims(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return declared dims as a tuple: ints of 0 or more, or -1 for a dim that is unknown until the run."""
    try:
        dims = tuple(operator.index(d) for d in shape)
    except TypeError:
        dims = None
    if dims is None or any(isinstance(d, bool) for d in shape):
        raise ShapeError(f"variable {name!r} has shape {shape!r}; expected a list of ints")
    if any(d < -1 for d in dims):
        raise ShapeError(f"variable {name!r} has shape {list(dims)}; a dim is 0 or more, or -1 for unknown")
    problem = dims_problem(dims, "bool")
    if problem:
        raise ShapeError(f"variable {name!r} {problem}")
    return dims


def declare_variable(
    block: Block,
    name: str | None,
    shape: Sequence[int] | None,
    dtype: Any,
    lod_level: int | None,
    type: str,
    **options: bool,
) -> Variable:
    """Implement :meth:`Block.create_var`; ``options``: persistable, stop_gradient and is_data of the variable."""
    flags = options["persistable"], options["stop_gradient"]
    if name is None:
        name = block.new_name("_generated_var")
    elif not isinstance(name, str):
        raise ProgramError(f"the name of a variable is {name!r:.80}; expected a text")
    levels = check_int(f"lod_level of variable {name!r}", lod_level) if lod_level is not None else 0
    spec = None
    if shape is not None or dtype is not None:
        dims = declared_dims(name, shape) if shape is not None else ()
        spec = Spec.of(dims, dtype_of(dtype or "float32"), lod_level=levels)
        if shape is None:
            spec = None
    variable = block.vars.get(name)
    if type == VarType.SELECTED_ROWS and spec is not None and variable is None:
        return _declare_rows(block, name, spec, *flags)
    if spec is not None and variable is not None and variable.spec is not None:
        spec = spec.with_(  # unspecified fields are unchanged
            dtype=variable.spec.dtype if dtype is None else spec.dtype,
            lod_level=variable.spec.lod_level if lod_level is None else spec.lod_level,
        )
    if type == VarType.LOD_TENSOR_ARRAY and name not in block.vars:  # the dims of an element
        dims = spec.dims if spec is not None else ()
        element_spec = array_spec(dtype_of(dtype or "float32"), dims, levels)
        variable = block.vars[name] = Variable(block, name, element_spec, *flags)
        spec = None
    elif variable is None:
        variable = block.vars[name] = Variable(block, name, spec, *flags, options["is_data"], type)
        if variable.is_data:
            variable.line = source_location()
    elif spec is not None:
        if (variable.is_data or variable.declared is not None) and spec not in (variable.spec, variable.declared):
            raise ProgramError(f"variable {name!r} is declared twice: as {variable.spec!r} and as {spec!r}")
        variable.declare(spec)
    if spec is not None:
        variable.declared = spec
    block.program.touch()
    return variable


def _declare_rows(block: Block, name: str, spec: Spec, persistable: bool, stop_gradient: bool) -> Variable:
    """Declare sparse rows of a tensor: the values, and ``name@ROWS``, the variable of their row numbers."""
    if spec.rank < 1 or spec.dims[0] < 1:
        raise ProgramError(
            f"the dims of {name!r}, sparse rows, are {list(spec.dims)}; expected those of "
            "the whole tensor, [height, ...]"
        )
    numbers = Spec.of((-1,), "int64")
    block.create_var(name + ROWS, numbers.dims, numbers.dtype, persistable=persistable, stop_gradient=True)
    values = spec.with_(dims=(-1, *spec.dims[1:]))
    variable = block.vars[name] = Variable(block, name, values, persistable, stop_gradient)
    block.program.touch()
    return variable.select(SelectedRowsOf(name + ROWS, spec.dims[0]))


def declare_parameter(block: Block, name: str, shape: Sequence[int], dtype: Any, options: dict[str, Any]) -> Parameter:
    """Implement :meth:`Block.create_parameter`."""
    global_block = block.program.global_block()
    initializer = options.pop("initializer", None)
    if initializer is not None and not callable(initializer):
        raise ProgramError(
            f"parameter {name!r}: initializer is {initializer!r:.80}; expected one of fluid.initializer's objects"
        )
    if not isinstance(name, str):
        raise ProgramError(f"the name of a parameter is {name!r:.80}; expected a text")
    existing = global_block.vars.get(name)
    parameter = Parameter(global_block, name, declared_dims(name, shape), dtype, **options)
    if existing is not None:
        if not isinstance(existing, Parameter) or existing.spec != parameter.spec:
            raise ProgramError(f"parameter {name!r} is declared twice: as {existing.spec!r} and as {parameter.spec!r}")
        parameter = existing
    else:
        parameter.line = source_location()
        global_block.vars[name] = parameter
        block.program.touch()
    if initializer is not None and not any(name in op.output_arg_names for op in global_block.ops):
        initializer(parameter, global_block)
    return parameter
