"""Every layer with each argument replaced by rubbish: it is taken, or refused by an error that says where and what.

A layer that is refused appends nothing, neither to the program nor to the startup program.
"""

from __future__ import annotations

import ast
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.program.block import Block

L = fluid.layers
FED = {
    "f0": [1], "f1": [2, 1], "f2": [2, 4], "f3": [2, 3, 4], "f4": [2, 4, 8, 8], "f5": [2, 4, 4, 8, 8], "sq": [4, 4],
    "f1d": [4], "f1d2": [2], "f22": [2, 2], "th": [2, 2, 3], "grid": [2, 3, 3, 2], "i0": [1], "i1": [2, 1],
    "i2": [2, 4], "i3": [3, 2, 2], "i1d": [2], "b": [2, 4],
}  # fmt: skip
"""Variables by name: f of floats, i of integers, b of bools."""
USES = """
Assert cond=b data=f2
Print input=b
abs x=i1
accuracy input=f2 label=i1
acos x=f3
adaptive_pool2d input=f4 pool_size=[2,2]
adaptive_pool3d input=f5 pool_size=1
add_position_encoding input=f3 alpha=2 beta=2
affine_channel x=f4 scale=f1d bias=f1d
affine_grid theta=th out_shape=[2,3,4,4]
argmax x=i1
argmin x=f3
argsort input=f1
asin x=f0
assign input=f5
atan x=f3
auc input=f1 label=i1
autoincreased_step_counter
batch_norm input=f3
bilinear_tensor_product x=f2 y=f1 size=1
bpr_loss input=f2 label=i1
brelu x=f1
cast x=f2 dtype='float32'
ceil x=f4
center_loss input=f2 label=i1 num_classes=4 alpha=0.5 param_attr=None
chunk_eval input=tags label=tags chunk_scheme='IOB' num_chunk_types=2
clip x=f0 min=1 max=2
clip_by_norm x=f2 max_norm=2
concat input=f0
continuous_value_model input=f2 cvm=f22
conv2d input=f4 num_filters=1 filter_size=2
conv2d_transpose input=f4 num_filters=2 filter_size=3
conv3d input=f5 num_filters=1 filter_size=2
conv3d_transpose input=f5 num_filters=2 filter_size=3
cos x=f4
cos_sim X=sq Y=sq
cosh x=f5
cosine_decay learning_rate=0.5 step_each_epoch=2 epochs=2
create_global_var shape=[2,2] value=0.5 dtype='float32'
create_parameter shape=[1,1,1,1] dtype='float32'
create_tensor dtype='float32'
crop x=f3 shape=[1,2,2]
crop_tensor x=f3 shape=[1,2,2]
cross_entropy input=f1 label=i1d
ctc_greedy_decoder input=rows blank=0
cumsum x=i1d
data name='fresh' shape=[2,2]
data_norm input=sq
device_transfer x=f2 place='cpu'
device_view x=f2 place='cpu'
diag diagonal=i1d
dice_loss input=f2 label=i1
dot x=f2 y=f2
dropout x=f5 dropout_prob=1
dynamic_gru input=rows3 size=1
dynamic_lstm input=rows size=4
dynamic_lstmp input=rows size=4 proj_size=2
edit_distance input=tags label=tags
elementwise_add x=i0 y=i2
elementwise_div x=f3 y=f3
elementwise_floordiv x=i1 y=i1d
elementwise_max x=f0 y=f0
elementwise_min x=f0 y=f2
elementwise_mod x=i0 y=i1d
elementwise_mul x=f2 y=f0
elementwise_pow x=f5 y=f0
elementwise_sub x=f0 y=f5
elu x=f3
embedding input=i1 size=[2,2]
equal x=sq y=sq
erf x=f2
exp x=f0
expand x=sq expand_times=[2,2]
expand_as x=i1d target_tensor=i1d
exponential_decay learning_rate=2 decay_steps=0.5 decay_rate=4
eye num_rows=1
fc input=ls size=4
fill_constant shape=[1,1,1,1] dtype='float32' value=f0
fill_constant_batch_size_like input=f4 shape=[2,2] dtype='float32' value=0.5
flatten x=f2
flip input=f4 dims=[0]
floor x=f5
fsp_matrix x=f4 y=f4
gather input=f2 index=i0
gather_nd input=f4 index=i1d
gather_tree ids=i3 parents=i3
gaussian_random shape=[2,2]
gaussian_random_batch_size_like input=f0 shape=4
gelu x=f4
greater_equal x=f4 y=f4
greater_than x=i2 y=i2
grid_sampler x=f4 grid=grid
group_norm input=f5 groups=4
gru_unit input=rows3 hidden=f1 size=3
hard_shrink x=sq
hard_sigmoid x=f0
hard_swish x=f0
has_inf x=f4
has_nan x=f2
hash input=i1 hash_size=2
hsigmoid input=f2 label=i1 num_classes=3
huber_loss input=f4 label=f4 delta=2
im2sequence input=f4
image_resize input=f4 out_shape=[3,3]
image_resize_short input=f4 out_short_len=4
increment x=f3
inplace_abn input=f4
instance_norm input=f2
inverse_time_decay learning_rate=1 decay_steps=0.5 decay_rate=1
is_empty x=f5
isfinite x=f2
kldiv_loss x=f3 target=f3
l2_normalize x=f4 axis=None
label_smooth label=f4
layer_norm input=f5
leaky_relu x=f2
less_equal x=f3 y=f0
less_than x=f0 y=f2
linear_chain_crf input=rows label=tags
linear_lr_warmup learning_rate=2 warmup_steps=2 start_lr=0.5 end_lr=0.5
linspace start=1 stop=0.5 num=4
log x=f4
log1p x=f4
log_loss input=f4 label=f4
log_softmax input=f4
logical_and x=b y=b
logical_not x=b
logical_or x=b y=b
logical_xor x=b y=b
logsigmoid x=f3
lrn input=f4
lstm input=f3 init_h=f3 init_c=f3 max_len=2 hidden_size=4 num_layers=1 is_bidirec=True
lstm_unit x_t=f2 hidden_t_prev=f2 cell_t_prev=f2
margin_rank_loss label=f1 left=f1 right=f1
matmul x=f5 y=f5
maxout x=f4 groups=1
mean x=f5
mean_iou input=i1 label=i1 num_classes=1
meshgrid input=i1d
mish x=f2
mse_loss input=f4 label=f4
mul x=sq y=sq
multiplex inputs=ls index=i1
natural_exp_decay learning_rate=4 decay_steps=2 decay_rate=0.5
noam_decay d_model=0.5 warmup_steps=1
nce input=f2 label=i1 num_total_classes=3
not_equal x=f3 y=f0
npair_loss anchor=f2 positive=f2 labels=f1d2
one_hot input=i1 depth=4
ones shape=[1,1,1,1] dtype='float32'
ones_like x=i1
pad x=i1 paddings=[1,1,1,1]
pad2d input=f4
pad_constant_like x=i1 y=f1
piecewise_decay boundaries=[0] values=[2,2]
pixel_shuffle x=f4 upscale_factor=2
polynomial_decay learning_rate=1 decay_steps=1
pool2d input=f4 pool_size=2
pool3d input=f5 pool_size=2
pow x=f4
prelu x=f4 mode='all'
py_func func=len x=f2 out=f2o
random_crop x=f3 shape=[2,2]
py_reader capacity=4 shapes=[[-1,3]] dtypes=['float32']
create_py_reader_by_data capacity=4 feed_list=ls
range start=f0 end=2 step=f0 dtype='float32'
rank input=f4
rank_loss label=f1 left=f1 right=f1
reciprocal x=f3
reduce_all input=b
reduce_any input=b
reduce_max input=i1
reduce_mean input=f4
reduce_min input=i2
reduce_prod input=f4
reduce_sum input=i1
relu x=f2
relu6 x=f3
reshape x=i1 shape=i0
resize_bilinear input=f4 out_shape=[3,3]
resize_linear input=f3 out_shape=[3]
resize_nearest input=f4 out_shape=[3,3]
resize_trilinear input=f5 out_shape=[3,3,3]
reverse x=f4 axis=[0]
roll input=f2 shifts=4
round x=f4
row_conv input=f3 future_context_size=2
rsqrt x=f2
sampling_id x=f2
scale x=i1
scatter input=f0 index=i0 updates=f0
scatter_nd index=i1 updates=f2 shape=[9,4]
scatter_nd_add ref=f1 index=i1 updates=f1
selu x=f5
shape input=b
shard_index input=i1 index_num=8 nshards=2 shard_id=0
shuffle_channel x=f4 group=4
sigmoid x=f4
sigmoid_cross_entropy_with_logits x=f4 label=f4
sign x=f2
similarity_focus input=f4 axis=1 indexes=[0]
sin x=f4
sinh x=f5
size input=f4
slice input=f3 axes=2 starts=[0] ends=2
smooth_l1 x=f2 y=f2
soft_relu x=f2
softmax input=f2
softmax_with_cross_entropy logits=f1 label=i1
softplus x=f5
softshrink x=f2
softsign x=f2
space_to_depth x=f4 blocksize=2
spectral_norm weight=f1
split input=f4 num_or_sections=4
sqrt x=f5
square x=i0
square_error_cost input=f2 label=f1
squeeze input=i1 axes=1
stack x=sq
stanh x=f2
strided_slice input=f3 axes=1 starts=i0 ends=4 strides=4
sum x=f2
sums input=i2
swish x=f0
tanh x=f5
tanh_shrink x=f3
teacher_student_sigmoid_loss input=f4 label=f4
temporal_shift x=f4 seg_num=1
thresholded_relu x=f3
topk input=f5 k=2
transpose x=i1d perm=[0]
tril input=f5
triu input=f4
unbind input=f2
unfold x=f4 kernel_sizes=4
uniform_random shape=[1,1,1,1]
uniform_random_batch_size_like input=f4 shape=[1,1,1,1]
unique x=i1d
unique_with_counts x=i1d
unsqueeze input=f2 axes=1
unstack x=i1d
warpctc input=rows label=tags
where condition=i1d
zeros shape=[1,1,1,1] dtype='float32'
zeros_like x=f4
lod_append x=rows level=rows
lod_reset x=f2 y=rows
sequence_concat input=rows
sequence_conv input=rows num_filters=2
sequence_enumerate input=tags win_size=2
sequence_expand x=rows y=tags
sequence_expand_as x=f2 y=tags
sequence_first_step input=rows
sequence_last_step input=rows
sequence_mask x=i1d
sequence_pad x=rows pad_value=f1d
sequence_pool input=rows pool_type='max'
sequence_reshape input=rows new_dim=2
sequence_reverse x=rows
sequence_scatter input=f2 index=tags updates=col
sequence_slice input=rows offset=i1 length=i1
sequence_softmax input=col
sequence_unpad x=f3 length=i1d
array_to_lod_tensor x=steps table=table
lod_rank_table x=rows
lod_tensor_to_array x=rows table=table
max_sequence_len rank_table=table
merge_lod_tensor in_true=f2 in_false=f2 x=f2 mask=b
reorder_lod_tensor_by_rank x=f2 rank_table=table
shrink_memory x=f2 i=i0 table=table
split_lod_tensor input=f2 mask=b
array_length array=arr
array_read array=arr i=i0
array_write x=f2 i=i0 array=arr
create_array dtype='float32'
tensor_array_to_tensor input=arr
beam_search pre_ids=tags pre_scores=col ids=None scores=rows beam_size=2 end_id=1
sampled_softmax_with_cross_entropy logits=f2 label=i1 num_samples=2
sequence_topk_avg_pooling input=col row=rows col=rows topks=[1,2] channel_num=1
load out=f2o file_path='v'
open_files filenames=['a.recordio'] shapes=[[-1,2]] lod_levels=[0] dtypes=['float32']
open_recordio_file filename='a.recordio' shapes=[[-1,2]] lod_levels=[0] dtypes=['float32']
random_data_generator low=0.0 high=1.0 shapes=[[2,2]] lod_levels=[0]
"""
"""A use of each layer, with the arguments that it must have."""
APART = {
    "get_tensor_from_selected_rows": "in test_sparse_rows.py: they take the gradient of an optimiser",
    "merge_selected_rows": "in test_sparse_rows.py: they take the gradient of an optimiser",
    "append_LARS": "takes what backward gave", "crf_decoding": "takes a parameter of another layer",
    **dict.fromkeys(("Categorical", "MultivariateNormalDiag", "Normal", "Uniform"), "classes: test_fluid_remains.py"),
    "Preprocessor": "takes a reader",
    "rnn": "takes a cell", **dict.fromkeys(("GRUCell", "LSTMCell", "RNNCell"), "appends nothing till it is called"),
    "beam_search_decode": "takes what beam_search selected", "dynamic_decode": "takes a decoder",
    **dict.fromkeys(("BasicDecoder", "BeamSearchDecoder", "DecodeHelper", "Decoder", "GreedyEmbeddingHelper",
                     "SampleEmbeddingHelper", "TrainingHelper"), "a class: tests/unit/test_decoders.py"),
    **dict.fromkeys(("batch", "double_buffer", "read_file", "shuffle"), "takes a reader"),
    **dict.fromkeys(("ConditionalBlock", "DynamicRNN", "IfElse", "StaticRNN", "Switch", "While"), "a class of blocks"),
    **dict.fromkeys(("case", "cond", "switch_case", "while_loop"), "takes functions: tests/fluid/test_control_flow.py"),
}  # fmt: skip
RUBBISH = [
    None, "nosuch", -1, 0, 3, 2**70, 1.5, math.nan, [], [-1], ["x"], {}, object(), b"x", True, np.zeros(3),
    np.float32(1), 1j, len, "a variable", "an integer variable", "a list of variables", ("a", 3),
]  # fmt: skip
Sizes = tuple[tuple[int, ...], ...]


