"""KernelOptions: less common properties of a kernel at its registration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fluidlite.base.errors import RegistryError
from fluidlite.program.operator_options import check_fields

WRITTEN_FOR = ("", "registers", "cores")


@dataclass(frozen=True, kw_only=True)
class KernelOptions:
    """The ``options=`` of ``register_kernel``: requirements of a kernel on tensors, and its effects.

    Attributes
    ----------
    kinds : tuple of str
        Kinds of tensor it accepts.
    layouts : mapping of slot to layout name
        The layouts of its inputs and outputs (``"NHWC"``; ``"any"``: that of an input); the planner converts tensors
        in another layout. Slots that are not named have the plain layout.
    prefers : mapping of slot to layout name
        Preferred layouts of its inputs and outputs. It also accepts plain ones, and converts them itself.
    indexes : bool
        It checks indices, and records deferred errors in the context's error flag.
    predicated : bool
        It reads the error flag and writes nothing once that is set.
    library_backed : bool
        It spends its time in its library's own routines (matrix products, sorting): it has priority over a preferred
        kernel language.
    epilogue : bool
        It accepts calls of its operator with an epilogue (``call.epilogue``), subject to ``supports``.
    written_for : str
        ``"registers"``: it uses vector types, and is not used on a device whose kernel language states no
        ``registers``. ``"cores"``: it has few, long work-items, and is not used on a device that runs work-items in
        parallel groups, whose language states a ``group``. ``""``: any device with its kernel language.

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
