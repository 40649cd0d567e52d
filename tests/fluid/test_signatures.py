"""Every dense layer has Fluid 1.8's parameters, in their order and with their defaults; 1.1's keywords work too."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from grouped import grouped

import fluidlite as fluid

LAYERS = """
fc input size num_flatten_dims=1 param_attr=None bias_attr=None act=None
embedding input size is_sparse=False is_distributed=False padding_idx=None param_attr=None dtype='float32'
beam_search pre_ids pre_scores ids scores beam_size end_id level=0 is_accumulated=True name=None
    return_parent_idx=False
beam_search_decode ids scores beam_size end_id name=None
BeamSearchDecoder cell start_token end_token beam_size embedding_fn=None output_fn=None
BasicDecoder cell helper output_fn=None
TrainingHelper inputs sequence_length time_major=False
GreedyEmbeddingHelper embedding_fn start_tokens end_token
SampleEmbeddingHelper embedding_fn start_tokens end_token softmax_temperature=None seed=None
dynamic_decode decoder inits=None max_step_num=None output_time_major=False impute_finished=False is_test=False
    return_length=False
sampled_softmax_with_cross_entropy logits label num_samples num_true=1 remove_accidental_hits=True
    use_customized_samples=False customized_samples=None customized_probabilities=None seed=0
sequence_topk_avg_pooling input row col topks channel_num
rnn cell inputs initial_states=None sequence_length=None time_major=False is_reverse=False
GRUCell hidden_size param_attr=None bias_attr=None gate_activation=None activation=None dtype='float32' name='GRUCell'
LSTMCell hidden_size param_attr=None bias_attr=None gate_activation=None activation=None forget_bias=1.0 dtype='float32'
    name='LSTMCell'
linear_chain_crf input label param_attr=None
dynamic_lstm input size h_0=None c_0=None param_attr=None bias_attr=None use_peepholes=True is_reverse=False
    gate_activation='sigmoid' cell_activation='tanh' candidate_activation='tanh' dtype='float32' name=None
dynamic_lstmp input size proj_size param_attr=None bias_attr=None use_peepholes=True is_reverse=False
    gate_activation='sigmoid' cell_activation='tanh' candidate_activation='tanh' proj_activation='tanh'
    dtype='float32' name=None h_0=None c_0=None cell_clip=None proj_clip=None
dynamic_gru input size param_attr=None bias_attr=None is_reverse=False gate_activation='sigmoid'
    candidate_activation='tanh' h_0=None origin_mode=False
gru_unit input hidden size param_attr=None bias_attr=None activation='tanh' gate_activation='sigmoid' origin_mode=False
lstm_unit x_t hidden_t_prev cell_t_prev forget_bias=0.0 param_attr=None bias_attr=None name=None
lstm input init_h init_c max_len hidden_size num_layers dropout_prob=0.0 is_bidirec=False is_test=False name=None
    default_initializer=None seed=-1
crf_decoding input param_attr label=None
cos_sim X Y
conv2d input num_filters filter_size stride=1 padding=0 dilation=1 groups=None param_attr=None bias_attr=None
    use_cudnn=True act=None name=None data_format='NCHW'
conv3d input num_filters filter_size stride=1 padding=0 dilation=1 groups=None param_attr=None bias_attr=None
    use_cudnn=True act=None name=None data_format='NCDHW'
conv2d_transpose input num_filters output_size=None filter_size=None padding=0 stride=1 dilation=1 groups=None
    param_attr=None bias_attr=None use_cudnn=True act=None name=None data_format='NCHW'
conv3d_transpose input num_filters output_size=None filter_size=None padding=0 stride=1 dilation=1 groups=None
    param_attr=None bias_attr=None use_cudnn=True act=None name=None data_format='NCDHW'
softmax input use_cudnn=ANY name=None axis=-1
pool2d input pool_size=-1 pool_type='max' pool_stride=1 pool_padding=0 global_pooling=False use_cudnn=True
    ceil_mode=False name=None exclusive=True data_format='NCHW'
pool3d input pool_size=-1 pool_type='max' pool_stride=1 pool_padding=0 global_pooling=False use_cudnn=True
    ceil_mode=False name=None exclusive=True data_format='NCDHW'
