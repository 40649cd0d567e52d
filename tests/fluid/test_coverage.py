"""Every dense operator of Fluid's first releases is here, and has uses in the tables of this folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from fluidlite.program.registry import ops

HERE = Path(__file__).parent
FLUID = {
    "unary": """
        abs relu sqrt tanh brelu cos elu exp hard_shrink hard_sigmoid log logsigmoid pow reciprocal relu6 stanh sigmoid
        sin soft_relu softshrink softplus softsign square swish tanh_shrink thresholded_relu ceil floor round sign clip
        clip_by_norm scale prelu maxout cumsum isinf isfinite isnan leaky_relu gelu erf mish
        """,
    "elementwise": """
        elementwise_add elementwise_div elementwise_max elementwise_min elementwise_mul elementwise_sub elementwise_pow
        minus sum equal greater_equal greater_than less_equal less_than not_equal logical_and logical_or logical_xor
        logical_not
        """,
    "reduce": "reduce_sum reduce_mean reduce_max reduce_min reduce_prod mean norm l1_norm squared_l2_norm"
    " squared_l2_distance",
    "linear algebra": "matmul mul cos_sim bilinear_tensor_product conv_shift",
    "shape": """
        cast assign assign_value concat split stack unstack reshape2 squeeze2 unsqueeze2 flatten2 transpose2 expand
        slice crop pad pad2d pad_constant_like reverse gather scatter multiplex top_k argsort arg_min arg_max shape
        fill fill_constant fill_constant_batch_size_like fill_zeros_like is_empty lookup_table increment range linspace
        one_hot where gather_nd gather_tree similarity_focus cvm
        """,
    "images": """
        conv2d conv3d conv2d_transpose conv3d_transpose depthwise_conv2d depthwise_conv2d_transpose pool2d pool3d
        max_pool2d_with_index max_pool3d_with_index unpool spp bilinear_interp lrn affine_channel dropout row_conv
        softmax batch_norm layer_norm group_norm data_norm spectral_norm
        """,
    "losses": """
        cross_entropy softmax_with_cross_entropy sigmoid_cross_entropy_with_logits hinge_loss huber_loss
        modified_huber_loss log_loss smooth_l1_loss margin_rank_loss rank_loss label_smooth accuracy auc
        precision_recall mean_iou
        """,
    "optimisers": """
        sgd momentum lars_momentum adam adamax adagrad decayed_adagrad adadelta ftrl proximal_adagrad proximal_gd
        rmsprop
        """,
}
NO_VALUES = """
    uniform_random gaussian_random truncated_gaussian_random uniform_random_batch_size_like
    gaussian_random_batch_size_like random_crop sampling_id hash im2sequence linear_chain_crf crf_decoding
    feed fetch print py_func
    """
"""Random, encoded, of sequences, or the executor's: their own tests say what they do."""


def used() -> set[str]:
    found: set[str] = set()
    for path in sorted(HERE.glob("test_uses_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem + "_read", path)
        assert spec is not None
        assert spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= {use.op for use in module.USES}
    return found


def test_every_operator_of_fluid_is_here() -> None:
    known = {op.type for op in ops}
    wanted = set(" ".join([*FLUID.values(), NO_VALUES]).split())
    assert sorted(wanted - known) == []


def test_every_operator_of_fluid_has_uses() -> None:
    assert sorted(set(" ".join(FLUID.values()).split()) - used()) == []


GRADIENTS = """
    abs brelu clip conv2d conv2d_transpose conv3d cos_sim cross_entropy cumsum dropout elementwise_max elementwise_pow
    expand gather huber_loss log_loss lookup_table lrn matmul max_pool2d_with_index maxout mean norm pad pad2d pool2d
    prelu rank_loss reduce_max reduce_prod reshape2 row_conv scatter slice smooth_l1_loss softmax spp stack top_k
    transpose2 unpool concat crop bilinear_interp batch_norm layer_norm label_smooth margin_rank_loss multiplex mul
    """


@pytest.mark.parametrize("op", GRADIENTS.split())
def test_gradients_have_fluids_names(op: str) -> None:
    assert f"{op}_grad" in {each.type for each in ops}
