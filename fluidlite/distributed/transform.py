"""The data parallel pass: inserts all-reduces of gradient buckets, which overlap with backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from fluidlite.base.dtypes import ITEMSIZE, compute_dtype
from fluidlite.base.errors import ProgramError
from fluidlite.program.block import Block
from fluidlite.program.opdef import GRAD
from fluidlite.program.operator import Operator
from fluidlite.program.program import Program
from fluidlite.program.variable import Variable

BUCKET_BYTES = 1 << 20
"""Default bytes of gradients in one all-reduce: large buckets use the bandwidth, small ones start earlier. For 1 MiB
the latency of an operation (20 us on one machine) is a tenth of its time."""

SCALES = ("members", "rows", "one")


@dataclass(frozen=True)
class GradientBucket:
    """Gradients that one operation reduces.

    ``after``: the last operator that writes one of them.
    """

    names: tuple[str, ...]
    nbytes: int
    after: Operator


def insert_collectives(
    program: Program,
    loss: str,
    scale: str = "members",
    members: int = 1,
    rows_of: str = "",
    bucket_bytes: int | None = None,
) -> list[GradientBucket]:
    """Insert the collective operators of data parallel training on ring 0: gradients are summed over all members.

    A reduction starts after the operator that writes the last gradient of a bucket; the first update waits for all.
    Clipping, decay and updates then read the gradients of the whole batch, which are equal on all members. Results of
    updates with random numbers are broadcast from the first member.

    Parameters
    ----------
    program : Program
        With backward and updates.
    loss : str
        Name of the loss, a mean over rows.
    scale : {"members", "rows", "one"}
        ``"members"``: each member's gradient has equal weight, as in Fluid: correct if all have equally many rows.
        ``"rows"``: weight by the share of all rows, which an all-reduce counts at the start of a step.
        ``"one"``: gradients are summed without weights.
    members : int
        The number of members.
    rows_of : str
        Name of a variable whose first dim is the number of rows; for ``"rows"``.
    bucket_bytes : int, optional
        The size at which a bucket is full. Default: ``BUCKET_BYTES``.

    Raises
    ------
    ProgramError
        The program has no backward, no updates of gradients, or updates between two backwards.
    """
    block = program.global_block()
    if scale not in SCALES:
        raise ProgramError(f"scale is {scale!r}; expected one of {', '.join(SCALES)}")
    gradients = _gradients(block)
    sparse = {name: gradients.pop(name) for name in list(gradients) if block.var(name).selected is not None}
    buckets = _buckets(block, gradients, BUCKET_BYTES if bucket_bytes is None else bucket_bytes)
    seed = _seed(block, loss)
    for bucket in buckets:
        at, names = block.ops.index(bucket.after) + 1, ({"X": list(bucket.names)}, {"Out": list(bucket.names)})
        block._insert(at, "c_allreduce_sum", *names, {"use_calc_stream": False}, role="backward")
    for name, op in sparse.items():
        gather_rows(block, block.var(name), op, members)
    last = max(i for i, op in enumerate(block.ops) if op.role == "backward")
    for bucket in reversed(buckets):
        names = {"X": list(bucket.names)}, {"Out": list(bucket.names)}
        block._insert(last + 1, "c_sync_comm_stream", *names, {}, role="backward")
    for program_block in program.blocks:  # including those of branches
        _share_random_updates(program_block)
    if scale == "rows":
        _scale_by_rows(block, seed, rows_of)
    elif scale == "members":
        seed.set_attr("value", float(seed.attrs["value"]) / members)
    return buckets


def _gradients(block: Block) -> dict[str, Operator]:
    """Gradients of parameters that are read after backward, each with the last operator that writes it.

    The reader need not be an update: a program may scale or clip a gradient before.
    """
    owners = {p.name for p in block.program.all_parameters()}
    writers: dict[str, Operator] = {}
    updates: list[Operator] = []
    read: set[str] = set()
    for op in block.ops:
        if op.role == "backward":
            writers.update(dict.fromkeys(op.output_arg_names, op))
            read = set()
            if updates:
                raise ProgramError(
                    f"{op} belongs to a second backward, behind the update {updates[0]}, "
                    "whose gradients are not reduced yet"
                    "\n  Do: minimize the sum of the losses, or train a program for each"
                )
            continue
        read.update(op.input_arg_names)
        if op.role == "optimize" and not writers.keys().isdisjoint(op.input_arg_names):
            updates.append(op)
    row_indices = {variable.selected.rows for variable in block.vars.values() if variable.selected is not None}
    gradients = {
        name: op
        for name, op in writers.items()
        if name in read - row_indices and GRAD in name and name.partition(GRAD)[0] in owners
    }
    if not gradients:
        raise ProgramError(
            "the program has no gradients that updates read: there is nothing to reduce"
            "\n  Do: optimizer.minimize(loss) first"
        )
    return gradients


def _buckets(block: Block, gradients: dict[str, Operator], limit: int) -> list[GradientBucket]:
    position = {op: i for i, op in enumerate(block.ops)}
    order = sorted(gradients, key=lambda name: (position[gradients[name]], name))
    buckets: list[GradientBucket] = []
    open_names: dict[str, list[str]] = {}

    def size(names: Sequence[str]) -> int:
        return sum(_nbytes(block.var(name)) for name in names)

    def close(dtype: str) -> None:
        names = open_names.pop(dtype, [])
        if names:
            after = max((gradients[name] for name in names), key=lambda op: position[op])
            buckets.append(GradientBucket(tuple(names), size(names), after))

    for name in order:
        dtype = block.var(name).dtype
        open_names.setdefault(dtype, []).append(name)
        if size(open_names[dtype]) >= limit:  # a small gradient (a bias) joins the next large one
            close(dtype)
    for dtype in list(open_names):
        close(dtype)
    return sorted(buckets, key=lambda bucket: position[bucket.after])


def _nbytes(variable: Variable) -> int:
    dims = variable.shape
    if any(d < 0 for d in dims):
        raise ProgramError(f"the gradient {variable.name!r} has dims {list(dims)}; a parameter's are known")
    return prod(dims) * ITEMSIZE[variable.dtype]


def _seed(block: Block, loss: str) -> Operator:
    """The operator that fills the gradient of the loss with 1."""
    if block.find_var(loss) is None:
        raise ProgramError(f"loss_name is {loss!r}, which the program does not have")
    for op in block.ops:
        if op.role == "backward" and op.type == "fill_constant":
            (name,) = op.output("Out")
            if name.partition(GRAD)[0] == loss:
                return op
    raise ProgramError(
        f"no backward of the program begins with the loss {loss!r}\n  Do: loss_name=loss.name of what is minimized"
    )


def _share_random_updates(block: Block) -> None:
    """Broadcast the results of updates with random numbers from the first member: each member draws other numbers."""
    wait = {"root": 0, "use_calc_stream": True}
    for op in list(block.ops):
        if op.role == "optimize" and op.definition.random:
            for name in op.output_arg_names:
                block._insert(
                    block.ops.index(op) + 1, "c_broadcast", {"X": [name]}, {"Out": [name]}, {**wait}, role="optimize"
                )


def _scale_by_rows(block: Block, seed: Operator, rows_of: str) -> None:
    """Replace the gradient of the loss by this member's share of all rows."""
    (target,) = seed.output("Out")
    spec = block.var(target)._spec()
    ones, rows, total, share, scale = (
        block.create_temporary(prefix="data_parallel", stop_gradient=True).name for _ in range(5)
    )
    dtype = compute_dtype(spec.dtype)  # half types count no more than 65,504 rows, or 256
    like = {"shape": [-1, 1], "value": 1.0, "dtype": dtype}
    at = block.ops.index(seed)
    if dtype == spec.dtype:
        scale = share
    else:
        cast = {"in_dtype": dtype, "out_dtype": spec.dtype}
        block._insert(at, "cast", {"X": [share]}, {"Out": [scale]}, cast, role="backward")
    block._insert(at, "elementwise_div", {"X": [rows], "Y": [total]}, {"Out": [share]}, {}, role="backward")
    block._insert(at, "c_sync_comm_stream", {"X": [total]}, {"Out": [total]}, {}, role="backward")
    block._insert(0, "c_allreduce_sum", {"X": [rows]}, {"Out": [total]}, {}, role="forward")
    whole = {"reduce_all": True, "dim": [0], "keep_dim": False}
    block._insert(0, "reduce_sum", {"X": [ones]}, {"Out": [rows]}, whole, role="forward")
    block._insert(0, "fill_constant_batch_size_like", {"Input": [rows_of]}, {"Out": [ones]}, like, role="forward")
    at = block.ops.index(seed)
    block.remove_op(at)
    block._insert(at, "reshape2", {"X": [scale]}, {"Out": [target]}, {"shape": list(spec.dims)}, role="backward")


