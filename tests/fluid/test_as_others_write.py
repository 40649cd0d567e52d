"""Operator tests as people wrote them for Fluid: classes with a setUp, and others that change one thing."""

from __future__ import annotations

import unittest

import numpy as np
from op_test import OpTest


class TestMulOp(OpTest):
    def setUp(self):
        self.op_type = "mul"
        self.inputs = {
            "X": np.random.random((3, 5)).astype("float32"),
            "Y": np.random.random((5, 4)).astype("float32"),
        }
        self.outputs = {"Out": np.dot(self.inputs["X"], self.inputs["Y"])}

    def test_check_output(self):
        self.check_output()

    def test_check_grad_normal(self):
        self.check_grad(["X", "Y"], "Out", max_relative_error=0.5)

    def test_check_grad_ingore_x(self):
        self.check_grad(["Y"], "Out", max_relative_error=0.5, no_grad_set=set("X"))

    def test_check_grad_given(self):
        x, y = self.inputs["X"], self.inputs["Y"]
        ones = np.full((3, 4), 1.0 / 12)
        self.check_grad(["X", "Y"], "Out", user_defined_grads=[ones @ y.T, x.T @ ones])


class TestReshapeOp(OpTest):
    def setUp(self):
        self.init_data()
        self.op_type = "reshape2"
        self.inputs = {"X": np.random.random(self.ori_shape).astype("float32")}
        self.attrs = {"shape": self.new_shape}
        self.outputs = {
            "Out": self.inputs["X"].reshape(self.infered_shape),
            "XShape": np.random.random(self.ori_shape).astype("float32"),
        }

    def init_data(self):
        self.ori_shape = (2, 6)
        self.new_shape = (12, 1)
        self.infered_shape = (12, 1)

    def test_check_output(self):
        self.check_output(no_check_set=["XShape"])

    def test_check_grad(self):
        self.check_grad(["X"], "Out")


class TestReshapeOpDimInfer2(TestReshapeOp):
    def init_data(self):
        self.ori_shape = (2, 2, 6)
        self.new_shape = (2, 0, 3, -1)
        self.infered_shape = (2, 2, 3, -1)


class TestConcatOp(OpTest):
    def setUp(self):
        self.op_type = "concat"
        x0, x1 = np.random.random((2, 1, 4)).astype("float32"), np.random.random((2, 2, 4)).astype("float32")
        self.inputs = {"X": [("x0", x0), ("x1", x1)]}
        self.attrs = {"axis": 1}
        self.outputs = {"Out": np.concatenate((x0, x1), axis=1)}

    def test_check_output(self):
        self.check_output(atol=1e-6)

    def test_check_grad(self):
        self.check_grad(["x0"], "Out")
        self.check_grad(["x0", "x1"], "Out")


class TestSplitOp(OpTest):
    def setUp(self):
        self.op_type = "split"
        x = np.random.random((4, 5, 6)).astype("float32")
        self.inputs = {"X": x}
        self.attrs = {"axis": 1, "sections": [2, 1, 2]}
        self.outputs = {"Out": [(f"out{i}", part) for i, part in enumerate(np.split(x, [2, 3], 1))]}

    def test_check_output(self):
        self.check_output()

    def test_check_grad(self):
        self.check_grad(["X"], ["out0", "out1", "out2"])


class TestSGDOp(OpTest):
    """An optimiser whose result has another name than the parameter, as nobody's program has it."""

    def setUp(self):
        self.op_type = "sgd"
        w, g = np.random.random((10, 7)).astype("float32"), np.random.random((10, 7)).astype("float32")
        lr = np.array([0.1]).astype("float32")
        self.inputs = {"Param": w, "Grad": g, "LearningRate": lr}
        self.outputs = {"ParamOut": w - lr * g}

    def test_check_output(self):
        self.check_output()


class TestUniformRandomOp(OpTest):
    def setUp(self):
        self.op_type = "uniform_random"
        self.inputs = {}
        self.attrs = {"shape": [1000, 100], "min": -5.0, "max": 10.0, "seed": 10}
        self.outputs = {"Out": np.zeros((1000, 100)).astype("float32")}

    def test_check_output(self):
        self.check_output_customized(self.verify_output)

    def verify_output(self, outs):
        hist, _ = np.histogram(np.array(outs[0]), range=(-5, 10))
        hist = hist.astype("float32") / float(outs[0].size)
        np.testing.assert_allclose(hist, 0.1 * np.ones(10), rtol=0, atol=0.01)


class TestDropoutOp(OpTest):
    def setUp(self):
        self.op_type = "dropout"
        self.inputs = {"X": np.random.random((32, 64)).astype("float32")}
        self.attrs = {"dropout_prob": 0.0, "fix_seed": True, "is_test": False}
        self.outputs = {"Out": self.inputs["X"], "Mask": np.ones((32, 64)).astype("uint8")}

    def test_check_output(self):
        self.check_output()


class TestSumWithLengths(OpTest):
    """Sequences of several lengths: an elementwise operator hands them on."""

    def setUp(self):
        self.op_type = "relu"
        x = np.random.uniform(0.1, 1, (6, 3)).astype("float32")
        self.inputs = {"X": (x, [[4, 2]])}
        self.outputs = {"Out": (x, [[4, 2]])}

    def test_check_output(self):
        self.check_output()

    def test_check_grad(self):
        self.check_grad(["X"], "Out", max_relative_error=0.007)


class TestWrong(OpTest):
    """The harness sees what is wrong."""

    def setUp(self):
        self.op_type = "tanh"
        self.inputs = {"X": np.random.random((2, 3)).astype("float32")}
        self.outputs = {"Out": np.zeros((2, 3), "float32")}

    def test_check_output(self):
        with self.assertRaisesRegex(AssertionError, "output Out of tanh on cpu"):
            self.check_output()

    def test_check_grad(self):
        with self.assertRaisesRegex(AssertionError, "gradient of X by tanh on cpu"):
            self.check_grad(["X"], "Out", user_defined_grads=[np.ones((2, 3))])


if __name__ == "__main__":
    unittest.main()
