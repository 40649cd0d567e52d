"""IO: the buffers of one run of a kernel."""

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
    """What a prepared kernel computes on; made anew for each run.

    Attributes
    ----------
    call : Call
    tensors : list of Tensor
        Inputs, then outputs, in the order of ``call.index``. Outputs allocate when they are first touched.
    workspace : Tensor or None
        The bytes that the prepared kernel stated.
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
        """Whether the slot is given or wanted."""
        return slot in self.call.index

    def tensor(self, slot: str, i: int = 0) -> Tensor:
        """The tensor itself; an output is allocated."""
        tensor = self.tensors[self.call.index[slot] + i]
        if tensor.allocation is None:
            tensor.allocate(self.context)
        return tensor

    def resize(self, slot: str, dims: Sequence[int], i: int = 0, lod: Lod | None = None) -> None:
        """Give an output its dims and LoD, before it is touched: for operators declared ``dynamic``."""
        tensor = self.tensors[self.call.index[slot] + i]
        assert tensor.spec is not None
        changes = {"dims": tuple(dims)} if lod is None else {"dims": tuple(dims), "lod": lod}
        tensor.spec = tensor.spec.with_(**changes)

    def array(self, slot: str, i: int = 0) -> Any:
        """The slot's bytes as an array of the place's namespace; a write to an output's is its value."""
        tensor = self.tensors[self.call.index[slot] + i]
        if tensor.allocation is None:
            tensor.allocate(self.context)
        return tensor.native()

    def arrays(self, slot: str) -> list[Any]:
        """The arrays of a duplicable slot."""
        return [self.array(slot, i) for i in range(self.call.count(slot))]

    def span(self, slot: str, i: int = 0) -> Span:
        """The slot's bytes as a range of a raw handle."""
        return self.tensor(slot, i).span()

    def packed(self, slot: str) -> Span | None:
        """The form of an input that ``Prepared.packed`` asked for, or None: then the kernel reads the input."""
        return self._packed.get(slot) if self._packed is not None else None

    def address(self, slot: str, i: int = 0) -> int:
        """The slot's address, on places whose allocator gives addresses."""
        return self.tensor(slot, i).address()
