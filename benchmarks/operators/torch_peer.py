"""PyTorch's process: it prepares the cases that it is told to, and runs them when it has a turn.

A line of JSON asks, a line answers. It lives in a Python of its own, since PyTorch need not be where fluidlite is.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.common import Worker


class Peer(Worker):
    """The process, seen from the one that measures."""

    def __init__(self, python: str, threads: int, folder: Path) -> None:
        self.folder = folder
        self.views = False
        command = [python, "-m", "benchmarks.operators.torch_peer", str(threads), str(folder)]
        super().__init__("PyTorch's process", command)

    def load(self, label: str, size: str, gradient: bool) -> list[Any] | str:
        """Prepare a case and run it once; return its results, or why there are none."""
        import numpy as np

        answer = self.ask(do="load", label=label, size=size, gradient=gradient)
        self.views = bool(answer.get("views"))
        if "error" in answer:
            return str(answer["error"])
        return [None if name is None else np.load(self.folder / name) for name in answer["files"]]

    def turn(self, calls: int, clock: str) -> float:
        """Time calls of the case that is loaded."""
        return float(self.ask(do="turn", calls=calls, clock=clock)["seconds"])


def serve(threads: int, folder: Path) -> None:
    """Answer until the input ends."""
    import numpy as np
    import torch

    from benchmarks.operators.contenders import InTorch, timed
    from benchmarks.operators.families import cases

    torch.set_num_threads(threads)
    known = {case.label: case for case in cases()}
    print(json.dumps({"version": torch.__version__}), flush=True)
    contender: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "turn":
            print(json.dumps({"seconds": timed(contender, asked["calls"], asked["clock"])}), flush=True)
            continue
        contender = None
        try:
            contender = InTorch(known[asked["label"]], asked["size"], asked["gradient"])
            contender.run()
            files: list[str | None] = []
            for i, result in enumerate(contender.read()):
                files.append(None if result is None else f"{i}.npy")
                if result is not None:
                    np.save(folder / f"{i}.npy", result)
            print(json.dumps({"files": files, "views": contender.views()}), flush=True)
        except Exception as error:  # one case must not end the table: the parent shows the reason
            traceback.print_exc()
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
