"""The workloads in ONNX Runtime: inference only, results into memory that stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, checker, helper, numpy_helper

from benchmarks.peers.workloads import EPSILON, WORKLOADS, Numbers, Sizes, blocks, numbers

VERSION = onnxruntime.__version__


def variants(name: str) -> list[str]:
    """It does not train."""
    return [] if WORKLOADS[name].trains else [""]


def make(name: str, sizes: Sizes, variant: str, threads: int) -> Callable[[], Any]:
    """Return a call that runs the workload once, and returns its result."""
    weights, data = numbers(name, sizes)
    used, rank = {"a": ("xy", 1), "b": ("xwb", 1), "c": ("abc", 2), "f": ("x", 2), "g": ("x", 3)}[
        WORKLOADS[name].letter
    ]
    model = Model(weights)
    model.build(name, sizes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model.text(data, used, rank), options, providers=["CPUExecutionProvider"])
    bound = session.io_binding()
    kept = {
        key: onnxruntime.OrtValue.ortvalue_from_numpy(data[key]) for key in (one.name for one in session.get_inputs())
    }
    for key, value in kept.items():
        bound.bind_ortvalue_input(key, value)
    first = session.run(None, {key: value.numpy() for key, value in kept.items()})[0]
    result = onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(first))
    bound.bind_ortvalue_output("result", result)

    def call() -> Any:
        session.run_with_iobinding(bound)
        return result.numpy()

    return call


class Model:
    """A graph that grows by nodes."""

    def __init__(self, weights: Numbers) -> None:
        self.weights = weights
        self.nodes: list[Any] = []
        self.constants = [numpy_helper.from_array(weights[key], key) for key in weights]

    def add(self, type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the names of its outputs."""
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(type, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any) -> str:
        """Add a constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def text(self, data: Numbers, used: str, rank: int) -> bytes:
        """The model, serialised."""
        read = {name for node in self.nodes for name in node.input}
        inputs = [
            helper.make_tensor_value_info(key, TensorProto.FLOAT, data.made[key][0]) for key in used if key in read
        ]
        self.nodes[-1].output[0] = "result"
        dims = [f"d{i}" for i in range(rank)]
        result = helper.make_tensor_value_info("result", TensorProto.FLOAT, dims)
        graph = helper.make_graph(self.nodes, "workload", inputs, [result], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        checker.check_model(model)
        found: bytes = model.SerializeToString()
        return found

    def build(self, name: str, sizes: Sizes) -> None:
        """Add a workload's nodes; the last gives the result."""
        if name in ("add", "chain"):
            total = "y"
            for _ in range(sizes["ops"]):
                total = self.add("Add", total, "x")
        elif name.startswith("gelu"):
            form = "tanh" if name == "gelu_tanh" else "none"
            self.add("Gelu", self.add("Add", self.add("Mul", "x", "w"), "b"), approximate=form)
        elif name.startswith("gemm"):
            product = self.add("MatMul", "a", "b")
            if name == "gemm_bias_relu":
                self.add("Relu", self.add("Add", product, "c"))
        elif name.startswith("resnet"):
            self.resnet(sizes)
        else:
            self.encoder(sizes)

    def fc(self, x: str, name: str) -> str:
        """Add a linear layer."""
        product = self.add("MatMul", x, f"{name}.w")
        return str(self.add("Add", product, f"{name}.b"))

    def conv(self, x: str, name: str, side: int, stride: int) -> str:
        """Add a convolution and a normalisation."""
        x = self.add("Conv", x, f"{name}.w", kernel_shape=[side] * 2, strides=[stride] * 2, pads=[side // 2] * 4)
        parts = [f"{name}.{part}" for part in ("scale", "shift", "mean", "variance")]
        return str(self.add("BatchNormalization", x, *parts, epsilon=EPSILON))

    def resnet(self, sizes: Sizes) -> None:
        """Add ResNet-18."""
        x = self.add("Relu", self.conv("x", "stem", 7, 2))
        x = self.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        for block in blocks(sizes["width"]):
            past = self.conv(x, f"{block.name}c", 1, block.stride) if block.bends else x
            x = self.add("Relu", self.conv(x, f"{block.name}a", 3, block.stride))
            x = self.add("Relu", self.add("Add", past, self.conv(x, f"{block.name}b", 3, 1)))
        self.fc(self.add("Flatten", self.add("GlobalAveragePool", x)), "fc")

    def norm(self, x: str, name: str) -> str:
        """Add a layer norm."""
        return str(self.add("LayerNormalization", x, f"{name}.scale", f"{name}.shift", epsilon=EPSILON, axis=-1))

    def encoder(self, sizes: Sizes) -> None:
        """Add the encoder."""
        width, heads = sizes["width"], sizes["heads"]
        shape = self.constant(np.array([0, 0, heads, width // heads]))
        back = self.constant(np.array([0, 0, width]))
        scale = self.constant(np.float32((width // heads) ** -0.5))
        x = "x"
        for i in range(sizes["layers"]):
            parts = self.add("Split", self.fc(x, f"{i}.qkv"), outputs=3, axis=-1, num_outputs=3)
            turned = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
            q, k, v = (
                self.add("Transpose", self.add("Reshape", one, shape), perm=perm)
                for one, perm in zip(parts, turned, strict=True)
            )
            seen = self.add("Softmax", self.add("Mul", self.add("MatMul", q, k), scale), axis=-1)
            mixed = self.add("Transpose", self.add("MatMul", seen, v), perm=[0, 2, 1, 3])
            mixed = self.fc(self.add("Reshape", mixed, back), f"{i}.out")
            x = self.norm(self.add("Add", x, mixed), f"{i}.norm0")
            wide = self.add("Gelu", self.fc(x, f"{i}.up"))
            x = self.norm(self.add("Add", x, self.fc(wide, f"{i}.down")), f"{i}.norm1")
