"""What every layer does for its user: it is appended whole or not at all, and an error names the user's line."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

from fluidlite.base.errors import FluidError, ProgramError
from fluidlite.layers.documentation import code_documentation
from fluidlite.layers.selected_rows import OF_ROWS
from fluidlite.program.program import default_main_program, default_startup_program
from fluidlite.program.source_location import PACKAGE_FOLDER, source_location
from fluidlite.program.undo import undone_on_error
from fluidlite.program.variable import Variable

Layer = TypeVar("Layer", bound=Callable[..., Any])
OPTIMIZE = "optimize"
_TAKES_ROWS = {"merge_selected_rows", "get_tensor_from_selected_rows"}
_UNFIT = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What Python raises where a value is not of the kind that the code reads."""


def public(layer: Layer) -> Layer:
    """Return the layer as users call it."""

    @functools.wraps(layer)
    def _public(*args: Any, **kwargs: Any) -> Any:
        main, start = default_main_program(), default_startup_program().global_block()
        blocks = dict.fromkeys((main.current_block(), main.global_block(), start))
        try:
            with undone_on_error(*blocks):
                if layer.__name__ in OF_ROWS and any(map(_has_rows, (*args, *kwargs.values()))):
                    return OF_ROWS[layer.__name__](layer, *args, **kwargs)
                if main.role != OPTIMIZE and layer.__name__ not in _TAKES_ROWS:
                    _refuse_rows(args, kwargs)
                return layer(*args, **kwargs)
        except FluidError as exc:
            text = str(exc)
            if _where() not in text:
                exc.args = (f"{_named(layer)}: {text}", *exc.args[1:])
            raise
        except _UNFIT as exc:
            bound = _bind(layer, args, kwargs)
            if not _ours(exc.__traceback__) or not bound:
                raise  # a user's function that was called, or Python's own word on arguments that are missing
            given = ", ".join(f"{name} = {value!r:.60}" for name, value in bound.items())
            raise ProgramError(
                f"{_named(layer)}: an argument is of no kind that the layer takes ({type(exc).__name__}: {exc}); "
                f"given are {given}."
            ) from exc

    if "----" not in (layer.__doc__ or ""):
        _public.__doc__ = code_documentation(layer)
    return cast(Layer, _public)


def _refuse_rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse gradients that are sparse rows: their values, taken for a tensor, would give wrong numbers silently."""
    for value in (*args, *kwargs.values()):
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, Variable) and each.selected is not None:
                raise ProgramError(
                    f"{each.name!r} is sparse rows (SelectedRows) of {each.selected.height}; expected a tensor"
                    "\n  Do: layers.get_tensor_from_selected_rows first, or is_sparse=False"
                )


def _has_rows(value: Any) -> bool:
    items = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(each, Variable) and each.selected is not None for each in items)


def _where() -> str:
    line = source_location()
    return f"{os.path.basename(line.file)}:{line.number}"


def _named(layer: Callable[..., Any]) -> str:
    return f"{source_location().api or f'layers.{layer.__name__}'} ({_where()})"


def _ours(traceback: TracebackType | None) -> bool:
    """Whether the error arose in a line of this package."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(PACKAGE_FOLDER)


def _bind(layer: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; none if they do not fit the layer's signature."""
    try:
        return dict(inspect.signature(layer).bind(*args, **kwargs).arguments)
    except TypeError:
        return {}
