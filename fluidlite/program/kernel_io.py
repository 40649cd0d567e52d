"""IO: the operands of one run of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluidlite.program.op_call import Call
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_spec import Lod

if TYPE_CHECKING:
    from fluidlite.platform.context import Context
    from fluidlite.platform.device_memory import Span


class IO:
    """The operands of one run of a prepared kernel; each run gets its own.

    Attributes
    ----------
    call : Call
    tensors : list of Tensor
        Inputs, then outputs, in the order of ``call.index``. Outputs are allocated on first use.
    workspace : Tensor or None
        The scratch memory that the prepared kernel requested.
    random : tuple of int
        Philox words of this run: key (2), run number, stream.
    op_id : int
        Identifies the operator in the context's status word.
    """

    __slots__ = ("_packed", "call", "context", "op_id", "random", "tensors", "workspace")

    def __init__(
        self,
        call: Call,
        tensors: list[Tensor],
        context: Context,
        op_id: int = 0,
        random: tuple[int, int, int, int] = (0, 0, 0, 0),
        workspace: Tensor | None = None,
        packed: Mapping[str, Span] | None = None,
    ) -> None:
        self.call = call
        self.tensors = tensors
        self.context = context
        self.op_id = op_id
        self.random = random
        self.workspace = workspace
        self._packed = packed

    def has(self, slot: str) -> bool:
        """Whether the call has the slot."""
        return slot in self.call.index

    def tensor(self, slot: str, i: int = 0) -> Tensor:
        """Return the tensor; an output is allocated."""
        tensor = self.tensors[self.call.index[slot] + i]
        if tensor.allocation is None:
            tensor.allocate(self.context)
        return tensor

    def resize(self, slot: str, dims: Sequence[int], i: int = 0, lod: Lod | None = None) -> None:
        """Set an output's dims and LoD before its first use: for operators declared ``dynamic``."""
        tensor = self.tensors[self.call.index[slot] + i]
        assert tensor.spec is not None
        changes = {"dims": tuple(dims)} if lod is None else {"dims": tuple(dims), "lod": lod}
        tensor.spec = tensor.spec.with_(**changes)

    def array(self, slot: str, i: int = 0) -> Any:
        """Return the slot's memory as an array of the place's namespace; writing to it sets an output's value."""
        return self.tensor(slot, i).native()

    def arrays(self, slot: str) -> list[Any]:
        """The arrays of a duplicable slot."""
        return [self.array(slot, i) for i in range(self.call.count(slot))]

    def span(self, slot: str, i: int = 0) -> Span:
        """Return the slot's memory as a span of a raw handle."""
        return self.tensor(slot, i).span()

    def packed(self, slot: str) -> Span | None:
        """Return the packed form of an input of ``Prepared.packed``, or None: the kernel then reads the input."""
        return self._packed.get(slot) if self._packed is not None else None

    def address(self, slot: str, i: int = 0) -> int:
        """Return the slot's address, on places whose allocator provides addresses."""
        return self.tensor(slot, i).address()
