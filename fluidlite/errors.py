"""The exceptions and warnings of fluidlite: one tree, whose root is :class:`FluidError`."""

from fluidlite.base.errors import (
    AllocationError,
    AttributeValueError,
    CompileError,
    DeviceError,
    DeviceLost,
    DeviceUnavailable,
    DtypeError,
    FallbackWarning,
    FeedError,
    FetchError,
    FluidError,
    GradientError,
    KernelNotFoundError,
    LayoutError,
    MissingExtraError,
    NonFiniteError,
    OperatorNotFoundError,
    OutOfMemoryError,
    OutOfRangeError,
    PlaceError,
    PluginWarning,
    ProgramError,
    RegistryError,
    SavedModelError,
    ShapeError,
    TensorError,
)

__all__ = [
    "AllocationError", "AttributeValueError", "CompileError", "DeviceError", "DeviceLost", "DeviceUnavailable",
    "DtypeError", "FallbackWarning", "FeedError", "FetchError", "FluidError", "GradientError", "KernelNotFoundError",
    "LayoutError", "MissingExtraError", "NonFiniteError", "OperatorNotFoundError", "OutOfMemoryError",
    "OutOfRangeError", "PlaceError", "PluginWarning", "ProgramError", "RegistryError", "SavedModelError", "ShapeError",
    "TensorError",
]  # fmt: skip