def sizes() -> Sizes:
    blocks: tuple[Block, ...] = (
        fluid.default_main_program().global_block(), fluid.default_startup_program().global_block()
    )  # fmt: skip
    return tuple((len(block.ops), len(block.vars)) for block in blocks)


def fed(name: str, pool: object) -> Any:
    kinds = {"f": "float32", "i": "int64", "b": "bool"}
    return L.data(name, FED[name], dtype=kinds.get(name[0], "float32"), append_batch_size=False)


class Pool(dict[str, Any]):
    """What uses name, made when it is first asked for."""

    def __missing__(self, name: str) -> Any:
        made = self[name] = MADE[name](self)
        return made


MADE: dict[str, Callable[[Pool], Any]] = {
    **{name: partial(fed, name) for name in FED},
    "rows": lambda pool: L.data("rows", [4], lod_level=1), "rows3": lambda pool: L.data("rows3", [3], lod_level=1),
    "col": lambda pool: L.data("col", [1], lod_level=1),
    "tags": lambda pool: L.data("tags", [1], dtype="int64", lod_level=1),
    "arr": lambda pool: L.array_write(pool["f2"], pool["i0"]), "table": lambda pool: L.lod_rank_table(pool["rows"]),
    "steps": lambda pool: L.lod_tensor_to_array(pool["rows"], pool["table"]), "ls": lambda pool: [pool["f2"]] * 2,
    "len": lambda pool: len,
    "f2o": lambda pool: fluid.default_main_program().current_block().create_var("f2o", [2, 4], "float32"),
}  # fmt: skip
NAMED: dict[str, Callable[[Pool], Any]] = {
    "a variable": lambda pool: pool["f3"], "an integer variable": lambda pool: pool["i2"],
    "a list of variables": lambda pool: [pool["f3"]],
}  # fmt: skip