adaptive_pool2d input pool_size pool_type='max' require_index=False name=None
adaptive_pool3d input pool_size pool_type='max' require_index=False name=None
batch_norm input act=None is_test=False momentum=0.9 epsilon=1e-05 param_attr=None bias_attr=None data_layout='NCHW'
    in_place=False name=None moving_mean_name=None moving_variance_name=None do_model_average_for_mean_and_var=ANY
    use_global_stats=False
inplace_abn input act=None is_test=False momentum=0.9 epsilon=1e-05 param_attr=None bias_attr=None data_layout='NCHW'
    name=None moving_mean_name=None moving_variance_name=None do_model_average_for_mean_and_var=ANY
    use_global_stats=False act_alpha=1.0
instance_norm input epsilon=1e-05 param_attr=None bias_attr=None name=None
layer_norm input scale=True shift=True begin_norm_axis=1 epsilon=1e-05 param_attr=None bias_attr=None act=None name=None
group_norm input groups epsilon=1e-05 param_attr=None bias_attr=None act=None data_layout='NCHW' name=None
data_norm input act=None epsilon=1e-05 param_attr=None data_layout='NCHW' in_place=False name=None
    moving_mean_name=None moving_variance_name=None do_model_average_for_mean_and_var=ANY slot_dim=-1 sync_stats=False
    summary_decay_rate=0.9999999 enable_scale_and_shift=False
spectral_norm weight dim=0 power_iters=1 eps=1e-12 name=None
lrn input n=5 k=1.0 alpha=0.0001 beta=0.75 name=None data_format='NCHW'
l2_normalize x axis epsilon=1e-12 name=None
affine_channel x scale=None bias=None data_layout='NCHW' name=None act=None
dropout x dropout_prob is_test=False seed=None name=None dropout_implementation='downgrade_in_infer'
reduce_sum input dim=None keep_dim=False name=None
reduce_mean input dim=None keep_dim=False name=None
reduce_max input dim=None keep_dim=False name=None
reduce_min input dim=None keep_dim=False name=None
reduce_prod input dim=None keep_dim=False name=None
reduce_all input dim=None keep_dim=False name=None
reduce_any input dim=None keep_dim=False name=None
mean x name=None
mul x y x_num_col_dims=1 y_num_col_dims=1 name=None
matmul x y transpose_x=False transpose_y=False alpha=1.0 name=None
bilinear_tensor_product x y size act=None name=None param_attr=None bias_attr=None
row_conv input future_context_size param_attr=None act=None
im2sequence input filter_size=1 stride=1 padding=0 input_image_size=None out_stride=1 name=None
split input num_or_sections dim=-1 name=None
concat input axis=0 name=None
stack x axis=0
unstack x axis=0 num=None
reshape x shape actual_shape=None act=None inplace=ANY name=None
squeeze input axes name=None
unsqueeze input axes name=None
flatten x axis=1 name=None
transpose x perm name=None
slice input axes starts ends
strided_slice input axes starts ends strides
crop x shape=None offsets=None name=None
crop_tensor x shape=None offsets=None name=None
pad x paddings pad_value=0.0 name=None
pad2d input paddings=[0,0,0,0] mode='constant' pad_value=0.0 data_format='NCHW' name=None
pad_constant_like x y pad_value=0.0 name=None
expand x expand_times name=None
expand_as x target_tensor name=None
reverse x axis
shape input
rank input
size input
gather input index overwrite=True
gather_nd input index name=None
gather_tree ids parents
similarity_focus input axis indexes name=None
continuous_value_model input cvm use_cvm=True
scatter input index updates name=None overwrite=True
scatter_nd_add ref index updates name=None
scatter_nd index updates shape name=None
multiplex inputs index
one_hot input depth allow_out_of_range=False
topk input k name=None
argmin x axis=0
argmax x axis=0
argsort input axis=-1 descending=False name=None
where condition
unique x dtype='int32'
unique_with_counts x dtype='int32'
shard_index input index_num nshards shard_id ignore_value=-1
hash input hash_size num_hash=1 name=None
random_crop x shape seed=None
sampling_id x min=0.0 max=1.0 seed=0 dtype='float32'
uniform_random shape dtype='float32' min=-1.0 max=1.0 seed=0 name=None
gaussian_random shape mean=0.0 std=1.0 seed=0 dtype='float32' name=None
uniform_random_batch_size_like input shape dtype='float32' input_dim_idx=0 output_dim_idx=0 min=-1.0 max=1.0 seed=0
gaussian_random_batch_size_like input shape input_dim_idx=0 output_dim_idx=0 mean=0.0 std=1.0 seed=0 dtype='float32'
data name shape append_batch_size=True dtype='float32' lod_level=0 type=ANY stop_gradient=True
create_tensor dtype name=None persistable=False
create_parameter shape dtype name=None attr=None is_bias=False default_initializer=None
create_global_var shape value dtype persistable=False force_cpu=False name=None
cast x dtype
sums input out=None
sum x
assign input output=None
fill_constant shape dtype value force_cpu=False out=None name=None
fill_constant_batch_size_like input shape dtype value input_dim_idx=0 output_dim_idx=0 force_cpu=False
ones shape dtype force_cpu=False
zeros shape dtype force_cpu=False name=None
ones_like x out=None
zeros_like x out=None
diag diagonal
eye num_rows num_columns=None batch_shape=None dtype='float32' name=None
range start end step dtype name=None
linspace start stop num dtype=None name=None
triu input diagonal=0 name=None
tril input diagonal=0 name=None
has_inf x
has_nan x
isfinite x
is_empty x cond=None
increment x value=1.0 in_place=True
autoincreased_step_counter counter_name=None begin=1 step=1
label_smooth label prior_dist=None epsilon=0.1 dtype='float32' name=None
cross_entropy input label soft_label=False ignore_index=-100
softmax_with_cross_entropy logits label soft_label=False ignore_index=-100 numeric_stable_mode=ANY
    return_softmax=False axis=-1
