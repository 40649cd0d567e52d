"""A process of several, one of which fails in the way that is named."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite import nn
from fluidlite.distributed import mpi
from fluidlite.distributed.groups import world


def network(units: int) -> nn.Network:
    made = nn.Network([4], optimizer=fluid.optimizer.SGD(0.1), loss="squared_error", seed=3, distributed=True,
                      mode="interpreted")  # fmt: skip
    made.add_layer(nn.Dense(units))
    return made


def say_all() -> None:
    """Let an error be read to its end: mpirun ends the others in the middle of what they print."""
    hook = sys.excepthook

    def said(*error: Any) -> None:
        hook(*error)
        sys.stderr.flush()
        time.sleep(1)

    sys.excepthook = said


def fails_before_its_first_run() -> None:
    """One process, when its program is compiled for data parallelism; the others wait for it in their first run."""
    mpi.LEAVE_SECONDS = 60.0
    x = fluid.layers.data("x", [4])
    loss = fluid.layers.mean(fluid.layers.fc(x, 1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    executor = fluid.Executor("cpu", mode="interpreted")
    executor.run(fluid.default_startup_program())
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name)
    say_all()
    if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
        raise ValueError("its part of the data is missing")
    executor.run(program, {"x": np.ones((2, 4), "float32")})


def main(how: str) -> None:
    if how == "early":
        fails_before_its_first_run()
    group = world()
    say_all()
    mpi.LEAVE_SECONDS = 60.0  # the others are waited for till they have said why they end, however slow they are
    if how == "hang":
        mpi.LEAVE_SECONDS = 0.5  # who waited in vain ends all then
        if group.rank == 1:
            time.sleep(600)
        group.barrier()
    x, y = np.ones((4, 4), "float32"), np.ones((4, 2), "float32")
    if how == "programs" and group.rank == 1:
        network(3).set_up()
    made = network(2)
    made.batched_train([(x, y)], epochs=2)

    class Fail(nn.Callback):
        on_all_processes = True

        def on_batch_end(self, network: nn.Network, logs: object) -> None:
            if network.group.rank != 1 or network.state.step < 4:
                return
            if how == "raise":
                raise ValueError("bad batch")
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "exit":
                sys.exit(0)

    made.batched_train([(x, y)] * 50, epochs=2, callbacks=[Fail()])
    group.barrier()
    print("never")


if __name__ == "__main__":
    main(sys.argv[1])
