"""``python -m fpga_simulator SOCKET MEMORY``: serve commands from an inherited socket until it closes."""

from __future__ import annotations

import socket
import sys

import numpy as np

from fpga_simulator.board import Board


def main() -> None:
    """Run one board."""
    descriptor, capacity = map(int, sys.argv[1:])
    np.seterr(all="ignore")
    with socket.socket(fileno=descriptor) as link:
        Board(link, capacity).serve()


if __name__ == "__main__":
    main()