sigmoid_cross_entropy_with_logits x label ignore_index=-100 name=None normalize=False
square_error_cost input label
mse_loss input label
bpr_loss input label name=None
center_loss input label num_classes alpha param_attr update_center=True
rank_loss label left right name=None
margin_rank_loss label left right margin=0.1 name=None
teacher_student_sigmoid_loss input label soft_max_up_bound=15.0 soft_max_lower_bound=-15.0
huber_loss input label delta
kldiv_loss x target reduction='mean' name=None
npair_loss anchor positive labels l2_reg=0.002
smooth_l1 x y inside_weight=None outside_weight=None sigma=None
log_loss input label epsilon=0.0001 name=None
dice_loss input label epsilon=1e-05
mean_iou input label num_classes
accuracy input label k=1 correct=None total=None
auc input label curve='ROC' num_thresholds=ANY topk=1 slide_steps=1
image_resize input out_shape=None scale=None name=None resample='BILINEAR' actual_shape=None align_corners=True
    align_mode=1 data_format='NCHW'
image_resize_short input out_short_len resample='BILINEAR'
resize_linear input out_shape=None scale=None name=None actual_shape=None align_corners=True align_mode=1
    data_format='NCW'
resize_bilinear input out_shape=None scale=None name=None actual_shape=None align_corners=True align_mode=1
    data_format='NCHW'
resize_trilinear input out_shape=None scale=None name=None actual_shape=None align_corners=True align_mode=1
    data_format='NCDHW'
resize_nearest input out_shape=None scale=None name=None actual_shape=None align_corners=True data_format='NCHW'
space_to_depth x blocksize name=None
pixel_shuffle x upscale_factor
shuffle_channel x group name=None
temporal_shift x seg_num shift_ratio=0.25 name=None
maxout x groups name=None axis=1
prelu x mode param_attr=None name=None
clip x min max name=None
clip_by_norm x max_norm name=None
scale x scale=1.0 bias=0.0 bias_after_scale=True act=None name=None
pow x factor=1.0 name=None
relu x name=None
relu6 x threshold=6.0 name=None
selu x scale=None alpha=None name=None
elu x alpha=1.0 name=None
leaky_relu x alpha=0.02 name=None
brelu x t_min=0.0 t_max=24.0 name=None
soft_relu x threshold=40.0 name=None
stanh x scale_a=0.67 scale_b=1.7159 name=None
hard_sigmoid x slope=0.2 offset=0.5 name=None
hard_swish x threshold=6.0 scale=6.0 offset=3.0 name=None
swish x beta=1.0 name=None
mish x threshold=20 name=None
hard_shrink x threshold=None
softshrink x alpha=None
thresholded_relu x threshold=None
gelu x approximate=False
cumsum x axis=None exclusive=None reverse=None
logical_and x y out=None name=None
logical_or x y out=None name=None
logical_xor x y out=None name=None
logical_not x out=None name=None
less_than x y force_cpu=None cond=None name=None
less_equal x y cond=None name=None
greater_than x y cond=None name=None
greater_equal x y cond=None name=None
equal x y cond=None name=None
not_equal x y cond=None name=None
Assert cond data=None summarize=20 name=None
py_func func x out backward_func=None skip_vars_in_backward_input=None
Print input first_n=-1 message=None summarize=ANY print_tensor_name=True print_tensor_type=True
    print_tensor_shape=True print_tensor_lod=True print_phase='both'
