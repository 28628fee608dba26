"""A policy as an ONNX graph, which runtimes for many languages and devices can run."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from kemeny.errors import UserError
from kemeny.experience.blueprint import Blueprint, Part
from kemeny.spaces import FORBIDDEN

OPSET, IR_VERSION = 13, 7
"""Of 2020: every runtime in use knows them, and nothing newer is needed."""
TYPES = {"float32": 1, "int8": 3, "int64": 7, "bool": 9}
"""What ONNX calls them."""
ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu"}
BELOW_ONE = 1 - 2.0**-24
"""The largest number below 1 in float32: of 1 itself, −log(−log u) is infinite, and even what is masked were chosen."""
REFUSE = "refuse_what_is_no_observation"
"""The node that fails where the policy in NumPy refuses an observation: a runtime's message names it."""


def to_onnx(
    blueprint: Blueprint, metadata: Mapping[str, str], *, distribution: bool = False, explore: bool = False
) -> bytes:
    """The graph from observations, as the environment gives them, to actions, as the environment takes them.

    All have a batch dimension of any length. With `distribution`, the parameters of the distribution of actions are
    outputs, too. If it is to `explore`, the graph draws its actions, by the runtime's random numbers.
    """
    try:
        from onnx import checker, helper
    except ImportError as error:
        raise UserError("An export to ONNX needs an extra package: pip install 'kemeny[onnx]'.") from error
    if blueprint.network["kind"] != "perceptron":
        raise UserError(f"A network of the kind {blueprint.network['kind']!r} cannot be exported to ONNX.")
    graph = _Graph(blueprint.arrays)
    rows = graph("Concat", *(_columns(graph, part) for part in blueprint.observation), axis=1)
    head = _network(graph, blueprint, rows)
    if blueprint.masked:
        head = _masked(graph, blueprint.action, head)
    head = graph("Add", head, _failure(graph))
    act = _numbers if blueprint.action.kind == "numbers" else _choices
    act(graph, blueprint.action, head, distribution, explore)
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", graph.inputs, graph.outputs, graph.constants),
        producer_name="kemeny",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    helper.set_model_props(model, dict(metadata))
    checker.check_model(model, full_check=True)
    return model.SerializeToString()


class _Graph:
    """What a graph has so far; called with an operator and its inputs, it adds a node and returns the name of it."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.nodes, self.constants, self.inputs, self.outputs = [], [], [], []
        self.faults: list[str] = []
        """Columns that are 0 where an input is as it must be, and else positive or NaN."""
        self._arrays, self._numbers = dict(arrays), itertools.count()

    def __call__(self, operator: str, *inputs: str | np.ndarray, name: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        name = name or self._next(operator.lower())
        names = [self._named(given) for given in inputs]
        self.nodes.append(helper.make_node(operator, names, [name], name=name, **attributes))
        return name

    def declare(self, name: str, dtype: str, shape: tuple[int, ...], among: list[Any]) -> None:
        """Say that this is an input or an output."""
        from onnx import helper

        among.append(helper.make_tensor_value_info(name, TYPES[dtype], ["batch", *shape]))

    def _named(self, given: str | np.ndarray) -> str:
        """The name of an input of a node; an array becomes a constant, one of the policy's when it is first used."""
        from onnx import numpy_helper

        if isinstance(given, str) and given not in self._arrays:
            return given
        name, array = (given, self._arrays.pop(given)) if isinstance(given, str) else (self._next("constant"), given)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def _next(self, kind: str) -> str:
        return f"{kind}_{next(self._numbers)}"


def _columns(graph: _Graph, part: Part) -> str:
    """A part of the observation as columns of the row that the network sees."""
    graph.declare(part.name, part.dtype, part.shape, graph.inputs)
    flat = graph("Flatten", part.name, axis=1)
    if part.kind == "numbers":
        graph.faults.append(_sum(graph, graph("Mul", flat, np.zeros(1, np.float32))))
        return flat
    if part.kind == "bits":
        return _bits(graph, flat)
    owner = np.repeat(np.arange(len(part.sizes)), part.sizes)
    value = np.concatenate([start + np.arange(size) for start, size in zip(part.starts, part.sizes, strict=True)])
    one_hot = graph("Equal", graph("Gather", flat, owner, axis=1), value)
    columns = graph("Cast", one_hot, to=TYPES["float32"])
    graph.faults.append(graph("Sub", np.array(len(part.sizes), np.float32), _sum(graph, columns)))
    return columns


