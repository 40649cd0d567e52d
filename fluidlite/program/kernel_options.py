"""What few kernels say of themselves at registration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fluidlite.base.errors import RegistryError
from fluidlite.program.operator_options import check_fields

WRITTEN_FOR = ("", "registers", "cores")


@dataclass(frozen=True, kw_only=True)
class KernelOptions:
    """What ``register_kernel(..., options=)`` takes: what a kernel needs of tensors, and what it does beside computing.

    Attributes
    ----------
    kinds : tuple of str
        Kinds of tensor it takes.
    layouts : mapping of slot to layout name
        In which its inputs must lie and its outputs will (``"NHWC"``; ``"any"``: as an input lies); the planner
        rearranges what lies otherwise. What is not named is plain.
    prefers : mapping of slot to layout name
        In which it would rather find its inputs and leave its outputs. It takes plain ones, and lays them out itself.
    indexes : bool
        It checks indices, and records deferred errors in the context's error flag.
    predicated : bool
        It takes the error flag and writes nothing once that is set.
    library_backed : bool
        It spends its time in its library's own routines (matrix products, sorting): it goes before a preferred
        language's.
    epilogue : bool
        It takes calls of its operator that have an epilogue (``call.epilogue``), if ``supports`` says so.
    written_for : str
        ``"registers"``: it is written with vector types, and a device whose kernel language names no ``registers`` does
        not get it. ``"cores"``: its work-items are few and long, and a device that runs them side by side, whose
        language names a ``group``, does not get it. ``""``: any device with its kernel language.

    Raises
    ------
    RegistryError
        If a value is of another kind.
    """

    kinds: tuple[str, ...] = ("dense",)
    layouts: Mapping[str, str] = field(default_factory=dict)
    prefers: Mapping[str, str] = field(default_factory=dict)
    indexes: bool = False
    predicated: bool = False
    library_backed: bool = False
    epilogue: bool = False
    written_for: str = ""

    def __post_init__(self) -> None:
        check_fields(self, names=("kinds",), mappings=("layouts", "prefers"))
        check_fields(self, flags=("indexes", "predicated", "library_backed", "epilogue"))
        if self.written_for not in WRITTEN_FOR:
            expected = " or ".join(map(repr, WRITTEN_FOR))
            raise RegistryError(f"KernelOptions(written_for={self.written_for!r}): expected {expected}")
        if not self.kinds:
            raise RegistryError("KernelOptions(kinds=()): a kernel that takes no kind of tensor is never chosen")
