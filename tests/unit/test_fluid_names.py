"""Programs of Fluid find the names they use, under the paths they use."""

from __future__ import annotations

import importlib
import operator
import re

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.base.absent import ABSENT, why_absent

NAMES = {
    "": """
        Program default_main_program default_startup_program program_guard name_scope Variable Parameter Block Operator
        Executor Scope global_scope scope_guard CPUPlace CUDAPlace CUDAPinnedPlace LoDTensor create_lod_tensor
        create_random_int_lodtensor DataFeeder ParamAttr append_backward gradients calc_gradient unique_name core
        set_flags get_flags is_compiled_with_cuda device_guard data layers optimizer initializer
        regularizer clip io metrics framework executor backward reader batch nets average WeightNormParamAttr
        cpu_places cuda_places cuda_pinned_places in_dygraph_mode require_version memory_optimize release_memory
        save load load_program_state set_program_state load_op_library Trainer Inferencer CheckpointConfig
        DatasetFactory InMemoryDataset QueueDataset
        """,
    "core": """
        is_compiled_with_cuda CPUPlace CUDAPlace LoDTensor Scope VarDesc EnforceNotMet get_cuda_device_count AttrType
        op_proto_and_checker_maker kEmptyVarName empty_var_name kGradVarSuffix grad_var_suffix
        """,
    "framework": """
        Program Block Operator Variable Parameter default_main_program default_startup_program program_guard name_scope
        device_guard grad_var_name convert_np_dtype_to_dtype_ set_flags get_flags cpu_places cuda_places
        cuda_pinned_places in_dygraph_mode require_version switch_main_program switch_startup_program OpProtoHolder
        EMPTY_VAR_NAME TEMP_VAR_NAME GRAD_VAR_SUFFIX ZERO_VAR_SUFFIX CONTROL_DEP_VAR_PREFIX
        """,
    "compiler": "CompiledProgram BuildStrategy ExecutionStrategy",
    "contrib": f"memory_usage Trainer Inferencer CheckpointConfig {' '.join(fluid.contrib.layers.__all__)}",
    "contrib.trainer": "Trainer CheckpointConfig BeginEpochEvent EndEpochEvent BeginStepEvent EndStepEvent",
    "contrib.inferencer": "Inferencer",
    "contrib.decoder.beam_search_decoder": "InitState StateCell TrainingDecoder BeamSearchDecoder",
    "contrib.memory_usage_calc": "memory_usage",
    "reader": "DataLoader PyReader",
    "transpiler": "memory_optimize release_memory",
    "data_feeder": "DataFeeder check_variable_and_dtype check_type check_dtype convert_dtype",
    "default_scope_funcs": "get_cur_scope enter_local_scope leave_local_scope var find_var scoped_function",
    "layers.device": "get_places",
    "backward": "append_backward calc_gradient gradients",
    "dataset": "DatasetFactory InMemoryDataset QueueDataset",
    "executor": "Executor FetchHandler global_scope scope_guard",
    "incubate.data_generator": "MultiSlotDataGenerator MultiSlotStringDataGenerator",
    "layers": """
        data fc embedding dropout softmax cross_entropy softmax_with_cross_entropy square_error_cost
        mean accuracy topk concat split reshape transpose slice gather cast one_hot sums sum
        scale clip clip_by_norm elementwise_add elementwise_sub elementwise_mul elementwise_div elementwise_max
        elementwise_min elementwise_pow matmul mul reduce_sum reduce_mean reduce_max reduce_min relu sigmoid tanh
        exp log sqrt square abs leaky_relu elu pow l2_normalize fill_constant fill_constant_batch_size_like zeros ones
        assign increment less_than equal logical_and logical_or logical_xor logical_not uniform_random gaussian_random
        create_parameter create_global_var create_tensor linear_chain_crf crf_decoding exponential_decay
        natural_exp_decay inverse_time_decay polynomial_decay piecewise_decay noam_decay cosine_decay linear_lr_warmup
        append_LARS
        """,
    "layers.learning_rate_scheduler": "_decay_step_counter noam_decay",
    "optimizer": """
        SGD SGDOptimizer Momentum MomentumOptimizer Adagrad AdagradOptimizer Adam AdamOptimizer Adamax AdamaxOptimizer
        Dpsgd DpsgdOptimizer DecayedAdagrad DecayedAdagradOptimizer Ftrl FtrlOptimizer RMSPropOptimizer Adadelta
        AdadeltaOptimizer ModelAverage LarsMomentum LarsMomentumOptimizer LambOptimizer ExponentialMovingAverage
        LookaheadOptimizer Optimizer append_regularization_ops
        """,
    "op": "Operator",
    "nets": "simple_img_conv_pool sequence_conv_pool img_conv_group glu scaled_dot_product_attention",
    "average": "WeightedAverage",
    "initializer": """
        Constant ConstantInitializer Uniform UniformInitializer Normal NormalInitializer TruncatedNormal
        TruncatedNormalInitializer Xavier XavierInitializer MSRA MSRAInitializer Bilinear BilinearInitializer
        NumpyArrayInitializer Initializer init_on_cpu force_init_on_cpu
        """,
    "regularizer": "L1Decay L2Decay L1DecayRegularizer L2DecayRegularizer",
    "clip": """
        ErrorClipByValue GradientClipByValue GradientClipByNorm GradientClipByGlobalNorm set_gradient_clip
        GradientClipBase BaseErrorClipAttr
        """,
    "io": """
        save_vars save_params save_persistables load_vars load_params load_persistables save_inference_model
        load_inference_model batch shuffle buffered cache chain compose firstn map_readers
        """,
    "metrics": "Accuracy",
}