exponential_decay learning_rate decay_steps decay_rate staircase=False
natural_exp_decay learning_rate decay_steps decay_rate staircase=False
inverse_time_decay learning_rate decay_steps decay_rate staircase=False
polynomial_decay learning_rate decay_steps end_learning_rate=0.0001 power=1.0 cycle=False
piecewise_decay boundaries values
noam_decay d_model warmup_steps learning_rate=1.0
cosine_decay learning_rate step_each_epoch epochs
linear_lr_warmup learning_rate warmup_steps start_lr end_lr
"""
"""A layer a line (further lines are indented); ANY where 1.1 and 1.8 have other defaults, or it makes no difference."""

UNARY = """
    sigmoid logsigmoid exp tanh atan tanh_shrink sqrt rsqrt abs ceil floor cos acos asin sin sinh cosh round reciprocal
    square softplus softsign erf log sign
    """
"""Layers of x and a name."""

BINARY = "add sub mul div max min pow mod floordiv"
"""Of x, y, axis, act and a name: elementwise_add and so on."""

OLD = """
fc is_test=False
batch_norm fuse_with_relu=False
less_than force_cpu=None
equal force_cpu=None
"""
"""Keywords of 1.1 that 1.8 has no more."""

OTHERS = """
nets.simple_img_conv_pool input num_filters filter_size pool_size pool_stride pool_padding=0 pool_type='max'
    global_pooling=False conv_stride=1 conv_padding=0 conv_dilation=1 conv_groups=1 param_attr=None bias_attr=None
    act=None use_cudnn=True
nets.img_conv_group input conv_num_filter pool_size conv_padding=1 conv_filter_size=3 conv_act=None param_attr=None
    conv_with_batchnorm=False conv_batchnorm_drop_rate=0.0 pool_stride=1 pool_type='max' use_cudnn=True
nets.sequence_conv_pool input num_filters filter_size param_attr=None act='sigmoid' pool_type='max' bias_attr=None
nets.glu input dim=-1
nets.scaled_dot_product_attention queries keys values num_heads=1 dropout_rate=0.0
data name shape dtype='float32' lod_level=0
embedding input size is_sparse=False is_distributed=False padding_idx=None param_attr=None dtype='float32'
one_hot input depth allow_out_of_range=False
gradients targets inputs target_gradients=None no_grad_set=None
append_backward loss parameter_list=None no_grad_set=None callbacks=None
create_lod_tensor data recursive_seq_lens place
create_random_int_lodtensor recursive_seq_lens base_shape place low high
DataFeeder feed_list place program=None
ParamAttr name=None initializer=None learning_rate=1.0 regularizer=None trainable=True
WeightNormParamAttr dim=None name=None initializer=None learning_rate=1.0 regularizer=None trainable=True
Executor.run program=None feed=None fetch_list=None feed_var_name='feed' fetch_var_name='fetch' scope=None
    return_numpy=True use_program_cache=ANY return_merged=True use_prune=False
Executor.train_from_dataset program=None dataset=None scope=None thread=0 debug=False fetch_list=None fetch_info=None
    print_period=100 fetch_handler=None
Executor.infer_from_dataset program=None dataset=None scope=None thread=0 debug=False fetch_list=None fetch_info=None
    print_period=100 fetch_handler=None
contrib.InitState init=None shape=None value=0.0 init_boot=None need_reorder=False dtype='float32'
contrib.StateCell inputs states out_state name=None
contrib.TrainingDecoder state_cell name=None
contrib.BeamSearchDecoder state_cell init_ids init_scores target_dict_dim word_dim input_var_dict={} topk_size=50
    sparse_emb=True max_len=100 beam_size=1 end_id=1 name=None
