"""Writes docs/nodes_in_place.svg: the buffers of docs/in_place.md's graph, without in-place and with it.

python tools/nodes_buffers_picture.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fluidlite import nodes as gn
from fluidlite.nodes.buffers import svg_of

TARGET = Path(__file__).resolve().parents[1] / "docs" / "nodes_in_place.svg"


def build() -> gn.Node:
    """Return the loss of the page."""
    x = gn.FixedData(np.ones((64, 32), "float32"))
    w, b = gn.Weight(np.ones((64, 64), "float32")), gn.Weight(np.ones(64, "float32"))
    h = gn.Sigmoid(gn.Affine(w, x, b) * 0.5)
    return gn.Mean(gn.Relu(h * 2.0 + 1.0))


def main() -> None:
    panels = [("inplace=False", gn.Graph(build(), False).nodes), ('inplace="auto"', gn.Graph(build(), "auto").nodes)]
    TARGET.write_text(svg_of(panels), encoding="utf-8")


if __name__ == "__main__":
    main()
