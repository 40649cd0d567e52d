"""Coefficients of the polynomial approximations of mathematical functions; the lowest power first.

The fits are ours; those for both types are made by ``tools/minimax.py``; comments have the error of the polynomial,
relative to the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def horner(coefficients: Sequence[float], x: Any) -> Any:
    """Evaluate a polynomial of an array by Horner's rule."""
    result = x * coefficients[-1]
    result += coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        result *= x
        result += coefficient
    return result


EXP = {
    "float32": (  # within 3.2e-9
        0.49999994,
        0.166665167,
        0.0416681021,
        0.00836919248,
        0.00138389017,
    ),
    "float64": (  # within 1.1e-17
        0.5000000000000011,
        0.16666666666666413,
        0.04166666666653016,
        0.008333333333494449,
        0.001388888894362923,
        0.00019841269506605088,
        2.4801493099851155e-05,
        2.755758635022095e-06,
        2.763024803634118e-07,
        2.500006897861167e-08,
    ),
}
"""(exp(r) - 1 - r) / r**2 for |r| <= log(2) / 2; the error is that of exp(r), relative."""

EXPM1 = {
    "float32": (  # within 4.7e-10
        0.5,
        0.166666657,
        0.0416664667,
        0.0083336439,
        0.001393507,
        0.000196634835,
    ),
    "float64": (  # within 1.2e-17
        0.5000000000000001,
        0.1666666666666667,
        0.04166666666665229,
        0.008333333333326153,
        0.0013888888895596814,
        0.00019841269874764026,
        2.48015745385554e-05,
        2.7557255463182013e-06,
        2.7567926917157043e-07,
        2.510519365057785e-08,
        1.7687773212030254e-09,
    ),
}
"""Coefficients as for EXP; the error is that of exp(r) - 1."""

ATANH = {
    "float32": (  # within 8.1e-10
        0.33333388,
        0.199887902,
        0.149354637,
    ),
    "float64": (  # within 1.9e-18
        0.3333333333333367,
        0.1999999999970716,
        0.14285714371237435,
        0.11111099281745876,
        0.09091782433144842,
        0.07657017922609385,
        0.07398052668643723,
    ),
}
"""(atanh(s) / s - 1) / s**2 over s**2, s = (m - 1) / (m + 1), m between sqrt(1/2) and sqrt(2): log(m) is 2 atanh(s)."""

ATANH_REST = {
    "float32": (  # within 8.5e-12
        0.200000763,
        0.142735451,
        0.117098227,
    ),
    "float64": (  # within 8.7e-21
        0.2,
        0.14285714285714188,
        0.11111111111145314,
        0.09090909084622831,
        0.07692308376930476,
        0.06666620200636411,
        0.05884337445748164,
        0.05211442581182336,
        0.05506724864213647,
    ),
}
"""((atanh(s) / s - 1) / s**2 - 1 / 3) / s**2, likewise; the error is that of atanh(s) / s."""

THIRD = {"float32": (0.333333343, -9.93410776e-09), "float64": (1 / 3, 1.850371707708594e-17)}
"""1 / 3, and its rounding error."""

ATAN = {
    "float32": (  # within 6.7e-10
        -0.333333164,
        0.199985325,
        -0.142445102,
        0.106001653,
        -0.0609270707,
    ),
    "float64": (  # within 2.4e-18
        -0.333333333333332,
        0.19999999999954043,
        -0.1428571428024436,
        0.11111110785918629,
        -0.09090897829841979,
        0.07692061514665773,
        -0.06663118940700699,
        0.05847998072186048,
        -0.05039795224557144,
        0.03807700979657769,
        -0.01792080929015616,
    ),
}
"""(atan(t) / t - 1) / t**2 over t**2 for |t| <= tan(pi / 8)."""

ASIN = {
    "float32": (  # within 5.0e-9
        0.166667536,
        0.074952513,
        0.0454761945,
        0.0241511166,
        0.0422137678,
    ),
    "float64": (  # within 1.6e-17
        0.1666666666666538,
        0.0750000000034348,
        0.044642856823112656,
        0.03038195934687332,
        0.02237175314057567,
        0.017359776997172983,
        0.013884539132261656,
        0.012173676494646225,
        0.006509103085328191,
        0.019578783277068693,
        -0.016301860800316453,
        0.03196439310500358,
    ),
}
"""(asin(s) / s - 1) / s**2 over s**2 for |s| <= 1/2."""

SINE = {
    "float32": (  # within 3.7e-9
        -0.166666552,
        0.00833219197,
        -0.00019518788,
    ),
    "float64": (  # within 6.0e-18
        -0.16666666666666632,
        0.008333333333322418,
        -0.00019841269829812478,
        2.7557313693608957e-06,
        -2.5050758390313698e-08,
        1.589681215325253e-10,
    ),
}
"""(sin(r) / r - 1) / r**2 over r**2 for |r| <= pi / 4."""

