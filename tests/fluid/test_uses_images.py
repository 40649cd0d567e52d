"""Fluid's uses of convolutions, pooling, other sizes and orders of images, and normalisation."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from use_table import Numbers, Use, checks_of, f32, softmax

N = Numbers(4)
USES: list[Use] = []
Array = np.ndarray[Any, Any]

# Convolution ---------------------------------------------------------------------------------------------------------


def conv(x: Array, w: Array, stride: Any, pad: Any, dilation: Any, groups: int = 1) -> Array:
    """Of [N, C, ...] with [M, C / groups, ...], one output position at a time."""
    rank = x.ndim - 2
    x = np.pad(np.float64(x), [(0, 0), (0, 0), *((p, p) for p in pad)])
    reach = [dilation[i] * (w.shape[2 + i] - 1) + 1 for i in range(rank)]
    space = [(x.shape[2 + i] - reach[i]) // stride[i] + 1 for i in range(rank)]
    out = np.zeros((x.shape[0], w.shape[0], *space))
    ins, outs = x.shape[1] // groups, w.shape[0] // groups
    for at in product(*map(range, space)):
        window = x[(..., *(slice(a * s, a * s + r, d) for a, s, r, d in zip(at, stride, reach, dilation, strict=True)))]
        for g in range(groups):
            mine = window[:, g * ins : (g + 1) * ins].reshape(len(x), -1)
            out[(slice(None), slice(g * outs, (g + 1) * outs), *at)] = (
                mine @ w[g * outs : (g + 1) * outs].reshape(outs, -1).T
            )
    return f32(out)


def conv_transpose(x: Array, w: Array, stride: Any, pad: Any, dilation: Any, groups: int = 1, more: int = 0) -> Array:
    """Of [N, C, ...] with [C, M / groups, ...]: each input element adds the filter, times it, to the output."""
    rank = x.ndim - 2
    reach = [dilation[i] * (w.shape[2 + i] - 1) + 1 for i in range(rank)]
    space = [(x.shape[2 + i] - 1) * stride[i] + reach[i] + more for i in range(rank)]
    out = np.zeros((x.shape[0], w.shape[1] * groups, *space))
    ins, outs = x.shape[1] // groups, w.shape[1]
    for at in product(*map(range, x.shape[2:])):
        where = tuple(slice(a * s, a * s + r, d) for a, s, r, d in zip(at, stride, reach, dilation, strict=True))
        for g in range(groups):
            mine = x[(slice(None), slice(g * ins, (g + 1) * ins), *at)]
            out[(slice(None), slice(g * outs, (g + 1) * outs), *where)] += np.tensordot(
                mine, w[g * ins : (g + 1) * ins], 1
            )
    return f32(out[(..., *(slice(p, n - p) for p, n in zip(pad, space, strict=True)))])


FORMS: tuple[tuple[dict[str, Any], int], ...] = (
    ({}, 1),
    ({"strides": 2, "paddings": 1}, 1),
    ({"paddings": 1, "groups": 2}, 2),
    ({"dilations": 2, "paddings": 2, "strides": 2}, 1),
)
for rank in (2, 3):
    for form, groups in FORMS:
        attrs = {key: value if key == "groups" else [value] * rank for key, value in form.items()}
        full = {"strides": [1] * rank, "paddings": [0] * rank, "dilations": [1] * rank, "groups": groups, **attrs}
        numbers = (full["strides"], full["paddings"], full["dilations"], groups)
        side = (5, 6, 5)[:rank]
        x, w = N.f(2, 2, *side), N.f(4, 2 // groups, *[3] * rank)
        out = conv(x, w, *numbers)
        given = {**full, "use_cudnn": False, "use_mkldnn": False}
        grads = "Input Filter" if rank == 2 else "Filter"
        USES.append(Use(f"conv{rank}d", {"Input": x, "Filter": w}, {"Output": out}, given, grads, "Output", 2e-5))
        x, w = N.f(1, 4, *(3, 4, 2)[:rank]), N.f(4, 2 // groups, *[3] * rank)
        out = conv_transpose(x, w, *numbers)
        USES.append(
            Use(f"conv{rank}d_transpose", {"Input": x, "Filter": w}, {"Output": out}, given, grads, "Output", 2e-5)
        )
x, w = N.f(2, 3, 5, 5), N.f(6, 1, 3, 3)
attrs = {"strides": [2, 2], "paddings": [1, 1], "groups": 3, "dilations": [1, 1]}
out = conv(x, w, [2, 2], [1, 1], [1, 1], 3)
both = "Input Filter"
USES.append(Use("depthwise_conv2d", {"Input": x, "Filter": w}, {"Output": out}, attrs, both, "Output", 2e-5))
last = {**attrs, "data_format": "NHWC"}
x_last, out_last = x.transpose(0, 2, 3, 1).copy(), out.transpose(0, 2, 3, 1)
USES.append(Use("conv2d", {"Input": x_last, "Filter": w}, {"Output": out_last}, last, both, "Output", 2e-5))
for algorithm, pads in (("SAME", [0, 1, 0, 1]), ("VALID", [0, 0, 0, 0])):
    x, w = N.f(1, 2, 6, 6), N.f(2, 2, 3, 3)
    wide = np.pad(x, ((0, 0), (0, 0), tuple(pads[:2]), tuple(pads[2:])))
    out = conv(wide, w, [2, 2], [0, 0], [1, 1])
    for given in ({"padding_algorithm": algorithm}, {"paddings": pads}):
        USES.append(
            Use(
                "conv2d", {"Input": x, "Filter": w}, {"Output": out}, {"strides": [2, 2], **given}, both, "Output", 2e-5
            )
        )
x, w = N.f(1, 3, 3, 3), N.f(3, 1, 2, 2)
out = conv_transpose(x, w, [2, 2], [0, 0], [1, 1], 3)
attrs = {"strides": [2, 2], "groups": 3}
USES.append(Use("depthwise_conv2d_transpose", {"Input": x, "Filter": w}, {"Output": out}, attrs, both, "Output", 2e-5))
x, w = N.f(1, 2, 3, 3), N.f(2, 2, 3, 3)
full_size = conv_transpose(x, w, [2, 2], [0, 0], [1, 1], more=1)[:, :, 1:7, 1:7]
attrs = {"strides": [2, 2], "paddings": [1, 1], "output_size": [6, 6]}
USES.append(Use("conv2d_transpose", {"Input": x, "Filter": w}, {"Output": full_size}, attrs, both, "Output", 2e-5))
x, w = f32(np.arange(24).reshape(2, 4, 3)) / 9, N.f(3, 3)
ahead = np.zeros_like(x)
for t, k in product(range(4), range(3)):
    if t + k < 4:
        ahead[:, t] += x[:, t + k] * w[k]
USES.append(Use("row_conv", {"X": x, "Filter": w}, {"Out": ahead}, {}, "X Filter"))

# Pooling -------------------------------------------------------------------------------------------------------------


def pool(x: Array, kind: str, size: Any, stride: Any, pad: Any, exclusive: bool = True, ceil: bool = False) -> Any:
    """Maxima or means of windows, and the positions of the maxima in the plane."""
    rank = x.ndim - 2
    room = [x.shape[2 + i] - size[i] + 2 * pad[i] for i in range(rank)]
    space = [-(-room[i] // stride[i]) + 1 if ceil else room[i] // stride[i] + 1 for i in range(rank)]
    out, mask = np.zeros((*x.shape[:2], *space), "float32"), np.zeros((*x.shape[:2], *space), "int32")
    flat = np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:])
    for at in product(*map(range, space)):
        starts = [at[i] * stride[i] - pad[i] for i in range(rank)]
        where = tuple(slice(max(s, 0), min(s + k, n)) for s, k, n in zip(starts, size, x.shape[2:], strict=True))
        window = x[(..., *where)].reshape(*x.shape[:2], -1)
        counted = window.shape[-1] if exclusive else int(np.prod(size))
        out[(..., *at)] = window.max(-1) if kind == "max" else window.sum(-1) / counted
        mask[(..., *at)] = flat[where].ravel()[window.argmax(-1)]
    return out, mask


for rank in (2, 3):
    x = N.distinct(2, 2, *(6, 5, 4)[:rank])
    for kind, ceil, exclusive in (
        ("max", False, True),
        ("avg", False, True),
        ("avg", True, False),
        ("max", True, True),
    ):
        sizes: dict[str, Any] = {"ksize": [3] * rank, "strides": [2] * rank, "paddings": [1] * rank}
        out = pool(x, kind, *sizes.values(), exclusive, ceil)[0] if not (ceil and kind == "avg") else None
        if out is None:
            sizes = {"ksize": [3] * rank, "strides": [2] * rank, "paddings": [0] * rank}
            out = pool(x, kind, *sizes.values(), True, True)[0]
            exclusive = True
        given = {**sizes, "pooling_type": kind, "ceil_mode": ceil, "exclusive": exclusive, "use_cudnn": False}
        USES.append(Use(f"pool{rank}d", {"X": x}, {"Out": out}, given, "X"))
    sizes = {"ksize": [3] * rank, "strides": [1] * rank, "paddings": [1] * rank}
    out = pool(x, "avg", *sizes.values(), exclusive=False)[0]
    USES.append(Use(f"pool{rank}d", {"X": x}, {"Out": out}, {**sizes, "pooling_type": "avg", "exclusive": False}, "X"))
    out = x.reshape(2, 2, -1).mean(-1).reshape(2, 2, *[1] * rank)
    given = {"pooling_type": "avg", "ksize": [2] * rank, "global_pooling": True, "paddings": [1] * rank}
    USES.append(Use(f"pool{rank}d", {"X": x}, {"Out": out}, given, "X"))
    sizes = {"ksize": [2] * rank, "strides": [2] * rank, "paddings": [0] * rank}
    out, mask = pool(x, "max", *sizes.values())
    op = f"max_pool{rank}d_with_index"
    USES.append(Use(op, {"X": x}, {"Out": out, "Mask": mask}, sizes, "X"))
    out, mask = (v.reshape(2, 2, *[1] * rank) for v in (x.reshape(4, -1).max(-1), x.reshape(4, -1).argmax(-1)))
    given = {"ksize": [2] * rank, "global_pooling": True}
    USES.append(Use(op, {"X": x}, {"Out": out, "Mask": mask.astype("int32")}, given, "X"))
x = N.distinct(1, 2, 5, 7)
adaptive = np.zeros((1, 2, 3, 2), "float32")
for i, j in product(range(3), range(2)):
    adaptive[:, :, i, j] = x[:, :, i * 5 // 3 : -(-(i + 1) * 5 // 3), j * 7 // 2 : -(-(j + 1) * 7 // 2)].mean((2, 3))
given = {"pooling_type": "avg", "ksize": [3, 2], "adaptive": True}
USES.append(Use("pool2d", {"X": x}, {"Out": adaptive}, given, "X"))
x = N.distinct(2, 2, 4, 4)
out, mask = pool(x, "max", [2, 2], [2, 2], [0, 0])
back = np.zeros((2, 2, 16), "float32")
np.put_along_axis(back, mask.reshape(2, 2, 4).astype("int64"), out.reshape(2, 2, 4), 2)
given = {"ksize": [2, 2], "strides": [2, 2], "paddings": [0, 0], "unpooling_type": "max"}
USES.append(Use("unpool", {"X": out, "Indices": mask}, {"Out": back.reshape(2, 2, 4, 4)}, given, "X"))
levels = [x.max((2, 3)).reshape(2, -1), pool(x, "max", [2, 2], [2, 2], [0, 0])[0].reshape(2, -1)]
USES.append(Use("spp", {"X": x}, {"Out": np.concatenate(levels, 1)}, {"pyramid_height": 2, "pooling_type": "max"}, "X"))

# Other sizes and orders ----------------------------------------------------------------------------------------------


def resize(x: Array, height: int, width: int, method: str, corners: bool, mode: int) -> Array:
    """Bilinear or nearest, position by position."""
    out = np.zeros((*x.shape[:2], height, width))
    ratios = [
        ((n - 1) / (m - 1) if m > 1 else 0) if corners else n / m
        for n, m in zip(x.shape[2:], (height, width), strict=True)
    ]
    for i, j in product(range(height), range(width)):
        if method == "nearest":
            y0, x0 = (int(r * k + 0.5) if corners else int(r * k) for r, k in zip(ratios, (i, j), strict=True))
            out[:, :, i, j] = x[:, :, y0, x0]
            continue
        shift = 0.5 if mode == 0 and not corners else 0.0
        sy, sx = (max(r * (k + shift) - shift, 0) for r, k in zip(ratios, (i, j), strict=True))
        y0, x0 = int(sy), int(sx)
        y1, x1 = min(y0 + 1, x.shape[2] - 1), min(x0 + 1, x.shape[3] - 1)
        dy, dx = sy - y0, sx - x0
        out[:, :, i, j] = (
            (1 - dy) * ((1 - dx) * x[:, :, y0, x0] + dx * x[:, :, y0, x1])
            + dy * ((1 - dx) * x[:, :, y1, x0] + dx * x[:, :, y1, x1])
        )  # fmt: skip
    return f32(out)


x = N.f(1, 2, 4, 5)
for method, corners, mode in (("bilinear", True, 1), ("bilinear", False, 1), ("bilinear", False, 0),
                              ("nearest", True, 1), ("nearest", False, 1)):  # fmt: skip
    for height, width in ((7, 3), (2, 10)):
        given = {"out_h": height, "out_w": width, "interp_method": method, "align_corners": corners, "align_mode": mode}
        USES.append(
            Use(f"{method}_interp", {"X": x}, {"Out": resize(x, height, width, method, corners, mode)}, given, "X")
        )
USES += [
    Use("bilinear_interp", {"X": x, "OutSize": np.array([6, 6], "int32")}, {"Out": resize(x, 6, 6, "bilinear", True,
        1)},
        {"out_h": 3, "out_w": 3}, "X"),
    Use("nearest_interp", {"X": x}, {"Out": resize(x, 8, 10, "nearest", False, 1)},
        {"scale": 2.0, "align_corners": False, "interp_method": "nearest", "out_h": -1, "out_w": -1}, "X"),
]  # fmt: skip
x = N.f(2, 4, 4, 6)
# Fluid's kernel spreads channels over the plane, and then calls the same memory [N, C * 4, H / 2, W / 2]
depth = x.reshape(2, 2, 2, 1, 4, 6).transpose(0, 3, 4, 1, 5, 2).reshape(2, 16, 2, 3)
USES += [
    Use("pixel_shuffle", {"X": x}, {"Out": x.reshape(2, 1, 2, 2, 4, 6).transpose(0, 1, 4, 2, 5, 3).reshape(2, 1, 8,
        12)},
        {"upscale_factor": 2}, "X"),
    Use("shuffle_channel", {"X": x}, {"Out": x.reshape(2, 2, 2, 4, 6).swapaxes(1, 2).reshape(x.shape)}, {"group": 2},
        "X"),
    Use("space_to_depth", {"X": x}, {"Out": depth}, {"blocksize": 2}, "X"),
]  # fmt: skip
x = N.f(4, 4, 2, 2)
frames = x.reshape(2, 2, 4, 2, 2)
moved = np.concatenate(
    [np.pad(frames[:, :1, :1], ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0))),
     np.pad(frames[:, 1:, 1:2], ((0, 0), (0, 1), (0, 0), (0, 0), (0, 0))), frames[:, :, 2:]], 2,
)  # fmt: skip
USES.append(Use("temporal_shift", {"X": x}, {"Out": moved.reshape(x.shape)}, {"seg_num": 2, "shift_ratio": 0.25}, "X"))
x, scale, bias = N.f(2, 3, 2, 2), N.f(3), N.f(3)
out = x * scale[:, None, None] + bias[:, None, None]
affine = {"X": x, "Scale": scale, "Bias": bias}
USES.append(Use("affine_channel", affine, {"Out": out}, {"data_layout": "NCHW"}, "X Scale Bias"))

# Normalisation -------------------------------------------------------------------------------------------------------

x = N.f(3, 4, 2, 2)
mean, variance, epsilon = N.f(4), N.f(4, low=0.5, high=2.0), 1e-3
scale, bias = N.f(4, low=0.5, high=1.5), N.f(4)
wide = (slice(None), None, None)
m, v = x.mean((0, 2, 3)), x.var((0, 2, 3))
inputs = {"X": x, "Scale": scale, "Bias": bias, "Mean": mean, "Variance": variance}
train = {
    "Y": (x - m[wide]) / np.sqrt(v[wide] + epsilon) * scale[wide] + bias[wide], "MeanOut": mean * 0.8 + m * 0.2,
    "VarianceOut": variance * 0.8 + v * 0.2, "SavedMean": m, "SavedVariance": 1 / np.sqrt(v + np.float32(epsilon)),
}  # fmt: skip
train = {slot: f32(value) for slot, value in train.items()}
given = {"momentum": 0.8, "epsilon": epsilon, "data_layout": "NCHW", "is_test": False, "fuse_with_relu": False}
USES.append(Use("batch_norm", inputs, train, given, atol=1e-4))
test = (x - mean[wide]) / np.sqrt(variance[wide] + epsilon) * scale[wide] + bias[wide]
frozen = {"Y": f32(test), "MeanOut": mean, "VarianceOut": variance}
for choice in ({"is_test": True}, {"use_global_stats": True}):
    USES.append(Use("batch_norm", inputs, frozen, {"epsilon": epsilon, **choice}, atol=1e-4))
moved_in = {**inputs, "X": x.transpose(0, 2, 3, 1).copy()}
moved_out = {**train, "Y": train["Y"].transpose(0, 2, 3, 1)}
USES.append(
    Use("batch_norm", moved_in, moved_out, {"momentum": 0.8, "epsilon": epsilon, "data_layout": "NHWC"}, atol=1e-4)
)
x = N.f(2, 3, 4)
for begin in (1, 2):
    rows = x.reshape(int(np.prod(x.shape[:begin])), -1)
    size = rows.shape[1]
    scale, bias, m, v = N.f(size), N.f(size), rows.mean(1), rows.var(1)
    unit = (rows - m[:, None]) / np.sqrt(v[:, None] + 1e-5)
    outs = {"Y": f32(unit * scale + bias).reshape(x.shape), "Mean": m, "Variance": v}
    row_inputs = {"X": x, "Scale": scale, "Bias": bias}
    given = {"epsilon": 1e-5, "begin_norm_axis": begin}
    USES.append(Use("layer_norm", row_inputs, outs, given, "X Scale Bias", "Y", 1e-4, 0.01))
    USES.append(Use("layer_norm", {"X": x}, {"Y": f32(unit).reshape(x.shape)}, given, atol=1e-4))
x = N.f(2, 4, 3, 3)
scale, bias = N.f(4), N.f(4)
for groups in (2, 4, 1):
    parts = x.reshape(2, groups, -1)
    m, v = parts.mean(-1), parts.var(-1)
    unit = ((parts - m[..., None]) / np.sqrt(v[..., None] + 1e-5)).reshape(x.shape)
    outs = {"Y": unit * scale[wide] + bias[wide], "Mean": m, "Variance": v}
    grouped = {"X": x, "Scale": scale, "Bias": bias}
    USES.append(Use("group_norm", grouped, outs, {"epsilon": 1e-5, "groups": groups}, "X Scale Bias", "Y", 1e-4, 0.02))
m, v = x.mean((2, 3)), x.var((2, 3))
unit = (x - m[..., None, None]) / np.sqrt(v[..., None, None] + 1e-5)
USES.append(Use("instance_norm", {"X": x, "Scale": scale, "Bias": bias}, {"Y": unit * scale[wide] + bias[wide]},
                {"epsilon": 1e-5}, "X Scale Bias", "Y", 1e-4, 0.02))  # fmt: skip
x, held, total, squares = N.f(6, 4), N.f(4, low=50, high=99), N.f(4, low=-20, high=20), N.f(4, low=30, high=90)
scale, bias = N.f(4), N.f(4)
inputs = {"X": x, "BatchSize": held, "BatchSum": total, "BatchSquareSum": squares}
means, lengths = total / held, np.sqrt(held / squares)
outs = {"Y": (x - means) * lengths, "Means": means, "Scales": lengths}
for layout in ("NCHW", "NHWC"):
    given = {"epsilon": 1e-5, "use_mkldnn": False, "data_layout": layout}
    USES.append(Use("data_norm", inputs, outs, given, "X", "Y", 1e-4, 0.02))
given = {"epsilon": 1e-5, "slot_dim": -1, "enable_scale_and_shift": True, "summary_decay_rate": 0.9999999}
USES.append(Use("data_norm", {**inputs, "scale_w": scale, "bias": bias}, {**outs, "Y": outs["Y"] * scale + bias}, given,
                "X scale_w bias", "Y", 1e-4, 0.02))  # fmt: skip
blank = x * np.float32([[1], [0], [1], [1], [0], [1]])
shown = {**outs, "Y": np.where(blank != 0, (blank - means) * lengths, 0).astype("float32")}
USES.append(Use("data_norm", {**inputs, "X": blank}, shown, {"epsilon": 1e-5, "slot_dim": 2}, atol=1e-4))
for dim, dims, rounds in ((0, (10, 12), 0), (0, (10, 12), 2), (1, (3, 2, 4, 2), 0), (1, (3, 2, 4, 2), 5)):
    weight = N.f(*dims, low=0.1)
    matrix = np.moveaxis(weight, dim, 0).reshape(dims[dim], -1)
    inputs = {"Weight": weight, "U": N.f(len(matrix), low=0.1), "V": N.f(matrix.shape[1], low=0.1)}
    u, v = np.float64(inputs["U"]), np.float64(inputs["V"])
    for _ in range(rounds):
        v = matrix.T @ u
        v = v / (np.linalg.norm(v) + 1e-12)
        u = matrix @ v
        u = u / (np.linalg.norm(u) + 1e-12)
    given = {"dim": dim, "power_iters": rounds, "eps": 1e-12}
    USES.append(Use("spectral_norm", inputs, {"Out": f32(weight / (u @ matrix @ v))}, given,
                    "" if rounds else "Weight", error=0.02))  # fmt: skip
x = N.f(2, 6, 2, 2)
n, k, alpha, beta = 5, 2.0, 0.1, 0.75
mid = np.full_like(x, k)
for c, d in product(range(6), range(-2, 3)):
    if 0 <= c + d < 6:
        mid[:, c] += np.float32(alpha) * x[:, c + d] ** 2
given = {"n": n, "k": k, "alpha": alpha, "beta": beta}
USES.append(Use("lrn", {"X": x}, {"Out": x * mid**-beta, "MidOut": mid}, given, "X"))
x = N.f(2, 3, 4)
for axis in (-1, 1, 0):
    given = {"axis": axis, "use_cudnn": False, "use_mkldnn": False}
    USES.append(Use("softmax", {"X": x}, {"Out": f32(softmax(x, axis))}, given, "X"))
    USES.append(Use("log_softmax", {"X": x}, {"Out": f32(np.log(softmax(x, axis)))}, {"axis": axis}, "X"))
USES.append(Use("softmax", {"X": x}, {"Out": f32(softmax(x))}))
for implementation, factor in (("downgrade_in_infer", 0.65), ("upscale_in_train", 1.0)):
    given = {"dropout_prob": 0.35, "is_test": True, "dropout_implementation": implementation}
    USES.append(Use("dropout", {"X": x}, {"Out": x * np.float32(factor)}, given))
USES += [
    Use("dropout", {"X": x}, {"Out": x, "Mask": np.ones(x.shape, "uint8")}, {"dropout_prob": 0.0}, "X"),
    Use("dropout", {"X": x}, {"Out": x * 0, "Mask": np.zeros(x.shape, "uint8")}, {"dropout_prob": 1.0}, "X"),
]

test_output, test_gradient = checks_of(USES)