io.save_vars executor dirname main_program=None vars=None predicate=None filename=None
io.save_params executor dirname main_program=None filename=None
io.save_persistables executor dirname main_program=None filename=None
io.load_vars executor dirname main_program=None vars=None predicate=None filename=None
io.load_params executor dirname main_program=None filename=None
io.load_persistables executor dirname main_program=None filename=None
io.save_inference_model dirname feeded_var_names target_vars executor main_program=None model_filename=None
    params_filename=None export_for_deployment=True
io.load_inference_model dirname executor model_filename=None params_filename=None
io.batch reader batch_size drop_last=False
io.shuffle reader buf_size
initializer.Constant value=0.0 force_cpu=False
initializer.Uniform low=-1.0 high=1.0 seed=0
initializer.Normal loc=0.0 scale=1.0 seed=0
initializer.TruncatedNormal loc=0.0 scale=1.0 seed=0
initializer.Xavier uniform=True fan_in=None fan_out=None seed=0
initializer.MSRA uniform=True fan_in=None seed=0
initializer.NumpyArrayInitializer value
regularizer.L1Decay regularization_coeff=0.0
regularizer.L2Decay regularization_coeff=0.0
clip.ErrorClipByValue max min=None
clip.GradientClipByValue max min=None
clip.GradientClipByNorm clip_norm
clip.GradientClipByGlobalNorm clip_norm group_name='default_group'
clip.set_gradient_clip clip param_list=None program=None
metrics.Accuracy name=None
metrics.Auc name curve='ROC' num_thresholds=4095
metrics.Precision name=None
metrics.Recall name=None
metrics.CompositeMetric name=None
metrics.ChunkEvaluator name=None
metrics.EditDistance name
"""


def rows(table: str) -> dict[str, list[str]]:
    """The table's lines by their first word."""
    lines: list[str] = []
    for line in table.strip("\n").splitlines():
        if line.startswith("    "):
            lines[-1] += line
        else:
            lines.append(line)
    return {line.split()[0]: line.split()[1:] for line in lines}


WANTED = rows(LAYERS)
WANTED |= {name: ["x", "name=None"] for name in UNARY.split()}
WANTED |= {f"elementwise_{name}": ["x", "y", "axis=-1", "act=None", "name=None"] for name in BINARY.split()}
WANTED = {f"layers.{name}": row for name, row in WANTED.items()} | rows(OTHERS)


def compare(found: inspect.Parameter, wanted: str) -> bool:
    name, equals, default = wanted.partition("=")
    if found.name != name or (found.default is found.empty) != (not equals):
        # a name that Fluid demands may have a default here
        return found.name == name and not equals
    if default in ("", "ANY"):
        return True
    value: Any = eval(default, {})
    return bool((list(found.default) if isinstance(value, list) else found.default) == value)


@grouped(("name",), ((name,) for name in WANTED), by=lambda name: name.rpartition(".")[0] or name[0])
def test_signature_is_fluids(name: str) -> None:
    found: Any = fluid
    for part in name.split("."):
        found = getattr(found, part)
    parameters = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    shown = [str(p).split(":")[0] for p in parameters]
    assert len(parameters) >= len(WANTED[name]), shown
    wrong = [f"{text}, not {p}" for p, text in zip(parameters, WANTED[name], strict=False) if not compare(p, text)]
    assert not wrong, shown
    rest = parameters[len(WANTED[name]) :]
    assert all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in rest), shown


@pytest.mark.parametrize("name", rows(OLD))
def test_keywords_of_1_1(name: str) -> None:
    parameters = inspect.signature(getattr(fluid.layers, name)).parameters
    for text in rows(OLD)[name]:
        assert compare(parameters[text.partition("=")[0]], text)


def test_positional_calls() -> None:
    """Layers generated from operators take positional arguments as written functions do."""
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.layers.data("x", [4])
        fluid.layers.elementwise_add(x, x, -1, "relu", "total")
        fluid.layers.leaky_relu(x, 0.1)
        fluid.layers.hard_shrink(x, 0.3)
        ops = fluid.default_main_program().global_block().ops
    assert [op.type for op in ops] == ["elementwise_add", "relu", "leaky_relu", "hard_shrink"]
    assert [ops[2].attr("alpha"), ops[3].attr("threshold")] == [pytest.approx(0.1), pytest.approx(0.3)]
