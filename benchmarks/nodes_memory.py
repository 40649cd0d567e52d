"""What memory costs graphs of nodes: an arena against the pool in a batch of sum_lstm, and bytes saved in tiny_gpt.

    python benchmarks/nodes_memory.py [--place PLACE] [--rounds N] [--json FILE]

Batches of sum_lstm have sequences of their own, so that no graph has been seen before: each is built, run forward and
backward, and forgotten. Contenders take turns batch by batch, with the processor's clock. "take" is what one value of
16 floats costs: its memory and the array over it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from common import ROOT, fix_environment, machine, options, report, show

sys.path.append(str(ROOT / "examples"))
WARM = 8
VALUES = 1000


def batch_times(place: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of a batch, by where temporary values lie."""
    import numpy as np
    from nodes_sum_lstm import Adder, loss_of, samples

    from fluidlite import nodes

    nodes.seed(1)
    model, rng = Adder(place), np.random.default_rng(1)
    contenders: dict[str, Any] = {"pool": nodes.device(place), "arena": nodes.Prealloc(place, 1 << 20)}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARM + rounds):
        batch = samples(rng, 16)
        losses = {}
        order = list(contenders)
        for name in order if number % 2 else reversed(order):
            dev = contenders[name]
            start = time.process_time()
            graph = nodes.Graph(loss_of(model, batch, dev))
            losses[name] = float(graph.forward())
            graph.reset_grad()
            graph.backward()
            del graph
            if name == "arena":
                dev.reset()
            if number >= WARM:
                found[name].append(time.process_time() - start)
        if losses["arena"] != losses["pool"]:
            raise RuntimeError(f"the losses differ: {losses}")
    return found


def take_times(place: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of taking the memory of a value, and its array where the place has arrays."""
    from fluidlite import nodes
    from fluidlite.nodes.tensor import Tensor
    from fluidlite.platform.context_pool import get_context
    from fluidlite.tensor.tensor_spec import Spec

    context, spec = get_context(place), Spec.of((16,), "float32")
    contenders: dict[str, Any] = {"pool": nodes.device(place), "arena": nodes.Prealloc(place, 1 << 20)}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, dev in contenders.items():
            start = time.process_time()
            for _ in range(VALUES):
                tensor = Tensor.on(dev, spec)
                tensor.allocate(context)
                tensor.data()
            found[name].append((time.process_time() - start) / VALUES)
            contenders["arena"].reset()
    return found


def gpt_bytes(place: str) -> dict[str, dict[str, Any]]:
    """Bytes of a graph of tiny_gpt by its mode of in-place, and the numbers that it gives."""
    import nodes_tiny_gpt as gpt
    import numpy as np

    from fluidlite import nodes

    found = {}
    for mode in (False, "auto"):
        nodes.seed(1)
        model = gpt.TinyGpt(place, 60)
        text = np.random.default_rng(0).integers(0, 60, (gpt.LENGTH + 1, 16))
        loss = nodes.Mean(nodes.PickNegLogSoftmax(model(text[:-1]), text[1:]))
        graph = nodes.Graph(loss, inplace=mode)
        value = float(graph.forward())
        graph.backward()
        plan = graph.inplace_report
        found[str(mode)] = {
            "loss": value,
            "gradient": float(sum(float(np.abs(w.grad().numpy()).sum()) for w in graph.weights())),
            "values": plan.value_bytes - plan.saved_value_bytes,
            "gradients": plan.gradient_bytes - plan.saved_gradient_bytes,
        }
    return found


def main() -> None:
    """Measure, and print."""
    parser = options(__doc__)
    parser.add_argument("--place", default="cpu")
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    fix_environment(args.threads)
    figures: dict[str, Any] = {"place": args.place}
    measures: dict[str, tuple[Callable[[str, int], dict[str, list[float]]], float]] = {
        "a batch, ms": (batch_times, 1e3), "take, us": (take_times, 1e6),
    }  # fmt: skip
    rows = []
    for what, (measure, unit) in measures.items():
        times = measure(args.place, args.rounds)
        middle = {name: statistics.median(found) * unit for name, found in times.items()}
        least = {name: min(found) * unit for name, found in times.items()}
        figures[what] = {"median": middle, "least": least}
        rows.append((what, middle["pool"], middle["arena"], middle["pool"] / middle["arena"],
                     least["pool"], least["arena"], least["pool"] / least["arena"]))  # fmt: skip
    heads = ("sum_lstm", "pool, median", "arena, median", "ratio", "pool, least", "arena, least", "ratio")
    show(f"An arena against the pool on {args.place}", heads, rows)
    plans = figures["tiny_gpt"] = gpt_bytes(args.place)
    modes = [(f"inplace={mode}", f"{plan['values']:,}", f"{plan['gradients']:,}", f"{plan['loss']:.7f}",
             f"{plan['gradient']:.4f}") for mode, plan in plans.items()]  # fmt: skip
    show("Bytes of tiny_gpt's graph", ("mode", "values", "gradients", "loss", "sum of |gradients|"), modes)
    saved = 1 - plans["auto"]["values"] / plans["False"]["values"]
    print(f"\nIn place, values take {saved:.1%} less")
    report(args.json, machine(args.threads, place=args.place), figures)


if __name__ == "__main__":
    main()
