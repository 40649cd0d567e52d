"""CompiledProgram: a program for data parallel training, run by ``Executor.run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluidlite.base.arguments import check_instance, check_list
from fluidlite.base.errors import ProgramError
from fluidlite.base.fork import new_lock
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.distributed.groups import Group, member_runs, member_seed, share_devices, world
from fluidlite.distributed.strategies import BuildStrategy, ExecutionStrategy, GradientScaleStrategy
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope
from fluidlite.program.variable import Variable

if TYPE_CHECKING:  # imported only for several members
    from fluidlite.distributed.replicas import Replicas


class CompiledProgram:
    """A program for ``Executor.run``, run by one or several members.

    Parameters
    ----------
    program_or_graph : Program
    build_strategy : BuildStrategy, optional
    """

    def __init__(self, program_or_graph: Program, build_strategy: BuildStrategy | None = None) -> None:
        if not isinstance(program_or_graph, Program):
            raise ProgramError(f"CompiledProgram takes a Program, got {type(program_or_graph).__name__}")
        self._program = program_or_graph
        self._build_strategy = _checked(build_strategy)
        self._parallel = False
        self._loss: str | None = None
        self._places: list[Place] = []
        self._member_programs: dict[int, tuple[tuple[int, int, int], Program]] = {}
        self._synchronized_scopes: WeakObjects[Scope] = WeakObjects()
        self._replicas: Replicas | None = None
        self._creating = new_lock()  # several threads may do the first run

    def with_data_parallel(
        self,
        loss_name: str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: CompiledProgram | None = None,
        places: Sequence[PlaceLike] | PlaceLike | None = None,
    ) -> CompiledProgram:
        """Make the program data parallel: members run it on their own rows, and gradients are summed.

        The members are the processes that ``mpirun`` started, each on the place of its executor; or, in one process,
        the ``places``, among which the rows of a feed are split. Fetched values of several places are concatenated.

        Parameters
        ----------
        loss_name : str, optional
            Name of the loss that is minimized; None: the program trains nothing.
        build_strategy : BuildStrategy, optional
            Its ``gradient_scale_strategy`` decides whether gradients are divided by the number of members (default).
        exec_strategy : ExecutionStrategy, optional
            Not used; Fluid has the argument.
        share_vars_from : CompiledProgram, optional
            Not used; values are shared by their scope.
        places : list of Place or str, optional

        Returns
        -------
        CompiledProgram
            Itself.
        """
        if self._parallel:
            raise ProgramError("the program is compiled for data parallelism already")
        if loss_name is not None and not isinstance(loss_name, str):
            loss_name = loss_name.name if isinstance(loss_name, Variable) else str(loss_name)
        if loss_name is not None:
            self._program.global_block().var(loss_name)
        if build_strategy is not None:
            self._build_strategy = _checked(build_strategy)
        scale = self._build_strategy.gradient_scale_strategy
        if scale == GradientScaleStrategy.Customized:
            raise ProgramError(
                "gradient_scale_strategy is Customized, which takes a gradient of the loss that is fed"
                "\n  Do: CoeffNumDevice or One, and scale the loss in the program"
            )
        if exec_strategy is not None:
            check_instance("exec_strategy", exec_strategy, ExecutionStrategy, "a fluid.ExecutionStrategy")
        if share_vars_from is not None:
            check_instance("share_vars_from", share_vars_from, CompiledProgram)
        if places is not None:
            several = check_list("places", places, "a place, or a list of places", one=(str, Place))
            self._places = [devices.unit(place).place for place in several]
        if len(self._places) < 2:
            world()  # now: the others are then told if this process fails before its first run
        self._loss, self._parallel = loss_name, True
        return self

    # What the Executor calls

    def run_on(
        self, executor: Any, feed: Any, fetch_list: Any, scope: Scope, return_numpy: bool, return_merged: bool
    ) -> list[Any]:
        """Run once, on the executor's place unless the members have places of their own."""
        if not self._parallel:
            return list(executor.run(self._program, feed, fetch_list, scope=scope, return_numpy=return_numpy))
        group = world()
        if len(self._places) > 1:
            if group.size > 1:
                raise ProgramError(
                    f"{len(self._places)} places were named in each of {group.size} processes"
                    "\n  Do: name one place, or none, under mpirun"
                )
            return self._replicated(executor).run(feed, fetch_list, scope, return_numpy, return_merged)
        if isinstance(feed, (list, tuple)) and len(feed) == 1:
            feed = feed[0]
        if self._places and self._places[0] != executor.place:
            raise ProgramError(f"places names {self._places[0]}, and the executor is on {executor.place}")
        program = self.program_of(group)
        if group.size > 1 and scope not in self._synchronized_scopes:
            from fluidlite.distributed.parameters import broadcast_state, check_same_program

            check_same_program(program, group, sorted(map(str, feed)) if isinstance(feed, Mapping) else [])
            share_devices(group, devices.unit(executor.place))
            broadcast_state(program, scope, group)
            scope.update_random_runs(member_runs(scope, self._program.random_seed, program.random_seed))
            self._synchronized_scopes.add(scope)
        results = executor.run(program, feed, fetch_list, scope=scope, return_numpy=return_numpy)
        return list(results) if return_merged else [[each] for each in results]

    def program_of(self, group: Group) -> Program:
        """The program that a member of a group runs."""
        source = self._program
        if group.size == 1 or self._loss is None:
            return source
        key = source.serial, source.edits, group.size
        cached = self._member_programs.get(group.rank)
        if cached is None or cached[0] != key:
            from fluidlite.distributed.transform import insert_collectives

            program = source.clone()
            divided = self._build_strategy.gradient_scale_strategy == GradientScaleStrategy.CoeffNumDevice
            insert_collectives(
                program,
                self._loss,
                scale="members" if divided else "one",
                members=group.size,
                bucket_bytes=None if self._build_strategy.fuse_all_reduce_ops else 1,
            )
            program.random_seed = member_seed(source.random_seed, group)
            self._member_programs[group.rank] = cached = key, program
        return cached[1]

    def _replicated(self, executor: Any) -> Replicas:
        with self._creating:
            if self._replicas is None:
                from fluidlite.distributed.replicas import Replicas

                self._replicas = Replicas(executor, self._places, self.program_of)
            return self._replicas


def _checked(strategy: Any) -> BuildStrategy:
    if strategy is None:
        return BuildStrategy()
    return check_instance("build_strategy", strategy, BuildStrategy, "a fluid.BuildStrategy")