LISTED = {
    "": """
        ComplexVariable DataFeedDesc DistMultiTrainer DistributeTranspiler DistributeTranspilerConfig LoDTensorArray
        MultiTrainer ParallelExecutor PipelineTrainer Tensor TrainerDesc contrib disable_dygraph dygraph embedding
        enable_dygraph install_check learning_rate_decay one_hot profiler transpiler
        """,
    "contrib.layers": """
        batch_fc ctr_metric_bundle fused_elemwise_activation fused_embedding_seq_pool match_matrix_tensor
        multiclass_nms2 partial_concat partial_sum rank_attention search_pyramid_hash sequence_topk_avg_pooling
        shuffle_batch tdm_child tdm_sampler tree_conv var_conv_2d
        """,
    "contrib": """
        Calibrator Compressor HDFSClient QuantizeTranspiler convert_dist_to_sparse_program ctr_reader decorate
        distributed_batch_reader extend_with_decoupled_weight_decay load_persistables_for_increment
        load_persistables_for_inference mixed_precision multi_download multi_upload op_freq_statistic
        """,
    "io": """
        ComposeNotAligned DataLoader PyReader get_program_parameter get_program_persistable_vars load
        load_program_state multiprocess_reader save set_program_state xmap_readers
        """,
    "layers": """
        Assert BasicDecoder BeamSearchDecoder Categorical DecodeHelper Decoder DynamicRNN GRUCell GreedyEmbeddingHelper
        IfElse LSTMCell MultivariateNormalDiag Normal Print RNNCell SampleEmbeddingHelper StaticRNN Switch
        TrainingHelper Uniform While acos adaptive_pool2d adaptive_pool3d add_position_encoding affine_channel
        affine_grid anchor_generator argmax argmin argsort array_length array_read array_write asin atan auc
        autoincreased_step_counter batch_norm beam_search beam_search_decode bilinear_tensor_product bipartite_match
        box_clip box_coder box_decoder_and_assign bpr_loss brelu case ceil center_loss chunk_eval
        collect_fpn_proposals cond continuous_value_model conv2d conv2d_transpose conv3d conv3d_transpose cos cos_sim
        cosh create_array create_py_reader_by_data crf_decoding crop crop_tensor ctc_greedy_decoder cumsum data_norm
        deformable_conv deformable_roi_pooling density_prior_box detection_output diag dice_loss
        distribute_fpn_proposals double_buffer dynamic_decode dynamic_gru dynamic_lstm dynamic_lstmp edit_distance
        elementwise_floordiv elementwise_mod erf expand expand_as eye filter_by_instag flatten floor fsp_matrix
        gather_nd gather_tree gaussian_random_batch_size_like gelu generate_mask_labels generate_proposal_labels
        generate_proposals get_tensor_from_selected_rows greater_equal greater_than grid_sampler group_norm gru_unit
        hard_shrink hard_sigmoid hard_swish has_inf has_nan hash hsigmoid huber_loss im2sequence image_resize
        image_resize_short inplace_abn instance_norm iou_similarity is_empty isfinite kldiv_loss label_smooth
        layer_norm less_equal linspace load locality_aware_nms lod_append lod_reset log_loss logical_not logsigmoid
        lrn lstm lstm_unit margin_rank_loss matrix_nms maxout mean_iou merge_selected_rows mse_loss multi_box_head
        multiclass_nms multiplex nce not_equal npair_loss ones_like pad pad2d pad_constant_like pixel_shuffle
        polygon_box_transform pool2d pool3d prelu prior_box prroi_pool psroi_pool py_func py_reader random_crop range
        rank rank_loss read_file reciprocal reduce_all reduce_any reduce_prod relu6 reorder_lod_tensor_by_rank
        resize_bilinear resize_linear resize_nearest resize_trilinear retinanet_detection_output
        retinanet_target_assign reverse rnn roi_align roi_perspective_transform roi_pool round row_conv
        rpn_target_assign rsqrt sampled_softmax_with_cross_entropy sampling_id scatter scatter_nd scatter_nd_add selu
        sequence_concat sequence_conv sequence_enumerate sequence_expand sequence_expand_as sequence_first_step
        sequence_last_step sequence_mask sequence_pad sequence_pool sequence_reshape sequence_reverse
        sequence_scatter sequence_slice sequence_softmax sequence_unpad shard_index shuffle_channel
        sigmoid_cross_entropy_with_logits sigmoid_focal_loss sign similarity_focus sin sinh size smooth_l1 soft_relu
        softplus softshrink softsign space_to_depth spectral_norm squeeze ssd_loss stack stanh strided_slice swish
        switch_case tanh_shrink target_assign teacher_student_sigmoid_loss temporal_shift tensor_array_to_tensor
        thresholded_relu triu unbind unfold uniform_random_batch_size_like unique unique_with_counts unsqueeze
        unstack warpctc where while_loop yolo_box yolov3_loss zeros_like
        """,
    "metrics": "Accuracy Auc ChunkEvaluator CompositeMetric DetectionMAP EditDistance MetricBase Precision Recall",
    "optimizer": "DGCMomentumOptimizer PipelineOptimizer RecomputeOptimizer",
    "profiler": "cuda_profiler profiler reset_profiler start_profiler stop_profiler",
    "transpiler": "DistributeTranspiler HashName RoundRobin",
    "unique_name": "generate guard switch",
}
"""What else Fluid 1.8 lists in ``__all__``."""