COSINE = {
    "float32": (  # within 1.1e-10
        0.0416666456,
        -0.00138873013,
        2.44306702e-05,
    ),
    "float64": (  # within 9.1e-19
        0.0416666666666666,
        -0.0013888888888874131,
        2.4801587289487124e-05,
        -2.7557314353821923e-07,
        2.0875723483556423e-09,
        -1.1359659080192245e-11,
    ),
}
"""(cos(r) - 1 + r**2 / 2) / r**4 over r**2 for |r| <= pi / 4."""

ERF_P = (1.12837915, 0.190398317, 0.0527474282, 0.00376520827, 0.000284863954, 2.05002603e-06)
ERF_Q = (1.0, 0.502068859, 0.114105547, 0.0149684048, 0.00116241851, 3.80900934e-05)
"""erf(x) = x P(x*x) / Q(x*x) for |x| <= 3.92 within 2e-8, for float32."""
ERF_CLIP = 4.1
"""Arguments are clipped here: the fit exceeds 1 by more than its rounding error, so the clipped result is exactly 1."""
ERF64_P = (
    3.20937758913846947e03,
    3.77485237685302021e02,
    1.13864154151050156e02,
    3.16112374387056560e00,
    1.85777706184603153e-1,
)
ERF64_Q = (
    2.84423683343917062e03,
    1.28261652607737228e03,
    2.44024637934444173e02,
    2.36012909523441209e01,
    1.0,
)
"""erf(x) = x P(x*x) / Q(x*x) for float64, below ERF64_LIMIT (Cody, Rational Chebyshev approximations, 1969)."""
ERF64_LIMIT = 0.478
"""From this argument on erf(x) is computed from the normal distribution function."""

NORMAL_TAIL = {
    "float32": (
        (  # within 4.2e-8
            0.5,
            0.451081157,
            0.193076134,
            0.0440554321,
            0.00465320097,
        ),
        (
            1,
            1.70004821,
            1.24258137,
            0.495535791,
            0.110434376,
            0.0116637824,
        ),
    ),
    "float64": (
        (  # within 5.4e-17
            0.5,
            0.8279441635112474,
            0.6796403309088188,
            0.3573697856031448,
            0.13205874148475003,
            0.03567218226240908,
            0.007123962898227953,
            0.0010399072969040721,
            0.00010659603765640457,
            6.977764533342826e-06,
            2.2425119982837643e-07,
        ),
        (
            1.0,
            2.4537728878253606,
            2.817108164730146,
            2.0015417583112245,
            0.9801718349998001,
            0.3483505227788052,
            0.09198858067870931,
            0.01812319923224623,
            0.002624151695492089,
            0.0002677587563481192,
            1.7490661873024358e-05,
            5.621143981096066e-07,
        ),
    ),
}
"""The normal distribution function of -a times exp(a**2 / 2), from 0 to NORMAL_END: the first polynomial over the
second, both over a; all coefficients are positive."""
NORMAL_END = {"float32": 14.5, "float64": 39.0}
"""From this argument on the normal distribution function of -a is 0."""

NORMAL_POWER = (
    -1.15110719,
    -0.459193856,
    -0.0525214225,
    0.00705789682,
    -8.16162064e-05,
    -0.000246558368,
    6.95018025e-05,
    -1.05134768e-05,
    9.51338222e-07,
    -4.79912998e-08,
    1.02977527e-09,
)
"""log2 of twice the normal distribution function of -y, over y, in float32. The error of y times the function is
7e-8 (1 + y**2 / 4) relative plus 2.1e-13; where the value is less than that, at most a factor of two."""
GELU_END = 12.8
"""Arguments are clipped here: y times the function is 1e-36, and the power of two is still a normal number."""
EXP2_SINGLE = (1.00000012, 0.693146944, 0.240221202, 0.0555071309, 0.00967554096, 0.00132764899)
"""2 ** r for |r| <= 1/2 in float32, within 1.5e-7."""

LOG2 = (2.885390081845, 0.9617966482801, 0.5770866490533, 0.4115339596571, 0.3428248132089)
"""log2((1 + s) / (1 - s)) / s over s * s, for a fraction between sqrt(1/2) and sqrt(2), within 2e-12: our fit."""
EXP2 = (
    1.000000000555,
    0.6931472057671,
    0.2402264688602,
    0.05550328711843,
    0.009618489250603,
    0.001339995761487,
    0.0001534578730427,
)
"""2 ** r for |r| <= 1/2 within 2e-9: our fit. With LOG2 it yields float32 powers, computed in float64."""
