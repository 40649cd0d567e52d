"""What a graph of 20 small nodes costs, forward and backward: seen for the first time, built again, run again.

    python benchmarks/nodes_graph.py [--rounds N] [--torch-python PATH] [--json FILE]

Four hidden layers of 8 units, a batch of 4: W h + b, tanh, scaled and added, and the cross entropy: 20 nodes beside the
leaves. Contenders take turns, with the processor's clock. "new structure" is a graph of a structure that was not seen:
what is known of structures is forgotten before each, while its kinds of node have been seen with their dims. "node by
node" is the same where nothing is linked. torch runs the same in eager mode, built anew each time, where a Python
that has it is named.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

from common import fix_environment, machine, options, report, show

LAYERS, EACH = 4, 20

TORCH = """
import json, sys, time, torch
torch.set_num_threads(int(sys.argv[1])); rounds, each = int(sys.argv[2]), int(sys.argv[3])
W = [torch.randn(8, 8, requires_grad=True) for _ in range(4)]
B = [torch.zeros(8, 1, requires_grad=True) for _ in range(4)]
x, target = torch.randn(8, 4), torch.tensor([0, 1, 2, 3])
def run():
    h = x
    for w, b in zip(W, B):
        h = torch.tanh(w @ h + b)
        h = h * 0.5 + h
    loss = torch.nn.functional.cross_entropy((h * 2.0).T + 1.0, target, reduction="sum")
    for p in W + B: p.grad = None
    loss.backward()
times = []
for _ in range(rounds + 1):
    start = time.process_time()
    for _ in range(each): run()
    times.append((time.process_time() - start) / each)
print(json.dumps(times[1:]))
"""


def contenders() -> tuple[dict[str, Callable[[], Any]], int]:
    """What takes turns, and how many nodes there are."""
    import numpy as np

    from fluidlite import nodes as gn
    from fluidlite.base.lru_cache import LRUCache
    from fluidlite.nodes import compiled
    from fluidlite.nodes.linked import LinkedGraph

    rng = np.random.default_rng(0)
    dev = gn.cpu()
    weights = [gn.Weight(dev, rng.normal(size=(8, 8)).astype("float32") * 0.3) for _ in range(LAYERS)]
    biases = [gn.Weight(dev, (8,)) for _ in range(LAYERS)]
    x, target = gn.FixedData(dev, rng.normal(size=(8, 4)).astype("float32")), gn.FixedData(dev, np.arange(4))

    def build() -> gn.Node:
        h: gn.Node = x
        for w, b in zip(weights, biases, strict=True):
            h = gn.Tanh(gn.Affine(w, h, b))
            h = h * 0.5 + h
        return gn.Sum(gn.PickNegLogSoftmax(h * 2.0 + 1.0, target))

    def run(graph: gn.Graph) -> None:
        graph.forward()
        graph.reset_grad()
        graph.backward()

    kept = gn.Graph(build())

    def again() -> None:
        kept.reset_forwarded()
        run(kept)

    seen: Any = compiled._entries
    nothing: Any = LRUCache(1, "structures of graphs")

    def new() -> None:
        nothing.clear()
        compiled._entries = nothing
        try:
            run(gn.Graph(build()))
        finally:
            compiled._entries = seen

    def node_by_node() -> None:
        true = LinkedGraph.forward
        LinkedGraph.forward = staticmethod(lambda nodes, context: None)  # type: ignore[method-assign]
        try:
            run(gn.Graph(build(), compiled=False))
        finally:
            LinkedGraph.forward = staticmethod(true)  # type: ignore[method-assign]

    found: dict[str, Callable[[], Any]] = {
        "node by node": node_by_node,
        "new structure": new,
        "built and run again": lambda: run(gn.Graph(build())),
        "run again": again,
        "built only": lambda: gn.Graph(build()),
    }
    for call in found.values():
        for _ in range(8):
            call()
    return found, sum(not node.leaf for node in kept.nodes)


def main() -> None:
    """Run it."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--torch-python", metavar="PATH", help="a Python that has torch")
    given = parser.parse_args()
    fix_environment(given.threads)
    calls, count = contenders()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(given.rounds):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(EACH):
                call()
            times[name].append((time.process_time() - start) / EACH)
    if given.torch_python:
        command = [given.torch_python, "-c", TORCH, str(given.threads), str(given.rounds), str(EACH)]
        times["torch, eager"] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    micro = {name: (1e6 * min(each) / count, 1e6 * statistics.median(each) / count) for name, each in times.items()}
    wanted = {"new structure": 8.0, "built and run again": 4.0, "run again": 2.0}
    rows = [[name, least, middle, wanted.get(name, "")] for name, (least, middle) in micro.items()]
    show(f"us a node of {count}, forward and backward", ["contender", "least", "median", "asked for"], rows)
    report(given.json, machine(given.threads), {"us_a_node": micro})


if __name__ == "__main__":
    main()
