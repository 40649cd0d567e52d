"""Internal API of the built-in devices and hand-written kernels, in addition to the plugin API.

It may change with any version: plugins import ``fluidlite.plugin`` and ``fluidlite.expr`` only.
"""

from fluidlite.base.disk_cache import DiskCache as DiskCache
from fluidlite.base.dtypes import HALVES as HALVES, ITEMSIZE as ITEMSIZE, is_float as is_float
from fluidlite.base.errors import CollectiveError as CollectiveError, OutOfRangeError as OutOfRangeError
from fluidlite.base.exports import export as _export
from fluidlite.base.fork import (
    acquire_at_fork as acquire_at_fork,
    first_in_child as first_in_child,
    never_finalize as never_finalize,
    new_lock as new_lock,
    new_rlock as new_rlock,
)
from fluidlite.base.lru_cache import CacheInfo as CacheInfo, LRUCache as LRUCache
from fluidlite.base.opt_level import MAX_OPT_LEVEL as MAX_OPT_LEVEL, opt_level as opt_level
from fluidlite.codegen import philox as _philox
from fluidlite.codegen.epilogue import Accumulation as Accumulation, accumulation as accumulation
from fluidlite.codegen.epilogue_text import (
    EpilogueText as EpilogueText,
    epilogue_refusal as epilogue_refusal,
    epilogue_text as epilogue_text,
)
from fluidlite.codegen.language_math import SHARED_MATH as SHARED_MATH
from fluidlite.codegen.llvm import c_to_llvm as c_to_llvm
from fluidlite.distributed.groups import Group as Group, Work as Work, ring_group as ring_group
from fluidlite.geometry import (
    Convolution as Convolution,
    CorrelationAxis as CorrelationAxis,
    Gemm as Gemm,
    PoolAxis as PoolAxis,
    convolutions_of as convolutions_of,
    fused_refusal as fused_refusal,
    gemms_of as gemms_of,
    pool_axes as pool_axes,
    pool_planes as pool_planes,
    random_windows as random_windows,
    unknown_dims as unknown_dims,
)
from fluidlite.platform.device_context import DoneEvent as DoneEvent
from fluidlite.platform.device_memory import aligned as aligned
from fluidlite.platform.kernel_language import runs_side_by_side as runs_side_by_side
from fluidlite.platform.threads import available_processors as available_processors
from fluidlite.program.epilogue import product_call as product_call
from fluidlite.program.kernel_registry import Kernel as Kernel
from fluidlite.render.loops.accumulators import SUM_BLOCK as SUM_BLOCK

philox_uniform = _philox.uniform
_export(__name__)
