"""The one exception tree.

Every error that fluidlite raises on purpose is a :class:`FluidError`, and is also the built-in
exception that a Python programmer would expect (``ValueError``, ``KeyError``, ``MemoryError``, ...).
"""

from __future__ import annotations


class FluidError(Exception):
    """Base of all errors of fluidlite."""

    def __str__(self) -> str:  # KeyError would print the repr of a message of several lines
        return str(self.args[0]) if self.args else ""


class PlaceError(FluidError, ValueError):
    """A place that cannot be parsed, or that no device serves."""


class DeviceUnavailable(FluidError, RuntimeError):
    """A device kind cannot be used here; the message is the reason (missing driver, ...)."""


class DeviceError(FluidError, RuntimeError):
    """A device or its driver failed; the cause is chained."""


class DeviceLost(DeviceError):
    """The device is gone. Its place stays unusable; other places go on."""


class KernelError(DeviceError):
    """``fluid.debug`` or a certificate saw a kernel leave an output unwritten, or write anything else."""


class CompileError(DeviceError):
    """A device refused generated source; the message holds the log, ``source`` the text."""

    def __init__(self, message: str, source: str = "") -> None:
        super().__init__(message)
        self.source = source


class AllocationError(FluidError, RuntimeError):
    """Double free, foreign free, use after free or after an arena's reset, or what memory cannot be asked for."""


class OutOfMemoryError(FluidError, MemoryError):
    """A place has no room: names place, asked, used, reserved and, from a run, the operator."""


class TensorError(FluidError, ValueError):
    """A tensor was asked for what it is not: no data yet, wrong dims, dtype, layout or LoD."""


class LoDError(TensorError, AssertionError):
    """Lengths of sequences that do not cover the rows; Fluid raises AssertionError for it."""


class LayoutError(TensorError):
    """The physical layout of a tensor does not allow what was asked."""


class RegistryError(FluidError, ValueError):
    """A bad or double registration of an operator, kernel, library or device."""


class OperatorNotFoundError(RegistryError, KeyError):
    """No operator of that type is registered; close names are listed."""


class SupportsError(RegistryError):
    """``supports(call)`` of a kernel or of a device raised, or returned what is no answer; it is named.

    Attributes
    ----------
    op : str
        The type of the operator that it was asked about.
    """

    def __init__(self, message: str, op: str = "") -> None:
        super().__init__(message)
        self.op = op


class KernelNotFoundError(FluidError, RuntimeError):
    """No kernel can run the operator on the place, and the fallback policy forbids another place."""


class FallbackWarning(UserWarning):
    """Operators of a program run on the fallback place because theirs has no kernel."""


class PluginWarning(UserWarning):
    """A plugin was left out; ``fluidlite plugins`` shows why."""


class ProgramError(FluidError, ValueError):
    """A program is malformed: unknown variable, slot or attribute, wrong block, read before write."""


class ShapeError(ProgramError):
    """Dims or rank that an operator's definition forbids."""


class DtypeError(ProgramError, TypeError):
    """A data type that an operator's definition forbids."""


class AttributeValueError(ProgramError):
    """An attribute of the wrong type or outside its range."""


class FeedError(ProgramError):
    """A feed that is missing, unknown, or of the wrong dims or dtype."""


class FetchError(ProgramError):
    """A fetched name that the program does not make, or that cannot become a NumPy array."""


class LoaderError(FluidError, ValueError):
    """A loader's settings do not fit, or its source is empty, used up, or not what it claims to be."""


class WorkerError(FluidError, RuntimeError):
    """A process of a loader died, or what it raised could not be sent; the message has its traceback."""


class EOFException(FluidError, EOFError):
    """A started reader has no more batches; ``reset()`` and ``start()`` begin anew."""


class OutOfRangeError(FluidError, IndexError):
    """An index read from data lies outside its range."""


class NonFiniteError(FluidError, ArithmeticError):
    """``fluid.debug(check_nan=True)`` found NaN or Inf."""


class GradientError(ProgramError):
    """A gradient was asked for that does not exist."""


class NodeError(ProgramError):
    """Nodes or devices that do not fit: inputs on different memory, a use out of order, an unsafe in-place."""


class NetworkError(ProgramError):
    """A network that cannot be built or used so: layers that do not fit, no loss, a loader's batches that do not."""


class CollectiveError(FluidError, RuntimeError):
    """A collective operation failed: another process died, left or did not come, or the extra for it is missing."""


class SavedModelError(FluidError, ValueError):
    """A saved file is truncated, of a newer version, malformed, or not what it claims to be."""


class MissingExtraError(FluidError, ImportError):
    """An optional library is needed; the message names the extra to install."""
