"""Fluid's uses of losses, metrics and optimisers."""

from __future__ import annotations

from typing import Any

import numpy as np
from use_table import Numbers, Use, checks_of, f32, sigmoid, softmax

N = Numbers(5)
USES: list[Use] = []

# Of classes ----------------------------------------------------------------------------------------------------------

p, label = f32(softmax(N.f(5, 4))), np.array([[0], [3], [1], [1], [2]])
soft = f32(softmax(N.f(5, 4)))
rows = np.arange(5)
chosen = -np.log(p[rows, label[:, 0]])[:, None]
ignored = np.where(label == 1, np.float32(0), chosen)
USES += [
    Use("cross_entropy", {"X": p, "Label": label}, {"Y": chosen}, {}, "X", "Y"),
    Use("cross_entropy", {"X": p, "Label": label}, {"Y": ignored}, {"ignore_index": 1}, "X", "Y"),
    Use("cross_entropy", {"X": p, "Label": soft}, {"Y": -(soft * np.log(p)).sum(1, keepdims=True)},
        {"soft_label": True}, "X", "Y"),
    Use("cross_entropy", {"X": p.reshape(1, 5, 4), "Label": label.reshape(1, 5, 1)}, {"Y": chosen.reshape(1, 5, 1)},
        {}, "X", "Y"),
    Use("cross_entropy2", {"X": p, "Label": label}, {"Y": chosen}, {}, "X", "Y"),
]  # fmt: skip
logits = N.f(5, 4, low=-2, high=2)
s = softmax(logits)
chosen = f32(-np.log(s[rows, label[:, 0]])[:, None])
both = {"Logits": logits, "Label": label}
USES += [
    Use("softmax_with_cross_entropy", both, {"Softmax": f32(s), "Loss": chosen}, {}, "Logits", "Loss"),
    Use("softmax_with_cross_entropy", both, {"Softmax": f32(s), "Loss": chosen}, {"numeric_stable_mode": False},
        "Logits", "Loss"),
    Use("softmax_with_cross_entropy", both, {"Softmax": f32(s), "Loss": np.where(label == 1, np.float32(0), chosen)},
        {"ignore_index": 1}, "Logits", "Loss"),
    Use("softmax_with_cross_entropy", {"Logits": logits, "Label": soft},
        {"Softmax": f32(s), "Loss": f32(-(soft * np.log(s)).sum(1, keepdims=True))}, {"soft_label": True}, "Logits",
        "Loss"),
]  # fmt: skip
cube, which = N.f(2, 4, 3), N.i(2, 1, 3, high=4)
s = softmax(cube, 1)
out = f32(-np.log(np.take_along_axis(s, which, 1)))
USES.append(
    Use("softmax_with_cross_entropy", {"Logits": cube, "Label": which}, {"Softmax": f32(s), "Loss": out}, {"axis": 1},
        "Logits", "Loss")
)  # fmt: skip
pair = -np.log(sigmoid(logits[rows, label[:, 0]][:, None] - logits))
pair[rows, label[:, 0]] = 0
USES.append(Use("bpr_loss", {"X": logits, "Label": label}, {"Y": f32(pair.sum(1, keepdims=True) / 3)}, {}, "X", "Y"))
one_hot, prior = np.eye(4, dtype="float32")[label[:, 0]], f32([[0.1, 0.2, 0.3, 0.4]])
USES += [
    Use("label_smooth", {"X": one_hot}, {"Out": one_hot * np.float32(0.9) + np.float32(0.1 / 4)}, {"epsilon": 0.1},
        "X"),
    Use("label_smooth", {"X": one_hot, "PriorDist": prior},
        {"Out": one_hot * np.float32(0.9) + np.float32(0.1) * prior},
        {"epsilon": 0.1}, "X"),
]  # fmt: skip

# Of two classes ------------------------------------------------------------------------------------------------------

