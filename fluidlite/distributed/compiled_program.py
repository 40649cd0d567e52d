"""CompiledProgram: a program that several members train together, as ``Executor.run`` takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluidlite.base.arguments import instance, listed
from fluidlite.base.errors import ProgramError
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.distributed.groups import Group, member_runs, member_seed, share_devices, world
from fluidlite.distributed.strategies import BuildStrategy, ExecutionStrategy, GradientScaleStrategy
from fluidlite.platform.device_registry import devices
from fluidlite.platform.place import Place, PlaceLike
from fluidlite.program.program import Program
from fluidlite.program.scope import Scope
from fluidlite.program.variable import Variable

if TYPE_CHECKING:  # imported when members are several: no program that runs alone needs them
    from fluidlite.distributed.replicas import Replicas


class CompiledProgram:
    """A program for ``Executor.run``, alone or by several members.

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
        self._rewritten: dict[int, tuple[tuple[int, int, int], Program]] = {}
        self._begun: WeakObjects[Scope] = WeakObjects()
        self._replicas: Replicas | None = None

    def with_data_parallel(
        self,
        loss_name: str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: CompiledProgram | None = None,
        places: Sequence[PlaceLike] | PlaceLike | None = None,
    ) -> CompiledProgram:
        """Let several members run the program, each on its own rows; gradients are summed.

        The members are the processes that ``mpirun`` started, each on the place of its executor; or, in one process,
        the ``places``, to which the rows of a feed are split. Fetched values of several places are put behind each
        other.

        Parameters
        ----------
        loss_name : str, optional
            Name of the loss that is minimized; None: the program trains nothing.
        build_strategy : BuildStrategy, optional
            Its ``gradient_scale_strategy`` says whether gradients are divided by the number of members (default).
        exec_strategy : ExecutionStrategy, optional
            Taken for Fluid's sake.
        share_vars_from : CompiledProgram, optional
            Taken for Fluid's sake: values are shared by their scope.
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
            instance("exec_strategy", exec_strategy, ExecutionStrategy, "a fluid.ExecutionStrategy")
        if share_vars_from is not None:
            instance("share_vars_from", share_vars_from, CompiledProgram)
        if places is not None:
            several = listed("places", places, "a place, or a list of places", one=(str, Place))
            self._places = [devices.unit(place).place for place in several]
        self._loss, self._parallel = loss_name, True
        return self

    # What the Executor calls

    def run_on(
        self, executor: Any, feed: Any, fetch_list: Any, scope: Scope, return_numpy: bool, return_merged: bool
    ) -> list[Any]:
        """Run once by an executor; its place is the members' unless they have places of their own."""
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
        if group.size > 1 and scope not in self._begun:
            from fluidlite.distributed.parameters import broadcast_state, check_same_program

            check_same_program(program, group, sorted(map(str, feed)) if isinstance(feed, Mapping) else [])
            share_devices(group, devices.unit(executor.place))
            broadcast_state(program, scope, group)
            scope.update_random_runs(member_runs(scope, self._program.random_seed, program.random_seed))
            self._begun.add(scope)
        found = executor.run(program, feed, fetch_list, scope=scope, return_numpy=return_numpy)
        return list(found) if return_merged else [[each] for each in found]

    def program_of(self, group: Group) -> Program:
        """The program that a member of a group runs."""
        source = self._program
        if group.size == 1 or self._loss is None:
            return source
        key = source.serial, source.edits, group.size
        found = self._rewritten.get(group.rank)
        if found is None or found[0] != key:
            from fluidlite.distributed.transform import insert_collectives

            made = source.clone()
            divided = self._build_strategy.gradient_scale_strategy == GradientScaleStrategy.CoeffNumDevice
            insert_collectives(
                made,
                self._loss,
                scale="members" if divided else "one",
                members=group.size,
                bucket_bytes=None if self._build_strategy.fuse_all_reduce_ops else 1,
            )
            made.random_seed = member_seed(source.random_seed, group)
            self._rewritten[group.rank] = found = key, made
        return found[1]

    def _replicated(self, executor: Any) -> Replicas:
        if self._replicas is None:
            from fluidlite.distributed.replicas import Replicas

            self._replicas = Replicas(executor, self._places, self.program_of)
        return self._replicas


def _checked(strategy: Any) -> BuildStrategy:
    if strategy is None:
        return BuildStrategy()
    return instance("build_strategy", strategy, BuildStrategy, "a fluid.BuildStrategy")
