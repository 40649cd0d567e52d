"""What an operator costs in the interpreter: a chain of elementwise additions on [1], and each part of it.

    python benchmarks/interpreter.py [--json FILE]

The parts are the differences of a ladder: each rung does what the one before does, and one thing more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common import fix_environment, in_turns, machine, options, report, show

CHAIN = 1000
KERNELS = 100
ROUNDS = 60
AGAIN = 50


def chain(length: int) -> tuple[Any, Any]:
    """Return a program of ``length`` additions, each of which needs the one before, and its last variable."""
    import fluidlite as fluid

    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = y = fluid.layers.data("x", shape=[1], append_batch_size=False)
        for _ in range(length):
            y = fluid.layers.elementwise_add(y, x)
    return program, y


def runner(place: Any, length: int) -> tuple[Callable[[], Any], Any]:
    """Return a call that runs the chain on a place, and the executor."""
    import numpy as np

    import fluidlite as fluid

    program, y = chain(length)
    executor = fluid.Executor(place, mode="interpreted")
    feed, wanted, scope = {"x": np.ones(1, np.float32)}, [y], fluid.Scope()

    def call() -> Any:
        return executor.run(program, feed=feed, fetch_list=wanted, scope=scope)

    (value,) = call()
    if float(value[0]) != length + 1:
        raise RuntimeError(f"the chain of {length} additions gave {value}")
    return call, executor


def ladder(executor: Any) -> tuple[dict[str, Callable[[], None]], Callable[[], None]]:
    """The parts of one operator, by hand, as often as the chain has any; and the last part without recycling."""
    import numpy as np

    from fluidlite.compiler.planning.plan import Launch
    from fluidlite.platform.context_pool import get_context
    from fluidlite.program.kernel_io import IO
    from fluidlite.tensor import tensor_cache as recycle
    from fluidlite.tensor.tensor import Tensor

    plan = executor.explain_last().plan
    step = next(step for step in plan.steps if isinstance(step, Launch))
    context = get_context(plan.place)
    place = context.place
    run = step.runs[context].run
    spec = step.outs[0].spec
    add, one = np.add, np.ones(1, np.float32)
    out_array = np.empty(1, np.float32)
    given, made = Tensor().set(one), Tensor().set(one)
    io = IO(step.call, [given, given, made], context, 0)
    times = range(CHAIN)

    def numpy_add() -> None:
        for _ in times:
            add(one, one, out_array)

    def kernel() -> None:
        for _ in times:
            run(context, io)

    def buffers() -> None:
        call, index = step.call, step.op_index
        for _ in times:
            tensors = [given, given, made]
            run(context, IO(call, tensors, context, index))
            tensors.clear()

    def recycled() -> None:
        call, index, take, give = step.call, step.op_index, recycle.take, recycle.give
        for _ in times:
            kept = take(context, spec)
            out = kept if kept is not None else Tensor.of(spec, place)
            tensors = [given, given, out]
            run(context, IO(call, tensors, context, index))
            tensors.clear()
            give(context, out)

    def fresh() -> None:
        call, index = step.call, step.op_index
        for _ in times:
            tensors = [given, given, Tensor.of(spec, place)]
            run(context, IO(call, tensors, context, index))
            tensors.clear()

    parts = {
        "np.add of arrays at hand": numpy_add,
        "kernel: its call, and finding three arrays": kernel,
        "IO": buffers,
        "output: a recycled tensor": recycled,
    }
    return parts, fresh


def main() -> None:
    """Print the costs."""
    arguments = options(__doc__).parse_args()
    fix_environment(arguments.threads)
    import fluidlite as fluid

    call, executor = runner("cpu", CHAIN)
    one, _ = runner("cpu", 1)

    def short() -> None:
        for _ in range(AGAIN):
            one()

    parts, fresh = ladder(executor)
    times = in_turns({"whole": call, **parts, "fresh": fresh, "short": short}, ROUNDS)
    whole, once = times["whole"] / CHAIN, times["short"] / AGAIN
    rows: list[list[Any]] = []
    median = least = 0.0
    for name in parts:
        rung = times[name] / CHAIN
        rows.append([name, rung.median - median, rung.least - least])
        median, least = rung.median, rung.least
    edge = once / CHAIN
    loop = [whole.median - median - edge.median, whole.least - least - edge.least]
    rows.append(["interpreter's loop: steps, values, lifetimes", *loop])
    rows.append([f"Executor.run's own part, over {CHAIN}", edge.median, edge.least])
    rows.append(["sum: one operator", whole.median, whole.least])
    rows = [[row[0], row[1] * 1e6, row[2] * 1e6] for row in rows]
    show(f"An addition on [1], in a chain of {CHAIN} on the CPU: microseconds", ["part", "median", "least"], rows)
    more = [times["fresh"].median / CHAIN - median, times["fresh"].least / CHAIN - least]
    print(f"\nA new tensor, with memory from the pool: median {more[0] * 1e6:.2f}, least {more[1] * 1e6:.2f} us more")
    print(f"Executor.run of one operator: median {once.median * 1e6:.1f}, least {once.least * 1e6:.1f} us")

    contenders = {str(place): runner(place, KERNELS)[0] for place in fluid.places()}
    places = in_turns(contenders, ROUNDS)
    show(
        f"{KERNELS} additions on [1] and one fetch: microseconds",
        ["place", "run, median", "run, least", "an operator, median", "an operator, least"],
        [[name, t.median * 1e6, t.least * 1e6, t.median * 1e6 / KERNELS, t.least * 1e6 / KERNELS]
         for name, t in places.items()],
    )  # fmt: skip
    figures = {
        "parts_us": {row[0]: {"median": row[1], "least": row[2]} for row in rows},
        "new_tensor_us": {"median": more[0] * 1e6, "least": more[1] * 1e6},
        "run_of_one_us": {"median": once.median * 1e6, "least": once.least * 1e6},
        "places_us": {name: {"median": t.median * 1e6, "least": t.least * 1e6} for name, t in places.items()},
    }
    report(arguments.json, machine(arguments.threads), figures)


if __name__ == "__main__":
    main()