x, target = N.far(6, 3), f32(N.i(6, 3, high=2))
loss = f32(np.maximum(x, 0) - x * target + np.log1p(np.exp(-np.abs(x))))
holes = target.copy()
holes[::2, 1] = -1
kept = np.where(holes == -1, np.float32(0), loss)
count = np.float32((holes != -1).sum())
op = "sigmoid_cross_entropy_with_logits"
USES += [
    Use(op, {"X": x, "Label": target}, {"Out": loss}, {}, "X"),
    Use(op, {"X": x, "Label": holes}, {"Out": kept}, {"ignore_index": -1}, "X"),
    Use(op, {"X": x, "Label": holes}, {"Out": kept / count}, {"ignore_index": -1, "normalize": True}, "X"),
]
x, target = N.far(6, 1, kinks=(-1, 1, 0)), f32(N.i(6, 1, high=2))
probability = N.f(6, 1, low=0.1, high=0.9)
margin = (2 * target - 1) * x
huber = np.where(margin < -1, -4 * margin, np.where(margin < 1, np.square(1 - margin), 0))
USES += [
    Use("log_loss", {"Predicted": probability, "Labels": target},
        {"Loss": f32(-target * np.log(probability + 1e-4) - (1 - target) * np.log(1 - probability + 1e-4))},
        {"epsilon": 1e-4}, "Predicted", "Loss"),
    Use("hinge_loss", {"Logits": x, "Labels": target}, {"Loss": f32(np.maximum(1 - margin, 0))}, {}, "Logits", "Loss"),
    Use("modified_huber_loss", {"X": x, "Y": target}, {"IntermediateVal": f32(margin), "Out": f32(huber)}, {}, "X"),
]  # fmt: skip
z = f32([[-2.0], [-1.0], [0.3], [1.4], [0.0]])
x = N.f(5, 1)
base = np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)
teacher = np.select([z < -1, z < 0, z < 1], [base, base - x, base + base - x * z], base - x + base - x * (z - 1))
USES.append(Use("teacher_student_sigmoid_loss", {"X": x, "Label": z}, {"Y": f32(teacher)}, {}, "X", "Y"))

# Of numbers, of orders -----------------------------------------------------------------------------------------------

x, y = N.f(5, 1, low=-2, high=2), N.f(5, 1)
r = y - x
for delta in (0.5, 1.7):
    out = np.where(np.abs(r) <= delta, 0.5 * r * r, delta * (np.abs(r) - delta / 2))
    USES.append(Use("huber_loss", {"X": x, "Y": y}, {"Residual": r, "Out": f32(out)}, {"delta": delta}, "X Y"))
x, y, inside, outside = N.f(4, 3, low=-2, high=2), N.f(4, 3), N.f(4, 3, low=0.5, high=1.5), N.f(4, 3, low=0.5, high=1.5)
for sigma, weights in ((1.0, False), (2.0, True)):
    d = (x - y) * (inside if weights else 1)
    each = np.where(np.abs(d) < 1 / sigma**2, 0.5 * (d * sigma) ** 2, np.abs(d) - 0.5 / sigma**2)
    out = (each * (outside if weights else 1)).sum(1, keepdims=True)
    inputs = {"X": x, "Y": y, **({"InsideWeight": inside, "OutsideWeight": outside} if weights else {})}
    USES.append(Use("smooth_l1_loss", inputs, {"Diff": f32(d), "Out": f32(out)}, {"sigma": sigma}, "X Y"))
x, target = N.f(4, 3, low=-2, high=0), N.f(4, 3, low=0.1, high=1)
each = target * (np.log(target) - x)
for reduction, out in (("none", each), ("mean", [each.mean()]), ("sum", [each.sum()]), ("batchmean", [each.sum() / 4])):
    USES.append(
        Use("kldiv_loss", {"X": x, "Target": target}, {"Loss": f32(out)}, {"reduction": reduction}, "X", "Loss")
    )
left, right, first = N.f(5, 1), N.f(5, 1), f32([[1], [0], [1], [0], [1]])
out = np.log1p(np.exp(left - right)) - first * (left - right)
USES.append(Use("rank_loss", {"Label": first, "Left": left, "Right": right}, {"Out": f32(out)}, {}, "Left Right"))
sign = 2 * first - 1
for margin in (0.1, 0.0):
    act = -sign * (left - right) + np.float32(margin)
    outs = {"Out": np.maximum(act, 0), "Activated": f32(act > 0)}
    inputs = {"Label": sign, "X1": left, "X2": right}
    USES.append(Use("margin_rank_loss", inputs, outs, {"margin": margin}, "X1 X2"))
features, ids, centers = N.f(4, 3), np.array([[0], [2], [0], [1]]), N.f(3, 3)
difference = features - centers[ids[:, 0]]
moved = centers.copy()
for k in range(3):
    mine = difference[ids[:, 0] == k]
    moved[k] += np.float32(0.1) * mine.sum(0) / (1 + len(mine))
USES.append(
    Use("center_loss", {"X": features, "Label": ids, "Centers": centers, "CenterUpdateRate": f32([0.1])},
        {"SampleCenterDiff": difference, "Loss": f32(np.square(difference).sum(1, keepdims=True) / 2),
        "CentersOut": moved},
        {"cluster_num": 3, "need_update": True}, "X", "Loss")
)  # fmt: skip

