"""The LoD of a tensor: sequences of rows, as offsets or lengths."""

from __future__ import annotations

from typing import Any

from fluidlite.base.errors import TensorError
from fluidlite.tensor.lod import lengths_of, lod_from_lengths, lod_from_offsets
from fluidlite.tensor.tensor_memory import TensorMemory
from fluidlite.tensor.tensor_spec import Lod, Spec


class TensorLod(TensorMemory):
    """Sequences of a tensor, under Fluid's names."""

    __slots__ = ()

    def lod(self) -> list[list[int]]:
        """Offsets, coarsest level first."""
        return [list(level) for level in self.spec.lod] if self.spec is not None else []

    def set_lod(self, lod: Any) -> None:
        """Set offsets, such as ``[[0, 2, 5]]``; lengths go to :meth:`set_recursive_sequence_lengths`."""
        rows = self.spec.dims[0] if self.spec is not None and self.spec.dims and self.initialized else None
        self._set_lod(lod_from_offsets(lod, rows))

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Lengths, coarsest level first."""
        return lengths_of(self.spec.lod) if self.spec is not None else []

    def set_recursive_sequence_lengths(self, lengths: Any) -> None:
        """Set lengths, such as ``[[2, 3]]``; offsets go to :meth:`set_lod`."""
        rows = self.spec.dims[0] if self.spec is not None and self.spec.dims and self.initialized else None
        self._set_lod(lod_from_lengths(lengths, rows))

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Whether the LoD covers exactly the rows."""
        try:
            lod_from_offsets(self.lod(), self.dims[0] if self.dims else None)
        except TensorError:
            return False
        return True

    def _set_lod(self, lod: Lod) -> None:
        spec = self.spec
        self.spec = spec.with_(lod=lod) if spec is not None else Spec.of((lod[-1][-1],) if lod else (), "float32", lod)
        self._array = None
        self._rises += 1
