"""The wrapper of public layers: a failed layer is undone completely, and errors name the user's line."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

from fluidlite.base.errors import FluidError, ProgramError
from fluidlite.layers.documentation import code_documentation
from fluidlite.layers.selected_rows import SPARSE_LAYERS
from fluidlite.program.program import default_main_program, default_startup_program
from fluidlite.program.source_location import PACKAGE_FOLDER, source_location
from fluidlite.program.undo import undone_on_error
from fluidlite.program.variable import Variable

Layer = TypeVar("Layer", bound=Callable[..., Any])
_ROWS_LAYERS = {"merge_selected_rows", "get_tensor_from_selected_rows"}  # take SelectedRows only
_KIND_ERRORS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""Python's errors for an argument of the wrong kind."""


def public(layer: Layer) -> Layer:
    """Wrap a layer for users."""

    @functools.wraps(layer)
    def _public(*args: Any, **kwargs: Any) -> Any:
        main, start = default_main_program(), default_startup_program().global_block()
        blocks = dict.fromkeys((main.current_block(), main.global_block(), start))
        try:
            with undone_on_error(*blocks):
                sparse = _sparse_rows(args, kwargs)
                if sparse and layer.__name__ in SPARSE_LAYERS:
                    return SPARSE_LAYERS[layer.__name__](layer, *args, **kwargs)
                for variable in sparse if layer.__name__ not in _ROWS_LAYERS else ():
                    variable._need_tensor()
                return layer(*args, **kwargs)
        except FluidError as exc:
            text = str(exc)
            if _line_text() not in text:
                exc.args = (f"{_layer_text(layer)}: {text}", *exc.args[1:])
            raise
        except _KIND_ERRORS as exc:
            bound = _bind(layer, args, kwargs)
            if not _is_own_error(exc.__traceback__) or not bound:
                raise  # an error of a user's function, or Python's error for missing arguments
            given_texts = ", ".join(f"{name} = {value!r:.60}" for name, value in bound.items())
            raise ProgramError(
                f"{_layer_text(layer)}: an argument is of no kind that the layer takes ({type(exc).__name__}: {exc}); "
                f"given are {given_texts}."
            ) from exc

    if "----" not in (layer.__doc__ or ""):
        _public.__doc__ = code_documentation(layer)
    return cast(Layer, _public)


def _sparse_rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Variable]:
    """Return the arguments, and the items of lists among them, that are SelectedRows."""
    values = [value if isinstance(value, (list, tuple)) else (value,) for value in (*args, *kwargs.values())]
    return [item for items in values for item in items if isinstance(item, Variable) and item.selected is not None]


def _line_text() -> str:
    line = source_location()
    return f"{os.path.basename(line.file)}:{line.number}"


def _layer_text(layer: Callable[..., Any]) -> str:
    return f"{source_location().api or f'layers.{layer.__name__}'} ({_line_text()})"


def _is_own_error(traceback: TracebackType | None) -> bool:
    """Whether the error was raised in this package."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(PACKAGE_FOLDER)


def _bind(layer: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; empty if they do not match the layer's signature."""
    try:
        return dict(inspect.signature(layer).bind(*args, **kwargs).arguments)
    except TypeError:
        return {}
