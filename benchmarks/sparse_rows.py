"""A step of training an embedding of 1,000,000 x 64 with 256 ids: a dense gradient against one of rows.

    python benchmarks/sparse_rows.py [--place PLACE] [--height N] [--rounds N] [--json FILE]

It shows the least time of several steps, in turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common import fix_environment, in_turns, machine, options, report, show

WIDTH, IDS = 64, 256
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "adagrad": ("Adagrad", {}),
    "adam, lazy": ("Adam", {"lazy_mode": True}),
    "ftrl": ("Ftrl", {}),
    "momentum": ("Momentum", {"momentum": 0.9}),
    "rmsprop": ("RMSProp", {}),
    "adam": ("Adam", {}),
}
"""By label: the class of an optimiser, and its arguments beside the learning rate."""


def step(place: str, height: int, sparse: bool, optimizer: str) -> Callable[[], Any]:
    """Return what runs one step."""
    import numpy as np

    import fluidlite as fluid
    from fluidlite import layers, optimizer as optimizers

    name, more = OPTIMIZERS[optimizer]
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup):
        ids = layers.data("ids", [1], dtype="int64")
        rows = layers.embedding(ids, [height, WIDTH], is_sparse=sparse)
        getattr(optimizers, name)(0.1, **more).minimize(layers.mean(layers.square(rows)))
    exe = fluid.Executor(place, fallback="allow")
    exe.run(startup, scope=scope)
    drawn = np.random.default_rng(1).integers(0, height, (IDS, 1))
    return lambda: exe.run(main, feed={"ids": drawn}, scope=scope)


def main() -> None:
    """Print a line for each optimiser."""
    parser = options(__doc__)
    parser.add_argument("--place", default="cpu")
    parser.add_argument("--height", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    fix_environment(arguments.threads)
    figures, rows = {}, []
    for name in OPTIMIZERS:
        contenders = {
            kind: step(arguments.place, arguments.height, kind == "sparse", name) for kind in ("dense", "sparse")
        }
        times = in_turns(contenders, arguments.rounds)
        dense, sparse = (1e3 * times[kind].least for kind in ("dense", "sparse"))
        figures[name] = {"dense": dense, "sparse": sparse}
        rows.append([name, f"{dense:.2f}", f"{sparse:.2f}", f"{dense / sparse:.1f}"])
    title = f"ms a step, least: {arguments.height:,} x {WIDTH}, {IDS} ids, {arguments.place}"
    show(title, ["optimiser", "dense", "sparse", "ratio"], rows)
    report(arguments.json, machine(arguments.threads), figures)


if __name__ == "__main__":
    main()
