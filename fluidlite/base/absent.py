"""Names of Fluid that fluidlite does not have, each with the reason that its AttributeError reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_DETECTION = "detection (anchors, proposals, regions, their losses and metrics) is not part of fluidlite"
_EAGER = "layers that run at once are not part of the program's front; fluidlite.nodes is a front of that kind"
_FILES = "Executor.train_from_dataset trains from files; fluid.DatasetFactory().create_dataset() reads them"
_GRADIENTS = "it changes how gradients are sent, not what is computed: minimize with the optimizer that it stands for"
_INFERENCE = "fluid.io.load_inference_model gives a saved model as a program, and an Executor runs it"
_LOW_PRECISION = "quantised and mixed-precision training is not part of fluidlite"
_RECOMMENDERS = (
    "operators of single recommendation and matching systems are not part of fluidlite; layers.py_func calls NumPy"
)
_SCHEDULES = "layers.learning_rate_scheduler has the schedules of learning rates"
_SERVERS = "there are no parameter servers; fluid.CompiledProgram trains in processes, fluid.io.DataLoader feeds"

ABSENT = {
    _DETECTION: """
        DetectionMAP anchor_generator bipartite_match box_clip box_coder box_decoder_and_assign collect_fpn_proposals
        deformable_conv deformable_roi_pooling density_prior_box detection detection_map detection_output
        distribute_fpn_proposals generate_mask_labels generate_proposal_labels generate_proposals iou_similarity
        locality_aware_nms matrix_nms multi_box_head multiclass_nms multiclass_nms2 polygon_box_transform prior_box
        prroi_pool psroi_pool retinanet_detection_output retinanet_target_assign roi_align roi_perspective_transform
        roi_pool rpn_target_assign sigmoid_focal_loss ssd_loss target_assign yolo_box yolov3_loss
        """,
    _EAGER: "ComplexVariable VarBase disable_dygraph dygraph dygraph_to_static_func enable_dygraph enable_imperative",
    _FILES: """
        AsyncExecutor DataFeedDesc DistMultiTrainer MultiTrainer PipelineTrainer TrainerDesc data_feed_desc
        device_worker trainer_desc trainer_factory
        """,
    _GRADIENTS: "DGCMomentumOptimizer PipelineOptimizer",
    _INFERENCE: "AnalysisConfig NativeConfig PaddleBuf PaddleDType PaddleTensor create_paddle_predictor",
    _LOW_PRECISION: """
        Calibrator Compressor IrGraph QuantizeTranspiler decorate int8_inference mixed_precision quantize slim
        """,
    _RECOMMENDERS: """
        filter_by_instag match_matrix_tensor rank_attention search_pyramid_hash tdm_child tdm_sampler tree_conv
        var_conv_2d
        """,
    _SCHEDULES: "learning_rate_decay",
    _SERVERS: """
        DistributeTranspiler DistributeTranspilerConfig HDFSClient HashName ListenAndServ Recv RoundRobin Send
        communicator convert_dist_to_sparse_program ctr_reader distributed_batch_reader fleet
        load_persistables_for_increment load_persistables_for_inference multi_download multi_upload set_download_cmd
        set_fleet_send_batch_size set_fleet_send_sleep_seconds set_hdfs_config
        """,
}
"""The missing names, by reason."""

_WHY = {name: why for why, names in ABSENT.items() for name in names.split()}


def why_absent(name: str) -> str:
    """The reason why a name of Fluid is missing, after a colon; "" for any other name."""
    return f": {_WHY[name]}" if name in _WHY else ""


def absent(module: str, name: str) -> AttributeError:
    """The error that a module's ``__getattr__`` raises for an unknown name."""
    return AttributeError(f"module {module!r} has no attribute {name!r}{why_absent(name)}")


def getattr_of(module: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module: it raises AttributeError with the reason for every name."""

    def find(name: str) -> Any:
        raise absent(module, name)

    return find