# Metrics -------------------------------------------------------------------------------------------------------------

indices, truth = np.array([[0, 1], [2, 1], [3, 0]]), np.array([[1], [0], [3]])
USES.append(
    Use("accuracy", {"Out": N.f(3, 2), "Indices": indices, "Label": truth},
        {"Accuracy": f32([2 / 3]), "Correct": np.array([2], "int32"), "Total": np.array([3], "int32")})
)  # fmt: skip
predicted, truth = np.array([0, 1, 1, 2, 2, 0], "int32"), np.array([0, 1, 2, 2, 0, 0], "int32")
right, wrong = np.array([2, 1, 1], "int32"), np.array([1, 1, 2], "int32")
USES.append(
    Use("mean_iou", {"Predictions": predicted, "Labels": truth},
        {"OutMeanIou": f32([np.mean(right / (right + wrong))]), "OutWrong": wrong, "OutCorrect": right},
        {"num_classes": 3})
)  # fmt: skip
scores, truth = f32([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.7, 0.3]]), np.array([[0], [1], [1], [1]])
buckets = 2**4
positive, negative = np.zeros((1, buckets + 1), "int64"), np.zeros((1, buckets + 1), "int64")
after_pos, after_neg = positive.copy(), negative.copy()
for score, t in zip(scores[:, 1], truth[:, 0], strict=True):
    (after_pos if t else after_neg)[0, int(score * buckets)] += 1
USES.append(
    Use("auc", {"Predict": scores, "Label": truth, "StatPos": positive, "StatNeg": negative},
        {"AUC": np.array([1.0]), "StatPosOut": after_pos, "StatNegOut": after_neg},
        {"curve": "ROC", "num_thresholds": buckets, "slide_steps": 0})
)  # fmt: skip
got, meant = np.array([[0], [1], [1], [0]], "int32"), np.array([[0], [1], [0], [0]], "int32")
states = f32([[2, 0, 1, 1], [1, 1, 2, 0]])
precision, recall = np.array([1, 0.5]), np.array([2 / 3, 1])


def scores_of(counts: Any) -> Any:
    """Macro and micro averaged precision, recall and F1 of (TP, FP, TN, FN) rows."""

    def f1(a: float, b: float) -> float:
        return 2 * a * b / (a + b) if a + b > 0 else 0.0

    tp, fp, _, fn = np.float64(counts).T
    a, b = float(np.mean(tp / (tp + fp))), float(np.mean(tp / (tp + fn)))
    c, d = tp.sum() / (tp.sum() + fp.sum()), tp.sum() / (tp.sum() + fn.sum())
    return np.array([a, b, f1(a, b), c, d, f1(c, d)])


USES.append(
    Use("precision_recall", {"MaxProbs": N.f(4, 1), "Indices": got, "Labels": meant},
        {"BatchMetrics": scores_of(states), "AccumMetrics": scores_of(states), "AccumStatesInfo": states},
        {"class_number": 2})
)  # fmt: skip

# Optimisers ----------------------------------------------------------------------------------------------------------

w, g, lr = N.f(4, 3), N.f(4, 3), f32([0.1])
a, b, c = (N.f(4, 3, low=0.1, high=1.0) for _ in range(3))
start = {"Param": w, "Grad": g}
rated = {**start, "LearningRate": lr}
L = np.float32(0.1)


def step(op: str, inputs: dict[str, Any], outputs: dict[str, Any], **attrs: Any) -> None:
    """A use of an optimiser; outputs may be of any float dtype."""
    USES.append(Use(op, inputs, {slot: f32(value) for slot, value in outputs.items()}, attrs))


step("sgd", rated, {"ParamOut": w - L * g})
v = a * 0.9 + g
step("momentum", {**rated, "Velocity": a}, {"ParamOut": w - L * v, "VelocityOut": v}, mu=0.9)
step(
    "momentum",
    {**rated, "Velocity": a},
    {"ParamOut": w - L * (g + 0.9 * v), "VelocityOut": v},
    mu=0.9,
    use_nesterov=True,
)
local = L * 0.01 * np.linalg.norm(w) / (np.linalg.norm(g) + 0.02 * np.linalg.norm(w))
v = 0.9 * a + local * (g + 0.02 * w)
step("lars_momentum", {**rated, "Velocity": a}, {"ParamOut": w - v, "VelocityOut": v}, mu=0.9, lars_coeff=0.01,
     lars_weight_decay=0.02)  # fmt: skip
