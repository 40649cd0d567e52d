"""The array capability of a device: its bytes as arrays of a namespace."""

from __future__ import annotations

from typing import Any, Protocol

from fluidlite.platform.device_memory import Span


class ArrayNamespace(Protocol):
    """The array capability: device bytes as arrays of an Array-API namespace."""

    xp: Any

    def wrap(self, span: Span, dims: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None) -> Any:
        """View bytes as a writable array without a copy; ``strides`` in elements, None for C order."""
        ...

    def extra(self, name: str) -> Any:
        """Return a function that the standard lacks (``"erf"``, ``"scatter_add"``, ...), or None."""
        ...


class ArrayBase:
    """Defaults of the array capability.

    Attributes
    ----------
    xp : module
        Array-API functions. Arrays must be writable in place (immutable libraries are not supported).
    out : bool
        Whether elementwise functions take an ``out=`` argument for their result, as NumPy's do.
    eager : bool
        Whether reading one value costs no synchronisation (host memory): index checks then raise at once.
    lacks : tuple of str
        The dtypes of the device that its functions do not support.
    """

    xp: Any
    out = False
    eager = False
    lacks: tuple[str, ...] = ()

    def extra(self, name: str) -> Any:
        """Return a function that the standard lacks, by its name, or None. Here: None."""
        return None

    def adopt(self, array: Any) -> Any:
        """Return the raw handle of an array that the library has just created, or None: the framework copies it."""
        return None