@pytest.mark.parametrize("path", LISTED)
def test_names_are_there_or_say_why_not(path: str) -> None:
    room = operator.attrgetter(path)(fluid) if path else fluid
    silent = [name for name in LISTED[path].split() if not hasattr(room, name) and not why_absent(name)]
    assert silent == []


@pytest.mark.parametrize("path", NAMES)
def test_names(path: str) -> None:
    room = operator.attrgetter(path)(fluid) if path else fluid
    missing = [name for name in NAMES[path].split() if not hasattr(room, name)]
    assert missing == []


@pytest.mark.parametrize("path", [path for path in NAMES if path])
def test_modules_import_by_path(path: str) -> None:
    module = importlib.import_module(f"fluidlite.{path}")
    assert module is operator.attrgetter(path)(fluid)
    for name in getattr(module, "__all__", ()):
        assert hasattr(module, name), name
        assert name in dir(module)


def test_strategies_take_every_hint_of_fluid_and_nothing_else() -> None:
    hints = {
        fluid.ExecutionStrategy: "num_threads num_iteration_per_drop_scope num_iteration_per_run use_thread_barrier"
        " allow_op_delay use_experimental_executor",
        fluid.BuildStrategy: "memory_optimize enable_inplace fuse_bn_act_ops enable_parallel_graph nccl_comm_num"
        " use_hierarchical_allreduce hierarchical_allreduce_inter_nranks enable_backward_optimizer_op_deps"
        " mkldnn_enabled_op_types",
    }
    for strategy, names in hints.items():
        made = strategy()
        for name in names.split():
            setattr(made, name, getattr(made, name))
        with pytest.raises(fluid.FluidError, match="has no 'no_such_hint'; it has "):
            made.no_such_hint = 1


def test_flags_of_memory_and_libraries_are_hints() -> None:
    names = "eager_delete_tensor_gb fraction_of_gpu_memory_to_use cudnn_deterministic allocator_strategy"
    before = fluid.get_flags([f"FLAGS_{name}" for name in names.split()])
    try:
        fluid.set_flags({"FLAGS_eager_delete_tensor_gb": 1.0, "FLAGS_cudnn_deterministic": True})
        assert fluid.get_flags("FLAGS_eager_delete_tensor_gb") == {"FLAGS_eager_delete_tensor_gb": 1.0}
    finally:
        fluid.set_flags(before)


