"""Operators that reduce or gather, fused with what is around them and not: kernels, time, and equal results."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from common import fix_environment, in_turns, machine, options, report, show


class Case(NamedTuple):
    """A program: its result, the dims of its inputs (integers are indices), and the classes that these name."""

    build: Callable[[Any, bool], Any]
    inputs: dict[str, tuple[int, ...]]
    indices: tuple[str, ...] = ()
    classes: int = 0


def _dropped(layers: Any, x: Any, training: bool) -> Any:
    return layers.dropout(x, 0.1, dropout_implementation="upscale_in_train") if training else x


def cases(layers: Any) -> dict[str, Case]:
    """The programs by name."""

    def residual(given: Any, training: bool) -> Any:
        total = layers.elementwise_add(given["x"], _dropped(layers, given["h"], training))
        return layers.layer_norm(total, begin_norm_axis=2)

    def attention(given: Any, training: bool) -> Any:
        seen = layers.softmax(layers.elementwise_add(layers.scale(given["x"], 0.125), given["mask"]))
        return _dropped(layers, seen, training)

    def statistics(given: Any, training: bool) -> Any:
        return layers.batch_norm(given["x"], act="relu", is_test=not training)

    def lookup(given: Any, training: bool) -> Any:
        return layers.elementwise_add(layers.embedding(given["ids"], size=[1000, 512]), given["x"])

    def loss(given: Any, training: bool) -> Any:
        return layers.cross_entropy(layers.softmax(given["x"]), given["label"])

    def bias(given: Any, training: bool) -> Any:
        shift = layers.create_parameter([768], "float32", name="shift")
        return layers.gelu(layers.elementwise_add(given["x"], shift))

    rows = (8, 128, 768)
    return {
        "residual + dropout + layer_norm": Case(residual, {"x": rows, "h": rows}),
        "scale + mask + softmax + dropout": Case(attention, {"x": (4, 12, 128, 128), "mask": (4, 1, 128, 128)}),
        "batch_norm + relu": Case(statistics, {"x": (8, 64, 28, 28)}),
        "embedding + sum": Case(lookup, {"ids": (8, 128, 1), "x": (8, 128, 512)}, ("ids",), 1000),
        "softmax + cross_entropy": Case(loss, {"x": (1024, 1000), "label": (1024, 1)}, ("label",), 1000),
        "bias + gelu": Case(bias, {"x": (1024, 768)}),
    }


def measure(case: Case, place: str, training: bool, rounds: int) -> tuple[list[int], list[float], float]:
    """Kernels and microseconds, not fused and fused; and how far apart results are, to the largest of them."""
    import numpy as np

    import fluidlite as fluid
    from fluidlite.transformers import default_passes

    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        given = {
            name: fluid.layers.data(name, list(dims[1:]), dtype="int64" if name in case.indices else "float32")
            for name, dims in case.inputs.items()
        }
        for name, one in given.items():
            one.stop_gradient = name in ("mask", *case.indices)
        fetched = [case.build(given, training)]
        if training:
            target = fluid.layers.data("target", list(fetched[0].shape[1:]))
            sources = [v for v in main.list_vars() if not v.stop_gradient and (v.name in given or v.persistable)]
            found = fluid.gradients(fetched[:1], sources, target_gradients=[target])
            fetched += [gradient for gradient in found if gradient is not None]
    rng = np.random.default_rng(0)
    dims = {
        **case.inputs,
        **({"target": (next(iter(case.inputs.values()))[0], *fetched[0].shape[1:])} if training else {}),
    }
    feed = {
        name: rng.integers(0, case.classes, shape) if name in case.indices else rng.standard_normal(shape, np.float32)
        for name, shape in dims.items()
    }
    passes = [[p for p in default_passes() if p.name != "FuseExpressions"], None]
    calls, kernels, results = {}, [], []
    for name, each in zip(("apart", "fused"), passes, strict=True):
        executor, scope = fluid.Executor(place, passes=each), fluid.Scope()
        executor.run(startup, scope=scope)
        results.append(executor.run(main, feed, fetched, scope=scope))
        kernels.append(executor.explain_last().summary["operators"])

        def call(executor: Any = executor, scope: Any = scope) -> Any:
            return executor.run(main, feed, fetched, scope=scope, return_numpy=False)

        calls[name] = call
    times = in_turns(calls, rounds, 3, time.process_time)
    apart = max(float(np.abs(a - b).max() / (np.abs(a).max() or 1)) for a, b in zip(*results, strict=True))
    return kernels, [times[name].least * 1e6 for name in ("apart", "fused")], apart


def main() -> None:
    """Measure, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--places", nargs="+", default=["cpu", "opencl:0"])
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    fix_environment(arguments.threads)
    from fluidlite import layers

    rows: list[list[Any]] = []
    for place in arguments.places:
        for name, case in cases(layers).items():
            for training in (False, True):
                kernels, times, apart = measure(case, place, training, arguments.rounds)
                gain = times[0] / times[1]
                rows.append([name, "with gradients" if training else "forward", place, *kernels, *times, gain, apart])
    heads = [
        "program",
        "what",
        "place",
        "operators apart",
        "fused",
        "us apart",
        "us fused",
        "apart / fused",
        "differ by",
    ]
    show("Operators that reduce, move or gather, apart and fused", heads, rows)
    report(arguments.json, machine(arguments.threads, clock="cpu"), {"rows": rows})


if __name__ == "__main__":
    main()