for b1, b2, eps in ((0.9, 0.999, 1e-8), (0.78, 0.836, 1e-4)):
    m, n = b1 * a + (1 - b1) * g, b2 * b + (1 - b2) * g * g
    p1, p2 = b1**3, b2**3
    rate = L * np.sqrt(1 - p2) / (1 - p1)
    attrs = {} if b1 == 0.9 else {"beta1": b1, "beta2": b2, "epsilon": eps}
    inputs = {**rated, "Moment1": a, "Moment2": b, "Beta1Pow": f32([p1]), "Beta2Pow": f32([p2])}
    step("adam", inputs, {"ParamOut": w - rate * m / (np.sqrt(n) + eps), "Moment1Out": m, "Moment2Out": n}, **attrs)
    n = np.maximum(b2 * b + eps, np.abs(g))
    inputs = {**rated, "Moment": a, "InfNorm": b, "Beta1Pow": f32([p1])}
    step("adamax", inputs, {"ParamOut": w - L / (1 - p1) * m / n, "MomentOut": m, "InfNormOut": n}, **attrs)
m = a + g * g
step("adagrad", {**rated, "Moment": a}, {"ParamOut": w - L * g / (np.sqrt(m) + 1e-6), "MomentOut": m}, epsilon=1e-6)
m = 0.8 * a + 0.2 * g * g
step(
    "decayed_adagrad", {**rated, "Moment": a}, {"ParamOut": w - L * g / (np.sqrt(m) + 1e-6), "MomentOut": m}, decay=0.8
)
m = 0.9 * a + 0.1 * g * g
move = -np.sqrt((b + 1e-6) / (m + 1e-6)) * g
step("adadelta", {**start, "AvgSquaredGrad": a, "AvgSquaredUpdate": b},
     {"ParamOut": w + move, "AvgSquaredGradOut": m, "AvgSquaredUpdateOut": 0.9 * b + 0.1 * move * move},
     rho=0.9, epsilon=1e-6)  # fmt: skip
m = 0.9 * a + 0.1 * g * g
move = 0.5 * b + L * g / np.sqrt(m + 1e-3)
plain = {"decay": 0.9, "momentum": 0.5, "epsilon": 1e-3}
step(
    "rmsprop",
    {**rated, "MeanSquare": a, "Moment": b},
    {"ParamOut": w - move, "MomentOut": move, "MeanSquareOut": m},
    **plain,
)
m, mean = 0.9 * (a + 1) + 0.1 * g * g, 0.9 * c * 0.1 + 0.1 * g
move = 0.5 * b + L * g / np.sqrt(m - mean * mean + 1e-3)
step("rmsprop", {**rated, "MeanSquare": a + 1, "Moment": b, "MeanGrad": c * np.float32(0.1)},
     {"ParamOut": w - move, "MomentOut": move, "MeanSquareOut": m, "MeanGradOut": mean}, centered=True,
     **plain)  # fmt: skip
for power in (-0.5, -0.7):
    l1, l2, grown = 0.1, 0.2, a + g * g
    linear = b + g - (grown**-power - a**-power) / L * w
    out = (np.clip(linear, -l1, l1) - linear) / (grown**-power / L + 2 * l2)
    step("ftrl", {**rated, "SquaredAccumulator": a, "LinearAccumulator": b},
         {"ParamOut": out, "SquaredAccumOut": grown, "LinearAccumOut": linear}, l1=l1, l2=l2,
         lr_power=power)  # fmt: skip
near = w - L * g
shrunk = np.sign(near) * np.maximum(np.abs(near) - L * 0.1, 0) / (1 + L * 0.2)
step("proximal_gd", rated, {"ParamOut": shrunk}, l1=0.1, l2=0.2)
m = a + g * g
near = w - L * g / np.sqrt(m)
shrunk = np.sign(near) * np.maximum(np.abs(near) - L * 0.1, 0) / (1 + L * 0.2)
step("proximal_adagrad", {**rated, "Moment": a}, {"ParamOut": shrunk, "MomentOut": m}, l1=0.1, l2=0.2)
m, n = 0.9 * a + 0.1 * g, 0.999 * b + 0.001 * g * g
r = m / (np.sqrt(n) + 1e-6) + 0.01 * w  # 1.x does not correct the moments' start
trust = np.linalg.norm(w) / np.linalg.norm(r)
step("lamb", {**rated, "Moment1": a, "Moment2": b, "Beta1Pow": f32([0.9**2]), "Beta2Pow": f32([0.999**2])},
     {"ParamOut": w - L * trust * r, "Moment1Out": m, "Moment2Out": n}, weight_decay=0.01)  # fmt: skip

test_output, test_gradient = checks_of(USES)
