"""Every operator that reduces over dims gives the dims that Fluid gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.program.registry import ops

REDUCTIONS = [op.type for op in ops if {"dim", "keep_dim", "reduce_all"} <= {attr.name for attr in op.attrs}
              and not op.type.endswith("_grad") and "_grad_" not in op.type]  # fmt: skip


@pytest.mark.parametrize("type", REDUCTIONS)
@pytest.mark.parametrize("keep", [False, True])
def test_dims(type: str, keep: bool) -> None:
    """What is kept is 1; what is not is left out, and where nothing is left there is one dim of 1."""
    for rank in range(4):
        for axes in [*itertools.chain.from_iterable(itertools.combinations(range(rank), n) for n in (1, 2)), None]:
            dims = (2, 3, 4)[:rank]
            with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
                block = fluid.default_main_program().global_block()
                dtype = "bool" if type in ("reduce_all", "reduce_any") else "float32"
                x = fluid.layers.data("x", list(dims), dtype=dtype, append_batch_size=False)
                out = block.create_var("out")
                attrs = {"reduce_all": True} if axes is None else {"dim": list(axes)}
                block.append_op(type, {"X": x}, {"Out": out}, {**attrs, "keep_dim": keep})
                want = np.zeros(dims).sum(axis=axes, keepdims=keep).shape or (1,)
                assert tuple(out.shape) == want
                for mode in ("compiled", "interpreted"):
                    exe = fluid.Executor("cpu", mode=mode)
                    (found,) = exe.run(feed={"x": np.ones(dims, dtype)}, fetch_list=[out])
                    assert found.shape == want


def test_all_are_there() -> None:
    assert {"reduce_sum", "reduce_max", "reduce_mean", "reduce_all", "logsumexp"} <= set(REDUCTIONS)