def call(use: str, argument: str = "", value: Any = None) -> tuple[BaseException | None, Sizes, Sizes]:
    """Append the layer of a use, one argument replaced; what it raised, and the programs' sizes around it."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        pool = Pool()
        name, *given = use.split()
        arguments = {key: pool[word] if word in MADE else ast.literal_eval(word)
                     for key, _, word in (each.partition("=") for each in given)}  # fmt: skip
        if argument:
            arguments[argument] = NAMED[value](pool) if isinstance(value, str) and value in NAMED else value
        before = sizes()
        try:
            getattr(L, name)(**arguments)
        except Exception as exc:
            return exc, before, sizes()
        return None, before, sizes()


def test_the_uses_are_of_every_layer() -> None:
    uses = USES.strip().splitlines()
    assert sorted({use.split()[0] for use in uses} | APART.keys()) == sorted({*L.__all__})
    assert [(use, wrong) for use in uses if (wrong := call(use)[0]) is not None] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use", USES.strip().splitlines(), ids=lambda use: use.split()[0])
def test_rubbish(use: str) -> None:
    found = []
    for argument in inspect.signature(getattr(L, use.split()[0])).parameters:
        for value in RUBBISH:
            error, before, after = call(use, argument, value)
            said, what = str(error), f"{argument} = {value!r}"
            if error is not None and not isinstance(error, fluid.FluidError):
                found.append(f"{what}: {type(error).__name__}: {said}")
            elif error is not None and f"{__name__.rpartition('.')[2]}.py:" not in said:
                found.append(f"{what}: no line of the user's: {said}")
            elif error is not None and before != after:
                found.append(f"{what}: it left something: {said}")
    assert not found, "\n".join(found)


@pytest.fixture
def empty() -> Iterator[None]:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


@pytest.mark.usefixtures("empty")
def test_what_users_functions_raise_is_theirs() -> None:
    class Own(fluid.initializer.Initializer):
        def __call__(self, var: Any, block: Any) -> Any:
            raise ValueError("mine")

    x = L.data("x", [4])
    before = sizes()
    with pytest.raises(ValueError, match="mine"):
        L.fc(x, 3, param_attr=Own())
    assert sizes() == before
    with pytest.raises(TypeError, match="missing"):
        L.fc(x)  # type: ignore[call-arg]


@pytest.mark.usefixtures("empty")
def test_an_absurd_number_of_results_is_refused_at_once() -> None:
    x = L.data("x", [2**40], append_batch_size=False)
    for make in (lambda: L.split(x, 2**40), lambda: L.unstack(x), lambda: L.split(x, sys.maxsize)):
        with pytest.raises(fluid.errors.AttributeValueError, match="at most 65,536 results"):
            make()
