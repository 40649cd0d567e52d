"""The exception hierarchy of fluidlite.

Every error that fluidlite raises on purpose is a :class:`FluidError`, and is also the built-in
exception that a Python programmer would expect (``ValueError``, ``KeyError``, ``MemoryError``, ...).
"""


class FluidError(Exception):
    """Base of all errors of fluidlite."""

    def __str__(self) -> str:  # KeyError would print the repr of a message of several lines
        return str(self.args[0]) if self.args else ""


class PlaceError(FluidError, ValueError):
    """A place that cannot be parsed, or whose kind has no device."""


class DeviceUnavailable(FluidError, RuntimeError):
    """A device kind cannot be used on this machine; the message is the reason (missing driver, ...)."""


class DeviceError(FluidError, RuntimeError):
    """A device or its driver failed; the cause is chained."""


class DeviceLost(DeviceError):
    """The device was lost. Its place stays unusable; other places continue to work."""


class KernelError(DeviceError):
    """A kernel left an output unwritten or wrote other memory, detected by ``fluid.debug`` or a certificate."""


class CompileError(DeviceError):
    """A device's compiler rejected generated source; the message is the log, ``source`` the text."""

    def __init__(self, message: str, source: str = "") -> None:
        super().__init__(message)
        self.source = source


class AllocationError(FluidError, RuntimeError):
    """Double free, foreign free, use after free or after an arena's reset, or an invalid allocation request."""


class OutOfMemoryError(FluidError, MemoryError):
    """Out of memory; the message names the place, the bytes requested, used and reserved, and in a run the operator."""


class TensorError(FluidError, ValueError):
    """An operation that a tensor's state forbids: it has no data yet, or other dims, dtype, layout or LoD."""


class LoDError(TensorError, AssertionError):
    """Lengths of sequences that do not cover the rows; Fluid raises AssertionError for it."""


class LayoutError(TensorError):
    """The physical layout of a tensor does not allow the operation."""


class RegistryError(FluidError, ValueError):
    """A bad or double registration of an operator, kernel, library or device."""


class OperatorNotFoundError(RegistryError, KeyError):
    """No operator of that type is registered; close names are listed."""


class SupportsError(RegistryError):
    """``supports(call)`` of a kernel or of a device raised, or returned an invalid value; the message names it.

    Attributes
    ----------
    op : str
        The type of the operator in the call.
    """

    def __init__(self, message: str, op: str = "") -> None:
        super().__init__(message)
        self.op = op


class KernelNotFoundError(FluidError, RuntimeError):
    """No kernel can run the operator on the place, and the fallback policy forbids another place."""


class FallbackWarning(UserWarning):
    """Operators of a program run on the fallback place because their own place has no kernel."""


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
    """A fetched name that the program does not compute, or a value that cannot become a NumPy array."""


class LoaderError(FluidError, ValueError):
    """Invalid settings of a loader, or a source that is empty, exhausted or malformed."""


class WorkerError(FluidError, RuntimeError):
    """A loader's process died, or its exception could not be pickled; the message has its traceback."""


class EOFException(FluidError, EOFError):
    """A started reader has no more batches; ``reset()`` and ``start()`` begin anew."""


class OutOfRangeError(FluidError, IndexError):
    """An index read from data lies outside its range."""


class NonFiniteError(FluidError, ArithmeticError):
    """``fluid.debug(check_nan=True)`` found NaN or Inf."""


class GradientError(ProgramError):
    """A requested gradient does not exist."""


class NodeError(ProgramError):
    """Invalid use of nodes or devices: inputs in different memories, a use out of order, an unsafe in-place update."""


class NetworkError(ProgramError):
    """A network that cannot be built or used: incompatible layers, no loss, batches of the wrong form."""


class CollectiveError(FluidError, RuntimeError):
    """A collective operation failed: another process died, left or never joined, or the optional package is missing."""


class SavedModelError(FluidError, ValueError):
    """A saved file is truncated, of a newer version, malformed, or of another kind."""


class MissingExtraError(FluidError, ImportError):
    """An optional library is needed; the message names the extra to install."""