def _bits(graph: _Graph, flat: str) -> str:
    """Whole numbers as floats; they must be 0 or 1."""
    bits = graph("Cast", flat, to=TYPES["float32"])
    graph.faults.append(_sum(graph, graph("Sub", graph("Mul", bits, bits), bits)))
    return bits


def _sum(graph: _Graph, rows: str) -> str:
    return graph("ReduceSum", rows, np.array([1]), keepdims=1)


def _masked(graph: _Graph, action: Part, head: str) -> str:
    """The logits, without those that the mask forbids; of each choice one at least must be allowed."""
    graph.declare("action_mask", "int8", (action.size,), graph.inputs)
    allowed = _bits(graph, "action_mask")
    owner = np.repeat(np.eye(len(action.sizes), dtype=np.float32), action.sizes, axis=0)
    any_allowed = graph("Clip", graph("MatMul", allowed, owner), np.array(0, np.float32), np.array(1, np.float32))
    graph.faults.append(graph("Sub", np.array(len(action.sizes), np.float32), _sum(graph, any_allowed)))
    return graph("Where", graph("Cast", "action_mask", to=TYPES["bool"]), head, np.array(FORBIDDEN, np.float32))


def _network(graph: _Graph, blueprint: Blueprint, rows: str) -> str:
    """Normaliser and perceptron."""
    clip = blueprint.arrays["observation_clip"]
    x = graph("Mul", graph("Sub", rows, "observation_mean"), "observation_scale")
    x = graph("Clip", x, np.negative(clip), clip)
    for layer in range(blueprint.layers):
        if layer:
            x = graph(ACTIVATIONS[blueprint.network["activation"]], x)
        x = graph("Gemm", x, f"weights_{layer}", f"biases_{layer}")
    return x


def _failure(graph: _Graph) -> str:
    """A column of zeros; but the run fails if there is a fault.

    ONNX has no operator that refuses an input, but it is an error to ask for the second entry of an array of one.
    """
    fine = graph("Equal", graph("Sum", *graph.faults), np.array(0, np.float32))
    return graph("Gather", np.zeros(1, np.float32), graph("Cast", graph("Not", fine), to=TYPES["int64"]), name=REFUSE)


def _numbers(graph: _Graph, action: Part, head: str, distribution: bool, explore: bool) -> None:
    """Actions of numbers: the mean, or drawn around it, in the environment's unit and within its bounds."""
    shape = np.array([-1, *action.shape])
    mean = graph("Add", graph("Mul", head, "action_scale"), "action_shift")
    drawn = mean
    if explore:
        drawn = graph("Add", mean, graph("Mul", graph("Mul", "action_std", "action_scale"), _normal(graph, mean)))
    graph("Reshape", graph("Min", graph("Max", drawn, "action_low"), "action_high"), shape, name="action")
    graph.declare("action", action.dtype, action.shape, graph.outputs)
    if distribution:
        std = graph("Expand", graph("Mul", "action_std", "action_scale"), graph("Shape", mean))
        for name, value in (("mean", mean), ("std", std)):
            graph("Reshape", value, shape, name=name)
            graph.declare(name, "float32", action.shape, graph.outputs)


def _normal(graph: _Graph, like: str) -> str:
    return graph("RandomNormalLike", like, mean=0.0, scale=1.0)


def _gumbel(graph: _Graph, like: str) -> str:
    """−log(−log u): the largest of logits + such noise is drawn with the probabilities that they stand for."""
    uniform = graph("RandomUniformLike", like, low=0.0, high=BELOW_ONE)
    return graph("Neg", graph("Log", graph("Neg", graph("Log", uniform))))


def _choices(graph: _Graph, action: Part, head: str, distribution: bool, explore: bool) -> None:
    """Actions of choices: the likeliest of each, or drawn."""
    ends = np.cumsum(action.sizes)

    def of_each(scores: str) -> list[str]:
        return [
            graph("Slice", scores, np.array([end - size]), np.array([end]), np.array([1]))
            for end, size in zip(ends, action.sizes, strict=True)
        ]

    logits = of_each(head)
    scores = of_each(graph("Add", head, _gumbel(graph, head))) if explore else logits
    chosen = graph("Concat", *(graph("ArgMax", each, axis=1, keepdims=1) for each in scores), axis=1)
    counted = graph("Reshape", graph("Add", chosen, np.array(action.starts)), np.array([-1, *action.shape]))
    graph("Cast", counted, to=TYPES[action.dtype], name="action")
    graph.declare("action", action.dtype, action.shape, graph.outputs)
    if distribution:
        graph("Concat", *(graph("Softmax", each, axis=1) for each in logits), axis=1, name="probabilities")
        graph.declare("probabilities", "float32", (sum(action.sizes),), graph.outputs)
