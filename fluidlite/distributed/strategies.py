"""BuildStrategy and ExecutionStrategy: Fluid's options for compiling and running programs."""

from __future__ import annotations

from typing import Any, ClassVar

from fluidlite.base.errors import AttributeValueError


class GradientScaleStrategy:
    """How the gradients of several members are scaled."""

    CoeffNumDevice = 0
    One = 1
    Customized = 2


class ReduceStrategy:
    """Where gradients are reduced; here always on all members."""

    AllReduce = 0
    Reduce = 1


class _Strategy:
    """A set of options with defaults; unknown names are refused."""

    _defaults: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.__dict__.update(self._defaults)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise AttributeValueError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self._defaults)}")
        self.__dict__[name] = value


class BuildStrategy(_Strategy):
    """How a program is compiled.

    ``gradient_scale_strategy`` and ``fuse_all_reduce_ops`` take effect; the other attributes are hints of Fluid that
    the compiler ignores.
    """

    GradientScaleStrategy = GradientScaleStrategy
    ReduceStrategy = ReduceStrategy
    gradient_scale_strategy: int
    fuse_all_reduce_ops: bool
    _defaults: ClassVar[dict[str, Any]] = {
        "gradient_scale_strategy": GradientScaleStrategy.CoeffNumDevice,
        "reduce_strategy": ReduceStrategy.AllReduce,
        "fuse_all_reduce_ops": True,
        "fuse_all_optimizer_ops": False,
        "fuse_elewise_add_act_ops": False,
        "fuse_bn_act_ops": False,
        "fuse_relu_depthwise_conv": False,
        "fuse_broadcast_ops": False,
        "enable_sequential_execution": False,
        "enable_inplace": True,
        "memory_optimize": None,
        "remove_unnecessary_lock": True,
        "debug_graphviz_path": "",
        "sync_batch_norm": False,
        "num_trainers": 1,
        "trainer_id": 0,
        "cache_runtime_context": False,
        "enable_auto_fusion": False,
        "enable_backward_optimizer_op_deps": True,
        "enable_parallel_graph": False,
        "mkldnn_enabled_op_types": frozenset(),
        "nccl_comm_num": 1,
        "use_hierarchical_allreduce": False,
        "hierarchical_allreduce_inter_nranks": 0,
    }


class ExecutionStrategy(_Strategy):
    """How a program is run: hints of Fluid, which the executor ignores."""

    _defaults: ClassVar[dict[str, Any]] = {
        "num_threads": 0,
        "num_iteration_per_drop_scope": 100,
        "num_iteration_per_run": 1,
        "use_thread_barrier": False,
        "allow_op_delay": False,
        "use_experimental_executor": False,
    }
