"""Nodes: dynamic graphs on devices, with views, transfers, preallocated memory and in-place that is proven safe."""

from fluidlite.base.errors import NodeError as NodeError
from fluidlite.base.exports import export as _export
from fluidlite.nodes import initialisers as _initialisers, layers as layers, metrics as metrics
from fluidlite.nodes.activations import (
    Dropout as Dropout,
    Exp as Exp,
    Gelu as Gelu,
    Identity as Identity,
    InPlaceDropout as InPlaceDropout,
    InPlaceLayerNorm as InPlaceLayerNorm,
    InPlaceRelu as InPlaceRelu,
    InPlaceSigmoid as InPlaceSigmoid,
    InPlaceTanh as InPlaceTanh,
    LayerNorm as LayerNorm,
    Log as Log,
    Relu as Relu,
    Sigmoid as Sigmoid,
    Softmax as Softmax,
    Sqrt as Sqrt,
    Square as Square,
    Tanh as Tanh,
)
from fluidlite.nodes.arithmetic import (
    Add as Add,
    AddScalar as AddScalar,
    CwiseDiv as CwiseDiv,
    CwiseMax as CwiseMax,
    CwiseProd as CwiseProd,
    CwiseProdAdd as CwiseProdAdd,
    InPlaceAdd as InPlaceAdd,
    InPlaceAddScalar as InPlaceAddScalar,
    InPlaceCwiseProd as InPlaceCwiseProd,
    InPlaceProdScalar as InPlaceProdScalar,
    InPlaceSubtract as InPlaceSubtract,
    ProdScalar as ProdScalar,
    Subtract as Subtract,
    SubtractScalar as SubtractScalar,
)
from fluidlite.nodes.device_nodes import DeviceTransfer as DeviceTransfer, DeviceView as DeviceView
from fluidlite.nodes.devices import (
    Device as Device,
    Prealloc as Prealloc,
    PreallocCpu as PreallocCpu,
    PreallocGpu as PreallocGpu,
    PreallocOpenCL as PreallocOpenCL,
    cpu as cpu,
    device as device,
    gpu as gpu,
    null_device as null_device,
    opencl as opencl,
)
from fluidlite.nodes.graph import Graph as Graph
from fluidlite.nodes.inplace import InPlaceError as InPlaceError, InPlaceReport as InPlaceReport
from fluidlite.nodes.leaves import (
    Constant as Constant,
    Data as Data,
    FixedConstant as FixedConstant,
    FixedData as FixedData,
    FixedOnes as FixedOnes,
    FixedRandom as FixedRandom,
    FixedZero as FixedZero,
    Leaf as Leaf,
    Ones as Ones,
    Random as Random,
    Weight as Weight,
    Zero as Zero,
)
from fluidlite.nodes.linear import (
    Affine as Affine,
    BatchedProd as BatchedProd,
    Conv1d as Conv1d,
    Conv2d as Conv2d,
    MaxPool as MaxPool,
    Prod as Prod,
    Transpose as Transpose,
)
from fluidlite.nodes.losses import (
    Lookup as Lookup,
    Pick as Pick,
    PickNegLogSigmoid as PickNegLogSigmoid,
    PickNegLogSoftmax as PickNegLogSoftmax,
    PickSoftmax as PickSoftmax,
)
from fluidlite.nodes.node import Node as Node
from fluidlite.nodes.operator_node import OperatorNode as OperatorNode, node_function as node_function
from fluidlite.nodes.reductions import (
    AxisMean as AxisMean,
    AxisSum as AxisSum,
    InPlaceMask as InPlaceMask,
    LessThan as LessThan,
    Mask as Mask,
    Mean as Mean,
    Select as Select,
    Sum as Sum,
    Variance as Variance,
)
from fluidlite.nodes.seeds import seed as seed
from fluidlite.nodes.shaping import (
    Cat as Cat,
    Chip as Chip,
    ColBroadcast as ColBroadcast,
    InPlacePermute as InPlacePermute,
    Permute as Permute,
    RankView as RankView,
    Reshape as Reshape,
    RowBroadcast as RowBroadcast,
    RowwiseCat as RowwiseCat,
    Slice as Slice,
    Stack as Stack,
)
from fluidlite.nodes.tensor import Tensor as Tensor
from fluidlite.nodes.updaters import Adam as Adam, Sgd as Sgd, Updater as Updater

init = _initialisers
_export(__name__, "init", "layers", "metrics")
