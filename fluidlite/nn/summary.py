"""Summary: a table of a network's layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluidlite.base.errors import FluidError
from fluidlite.base.text_table import table
from fluidlite.executor.explain import explain

if TYPE_CHECKING:
    from fluidlite.nn.network import Network

_HEADS = ("layer", "output", "parameters", "bytes", "kernels")
DEFAULT_ROWS = 32


@dataclass(frozen=True)
class LayerSummary:
    """One row of the table: a layer, its output, its parameters and its kernels.

    Attributes
    ----------
    kernels : tuple of str
        For each forward operator: its type, its kernel's library, and how the kernel was selected.
    """

    name: str
    kind: str
    output: tuple[int, ...]
    parameters: int
    nbytes: int
    output_bytes: int
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """All layers of a network, with totals; its text is the table.

    Attributes
    ----------
    layers : tuple of LayerSummary
    place : str
    rows : int
        Number of rows for the selection of kernels and the size of outputs.
    state_bytes : int
        Bytes of the optimizer's state.
    """

    layers: tuple[LayerSummary, ...]
    place: str
    rows: int
    state_bytes: int

    @property
    def parameters(self) -> int:
        """Number of trainable elements."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of parameters and state of layers."""
        return sum(layer.nbytes for layer in self.layers)

    def __str__(self) -> str:
        rows = [
            (
                f"{layer.name} ({layer.kind})",
                "x".join("N" if d < 0 else str(d) for d in layer.output) or "1",
                f"{layer.parameters:,}",
                f"{layer.nbytes:,}",
                ", ".join(layer.kernels),
            )
            for layer in self.layers
        ]
        outputs = sum(layer.output_bytes for layer in self.layers)
        return "\n".join(
            [
                *table([_HEADS, *rows], (2, 3)),
                f"{self.parameters:,} parameters of {self.nbytes:,} bytes; optimizer state {self.state_bytes:,} bytes; "
                f"outputs of {self.rows} rows {outputs:,} bytes; on {self.place}",
            ]
        )


def summarise(network: Network, rows: int | None) -> Summary:
    programs = network.compile()
    count = DEFAULT_ROWS if rows is None else rows
    dims = [count if d < 0 else d for d in network.input.shape]
    kernels: dict[str, list[str]] = {}
    try:
        report = explain(
            programs.predict, network.place, {network.input.name: dims}, programs.predicted, mode="interpreted"
        )
        for planned in report.plan.lines:
            choices = [] if planned.choice is None else planned.choice.part_choices or [planned.choice]
            library = " + ".join(dict.fromkeys(choice.library for choice in choices)) or "host"
            text = f"{planned.op.type}: {library}" + ("" if planned.how == "native" else f" ({planned.how})")
            kernels.setdefault(planned.op.namescope.partition("/")[0], []).append(text)
    except FluidError as exc:  # no kernel on the place: the other columns are still shown
        kernels = {layer.name: [f"none ({str(exc).splitlines()[0]})"] for layer in network.layers}
    return Summary(
        tuple(
            LayerSummary(
                layer.name,
                layer.kind,
                tuple(layer.output.shape),
                layer.parameter_count,
                layer.parameter_bytes,
                layer.output_bytes(count),
                tuple(kernels.get(layer.name, ())),
            )
            for layer in network.layers
        ),
        str(network.place),
        count,
        programs.state_bytes,
    )