def gather_rows(block: Block, values: Variable, after: Operator, members: int) -> None:
    """Insert an all-gather of a sparse gradient, so that operators after backward read the rows of all members.

    An all-gather takes equally many rows of each member. Each is therefore padded to the maximum with zeros for a row
    that some member has: no other row is updated, as in one process.

    ``values``: a gradient of sparse rows.
    ``after``: the operator that writes it.
    """
    assert values.selected is not None
    rows = values.selected.rows
    at = block.ops.index(after) + 1

    def add(type: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None) -> str:
        nonlocal at
        out = block.create_temporary(prefix="data_parallel", stop_gradient=True).name
        block._insert(at, type, inputs, {"Out": [out]}, attrs or {}, role="backward")
        at += 1
        return out

    def constant(value: int, dtype: str) -> str:
        return add("fill_constant", {}, {"shape": [1], "value": float(value), "dtype": dtype})

    count = add("shape", {"Input": [rows]})
    max_count = add("c_allreduce_max", {"X": [count]}, {"use_calc_stream": True})
    steps = add("range", {"Start": [constant(0, "int32")], "End": [max_count], "Step": [constant(1, "int32")]})
    index = add("elementwise_min", {"X": [steps], "Y": [count]})  # from ``count`` on: padding
    rows_or_none = add("concat", {"X": [rows, constant(-1, "int64")]}, {"axis": 0})
    own_row = add("reduce_max", {"X": [rows_or_none]}, {"dim": [0], "keep_dim": True})
    padding_row = add("c_allreduce_max", {"X": [own_row]}, {"use_calc_stream": True})
    gather = {"nranks": members, "use_calc_stream": True}
    gathered = []
    for name in (
        add("concat", {"X": [rows, padding_row]}, {"axis": 0}),
        add("pad", {"X": [values.name]}, {"paddings": [0, 1, 0, 0], "pad_value": 0.0}),
    ):
        gathered.append(add("c_allgather", {"X": [add("gather", {"X": [name], "Index": [index]})]}, gather))
    for op in block.ops[at:]:
        if op.role != "backward":
            op.rename_input(rows, gathered[0])
            op.rename_input(values.name, gathered[1])
