"""``fluid.ParallelExecutor``: data parallel runs, by an Executor and a CompiledProgram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluidlite.base.errors import ProgramError
from fluidlite.compat.installation import cpu_places, cuda_places
from fluidlite.distributed.compiled_program import CompiledProgram
from fluidlite.distributed.strategies import BuildStrategy, ExecutionStrategy
from fluidlite.executor import Executor
from fluidlite.program.program import Program, default_main_program
from fluidlite.program.scope import Scope, global_scope

__all__ = ["ParallelExecutor"]


class ParallelExecutor:
    """Runs a program on several places, each on its own rows of the feed.

    Parameters
    ----------
    use_cuda : bool
        True: all CUDA places; False: as many members on the host as Fluid's ``CPU_NUM`` says, or one for each core.
    loss_name : str, optional
        The loss that is minimized.
    main_program : Program, optional
        The default main program if left out.
    share_vars_from : ParallelExecutor, optional
        Use the scope of this executor.
    exec_strategy, build_strategy : optional
    num_trainers, trainer_id : int
        Only 1 and 0: several processes are started by mpirun, see docs/data_parallel.md.
    scope : Scope, optional
    """

    def __init__(
        self,
        use_cuda: bool,
        loss_name: str | None = None,
        main_program: Program | None = None,
        share_vars_from: ParallelExecutor | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        build_strategy: BuildStrategy | None = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Scope | None = None,
    ) -> None:
        if num_trainers != 1 or trainer_id != 0:
            raise ProgramError(
                f"ParallelExecutor: num_trainers is {num_trainers!r} and trainer_id {trainer_id!r}; expected 1 and 0"
                "\n  Do: start the processes by mpirun (docs/data_parallel.md)"
            )
        if share_vars_from is not None and not isinstance(share_vars_from, ParallelExecutor):
            raise ProgramError("ParallelExecutor: share_vars_from is no ParallelExecutor")
        places = cuda_places() if use_cuda else cpu_places()
        program = main_program if main_program is not None else default_main_program()
        shared = share_vars_from.scope if share_vars_from is not None else None
        self.scope: Scope = scope if scope is not None else shared if shared is not None else global_scope()
        self._executor = Executor(places[0])
        self._count = len(places)
        self._compiled = CompiledProgram(program).with_data_parallel(
            loss_name, build_strategy, exec_strategy, None, places
        )

    @property
    def device_count(self) -> int:
        """The number of members."""
        return self._count

    def run(
        self, fetch_list: Any, feed: Any = None, feed_dict: Mapping[str, Any] | None = None, return_numpy: bool = True
    ) -> Any:
        """Run the program once; see :meth:`fluidlite.Executor.run`.

        Parameters
        ----------
        fetch_list : list of Variable or name
        feed : mapping, or list of mappings
            A list has one for each member.
        feed_dict : mapping, optional
            Fluid's older name of ``feed``.
        return_numpy : bool
        """
        feeds = feed if feed is not None else feed_dict
        return self._executor.run(
            self._compiled, feed=feeds, fetch_list=fetch_list, scope=self.scope, return_numpy=return_numpy
        )

    def drop_local_exe_scopes(self) -> None:
        """Do nothing: runs leave no scopes behind."""