def test_names_of_framework_are_those_of_its_rooms() -> None:
    assert fluid.framework.Program is fluid.Program
    assert fluid.framework.grad_var_name("x") == "x@GRAD"
    assert fluid.framework.convert_np_dtype_to_dtype_(np.float32) == "float32"
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        fluid.framework.no_such_name  # noqa: B018


@pytest.mark.parametrize("name", sorted(name for names in ABSENT.values() for name in names.split()))
def test_a_name_that_is_not_here_says_why(name: str) -> None:
    (why,) = (why for why, names in ABSENT.items() if name in names.split())
    rooms = [fluid, fluid.core, fluid.layers, fluid.layers.nn, fluid.optimizer, fluid.contrib, fluid.metrics]
    for room in [*rooms, fluid.evaluator, fluid.transpiler]:
        says = f"{room.__name__!r} has no attribute {name!r}: {why}"
        with pytest.raises(AttributeError, match=re.escape(says) + "$"):
            getattr(room, name)


def test_fluid_data_adds_no_batch_dim() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [3, 4])
        y = fluid.data("y", [None, 4], "int64", lod_level=1)
        z = fluid.layers.data("z", [4])
        assert (x.shape, x.dtype, x.lod_level) == ((3, 4), "float32", 0)
        assert (y.shape, y.dtype, y.lod_level) == ((-1, 4), "int64", 1)
        assert z.shape == (-1, 4)
        with pytest.raises(fluid.FluidError, match=r"data \(test_fluid_names\.py:\d+\): argument 'shape'"):
            fluid.data("v", 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [str(place) for place in fluid.places()])
def test_assign_takes_an_array(place: str) -> None:
    values = {
        "bool": np.array([[True, False]]),
        "int64": np.array([2**62 + 1, -(2**63)]),
        "float32": np.array([[0.1], [np.inf]], "float32"),
        "float64": np.array(0.1),
        "uint8": np.zeros((0, 3), "uint8"),
    }
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        made = {name: fluid.layers.assign(array) for name, array in values.items()}
        target = fluid.layers.create_tensor("float32")
        fluid.layers.assign(values["float32"], target)
        found = fluid.Executor(place).run(fetch_list=[*made.values(), target])
    for array, result in zip([*values.values(), values["float32"]], found, strict=True):
        assert (result.shape, result.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(result, array)


def test_initializers_of_given_values() -> None:
    array = np.arange(6, dtype="float64").reshape(2, 3) / 7
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        layers, initializer = fluid.layers, fluid.initializer
        w = layers.create_parameter([2, 3], "float64", default_initializer=initializer.NumpyArrayInitializer(array))
        b = layers.create_parameter([2, 1, 4, 4], "float32", default_initializer=initializer.Bilinear())
        array[:] = 0  # what counts is what it was
        exe = fluid.Executor("cpu")
        startup = fluid.Program.from_json(fluid.default_startup_program().to_json())
        exe.run(startup)
        weight, filters = exe.run(fetch_list=[w, b])
        with pytest.raises(fluid.FluidError, match=r"dims \[2, 3\]"):
            layers.create_parameter([3, 2], "float32", default_initializer=initializer.NumpyArray(array))
        with pytest.raises(fluid.FluidError, match="4 dims"):
            layers.create_parameter([4, 4], "float32", default_initializer=initializer.Bilinear())
        with pytest.raises(fluid.FluidError, match="can be int64"):
            layers.create_parameter([2], "int64", default_initializer=initializer.NumpyArray(np.array([0.5, 1.0])))
    np.testing.assert_array_equal(weight, np.arange(6).reshape(2, 3) / 7)
    line = [0.25, 0.75, 0.75, 0.25]  # an image grown by 2
    np.testing.assert_allclose(filters, np.broadcast_to(np.outer(line, line), (2, 1, 4, 4)))


@pytest.mark.parametrize("name", ["reshape", "conv2d", "reduce_sum", "fc"])
def test_layers_stand_under_fluids_paths_too(name: str) -> None:
    assert getattr(fluid.layers.nn, name) is getattr(fluid.layers, name)
    assert fluid.layers.tensor.argmax is fluid.layers.argmax
    assert fluid.layers.loss.nce is fluid.layers.nce
    assert fluid.layers.sequence_lod.sequence_pad is fluid.layers.sequence_pad
    with pytest.raises(AttributeError, match="has no attribute 'conv9d'"):
        _ = fluid.layers.nn.conv9d
