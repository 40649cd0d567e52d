"""Data parallelism as an edit of a program: buckets, places in one process, and the numbers of the whole batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers, nn
from fluidlite.distributed import parameters, transform
from fluidlite.distributed.replicas import Replicas
from fluidlite.distributed.transform import insert_collectives
from fluidlite.errors import (
    AttributeValueError,
    CollectiveError,
    FeedError,
    FetchError,
    NetworkError,
    OutOfRangeError,
    ProgramError,
)

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(37, 6)).astype("float32")
Y = RANDOM.integers(0, 4, (37, 1))

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fluid.optimizer.SGD(0.2),
    "adam": lambda: fluid.optimizer.Adam(0.01),
    "clipped": lambda: fluid.optimizer.Momentum(
        0.1, 0.9, regularization=fluid.regularizer.L2Decay(1e-2), grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5)
    ),
}


def model(optimizer: str = "sgd", sizes: tuple[int, ...] = (8, 8)) -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, y = layers.data("x", [6]), layers.data("y", [1], dtype="int64")
        hidden = x
        for size in sizes:
            hidden = layers.fc(hidden, size, act="tanh")
        loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, 4), y))
        OPTIMIZERS[optimizer]().minimize(loss)
    return main, startup, loss


def losses_of(places: Any, optimizer: str = "sgd", rows: int = 36, steps: int = 6, mode: str = "compiled") -> Any:
    main, startup, loss = model(optimizer)
    executor, scope = fluid.Executor("cpu", mode=mode, fallback="allow"), fluid.Scope()
    program: Any = main
    if places is not None:
        program = fluid.CompiledProgram(main).with_data_parallel(loss_name=loss.name, places=places)
    with fluid.scope_guard(scope):
        executor.run(startup)
        found = [
            np.mean(executor.run(program, {"x": X[:rows], "y": Y[:rows]}, [loss])[0], dtype="float64")
            for _ in range(steps)
        ]
    values = {p.name: scope.find_var(p.name).get_tensor().numpy().copy() for p in main.all_parameters()}
    return found, values, program


# Buckets -----------------------------------------------------------------------------------------------------------


def types(program: fluid.Program) -> list[str]:
    return [op.type for op in program.global_block().ops]


@pytest.mark.parametrize("places", [["cpu"], ["cpu", "cpu"]], ids=["one", "two"])
def test_what_places_fetch_stays_apart_if_not_merged(places: list[str]) -> None:
    main, startup, loss = model()
    program = fluid.CompiledProgram(main.clone(for_test=True)).with_data_parallel(places=places)
    with fluid.scope_guard(fluid.Scope()):
        executor = fluid.Executor("cpu")
        executor.run(startup)
        feed = {"x": X[:36], "y": Y[:36]}
        (merged,) = executor.run(program, feed, [loss])
        for return_numpy in (True, False):
            (parts,) = executor.run(program, feed, [loss], return_numpy=return_numpy, return_merged=False)
            assert isinstance(parts, list) and len(parts) == len(places)
            np.testing.assert_array_equal(np.concatenate([np.asarray(part) for part in parts]), merged)


def test_each_gradient_is_in_one_bucket_behind_what_makes_it() -> None:
    main, _, loss = model(sizes=(8, 8, 8))
    found = insert_collectives(main, loss.name, members=4, bucket_bytes=300)
    ops = main.global_block().ops
    gradients = sorted(name for bucket in found for name in bucket.names)
    assert gradients == sorted(f"{p.name}@GRAD" for p in main.all_parameters())
    assert len(found) > 2
    sizes = {p.name: 4 * int(np.prod(p.shape)) for p in main.all_parameters()}
    for bucket in found:
        *others, last_name = (sizes[name.partition("@GRAD")[0]] for name in bucket.names)
        assert bucket.nbytes == sum(others) + last_name
        assert sum(others) < 300  # it was not full before the last one
        assert bucket.nbytes >= 300 or bucket is found[-1]
    position = {op: i for i, op in enumerate(ops)}
    reductions = [op for op in ops if op.type == "c_allreduce_sum"]
    waits = [op for op in ops if op.type == "c_sync_comm_stream"]
    assert len(reductions) == len(waits) == len(found)
    for op in reductions:
        for name in op.input("X"):
            makers = [position[o] for o in ops if name in o.output_arg_names and o.type not in
                      ("c_allreduce_sum", "c_sync_comm_stream")]  # fmt: skip
            assert max(makers) < position[op]
            readers = [position[o] for o in ops if name in o.input_arg_names and o.role == "optimize"]
            wait = next(position[o] for o in waits if name in o.input("X"))
            assert position[op] < wait < min(readers)
    last = max(i for i, op in enumerate(ops) if op.role == "backward" and not op.type.startswith("c_"))
    assert position[reductions[0]] < last  # backward goes on behind the first: they overlap
    assert min(map(position.get, waits)) > last
    (seed,) = [op for op in ops if op.type == "fill_constant" and op.output("Out") == [f"{loss.name}@GRAD"]]
    assert seed.attrs["value"] == 0.25


def test_buckets_are_reduced_during_backward(
    place: str, together: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backward of each layer waits until the gradients of the layer behind it have been summed over all members."""
    monkeypatch.setattr(transform, "BUCKET_BYTES", 1)
    monkeypatch.setattr(parameters, "check_same_program", lambda *_: None)  # py_func numbers functions by the process
    events = [list[str](), list[str]()]

    def work(rank: int, group: Any) -> None:
        mine, begun = events[rank], list[Any]()

        def start(array: Any, reduction: str, after: Any = None) -> Any:
            found = type(group).start_all_reduce(group, array, reduction, after)
            if array.size > 2:  # neither the number of rows nor the sums of metrics
                mine.append(f"sum of {array.size} begins")
                begun.append(group._rendezvous._collectives.get(group._number - 1))
            return found

        def seen(name: str) -> Callable[..., Any]:
            def backward(*values: Any) -> Any:
                for collective in begun:
                    assert collective is None or collective.finished.wait(60), (
                        f"backward of {name}: a sum has not been made"
                    )
                mine.append(f"backward of {name} after {len(begun)} sums")
                return np.asarray(values[-1])

            return backward

        def noted(name: str) -> nn.Layer:
            def append(x: Any) -> Any:
                out = fluid.default_main_program().current_block().create_var(name, shape=x.shape, dtype="float32")
                return layers.py_func(np.asarray, x, out, seen(name))

            return nn.Function(append, name=f"noted_{name}")

        network = nn.Network([6], place, fluid.optimizer.SGD(0.1), "softmax_cross_entropy", seed=1,
                             fallback="allow")  # fmt: skip
        network.distributed, network.group = True, group
        for name, width in (("a", 8), ("b", 9), ("c", 4)):
            network.add_layer(nn.Dense(width, bias=False))
            network.add_layer(noted(name))
        network.compile()
        group.start_all_reduce = start
        network.batched_train([(X[:20], Y[:20])] * 3)
        network.close()

    together(2, work)
    step = ["backward of c after 0 sums", "sum of 36 begins", "backward of b after 1 sums", "sum of 72 begins",
            "backward of a after 2 sums", "sum of 48 begins"]  # fmt: skip
    for found in events:
        assert found[:6] == step
        assert [each.partition(" after")[0] for each in found] == [each.partition(" after")[0] for each in step] * 3


def test_one_bucket_is_one_operation() -> None:
    main, _, loss = model()
    assert len(insert_collectives(main, loss.name)) == 1
    assert types(main).count("c_allreduce_sum") == 1


def test_what_has_nothing_to_reduce_is_refused() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss = layers.mean(layers.fc(layers.data("x", [3]), 2))
        with pytest.raises(ProgramError, match="no gradients that updates read"):
            insert_collectives(fluid.default_main_program(), loss.name)
    main, _, loss = model()
    with pytest.raises(ProgramError, match="which the program does not have"):
        insert_collectives(main.clone(), "nothing")
    with pytest.raises(ProgramError, match="no backward of the program begins with the loss 'x'"):
        insert_collectives(main.clone(), "x")
    with pytest.raises(ProgramError, match="scale is 'other'"):
        insert_collectives(main.clone(), loss.name, scale="other")


# Several places of one process -------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_several_places_give_the_numbers_of_one(optimizer: str, mode: str) -> None:
    wanted, values, _ = losses_of(None, optimizer, mode=mode)
    for places in (["cpu"] * 2, ["cpu"] * 4):
        found, mine, program = losses_of(places, optimizer, mode=mode)
        np.testing.assert_allclose(found, wanted, rtol=2e-6)
        for name, value in values.items():
            np.testing.assert_allclose(mine[name], value, rtol=1e-4, atol=2e-6)
            for scope in program._replicas._scopes:  # all members hold the same, to the bit
                np.testing.assert_array_equal(scope.find_var(name).get_tensor().numpy(), mine[name])


def test_places_of_different_kinds(place: str) -> None:
    wanted, _, _ = losses_of(None)
    found, _, _ = losses_of(["cpu", place])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_gradients_are_divided_unless_it_is_said_otherwise() -> None:
    main, startup, loss = model()
    strategy = fluid.BuildStrategy()
    strategy.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.One
    strategy.fuse_all_reduce_ops = False
    program = fluid.CompiledProgram(main).with_data_parallel(loss.name, strategy, places=["cpu", "cpu"])
    executor = fluid.Executor("cpu")
    executor.run(startup)
    before = fluid.global_scope().find_var("fc_0.w_0").get_tensor().numpy().copy()
    executor.run(program, {"x": X[:36], "y": Y[:36]}, [loss])
    summed = fluid.global_scope().find_var("fc_0.w_0").get_tensor().numpy() - before
    executor.run(startup)
    # the startup program draws anew: begin at the same values
    fluid.global_scope().find_var("fc_0.w_0").get_tensor().set(before)
    assert len([op for op in program.program_of(program._replicas._rendezvous.members[0]).global_block().ops
                if op.type == "c_allreduce_sum"]) == 6  # fmt: skip
    assert np.abs(summed).max() > 0
    strategy.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.Customized
    with pytest.raises(ProgramError, match="Customized"):
        fluid.CompiledProgram(main).with_data_parallel(loss.name, strategy)
    with pytest.raises(AttributeValueError, match="has no 'fuse_everything'"):
        strategy.fuse_everything = True  # type: ignore[attr-defined]


def test_what_others_write_into_the_scope_is_seen_by_all() -> None:
    main, startup, loss = model()
    program = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=["cpu", "cpu"])
    executor = fluid.Executor("cpu")
    executor.run(startup)
    feed = {"x": X[:36], "y": Y[:36]}
    executor.run(program, feed, [loss])
    weight = fluid.global_scope().find_var("fc_1.w_0").get_tensor()
    weight.set(np.zeros((8, 8), "float32"))
    executor.run(startup)
    executor.run(program, feed, [loss])
    (other,) = program._replicas._scopes
    np.testing.assert_array_equal(other.find_var("fc_1.w_0").get_tensor().numpy(), weight.numpy())
    single = executor.run(main.clone(for_test=True), feed, [loss])[0]
    both = executor.run(program, feed, [loss])[0]
    assert both.shape == (2,)
    assert both.mean() == pytest.approx(single.item(), rel=1e-6)


@pytest.mark.parametrize("view", [lambda t: t.numpy(), lambda t: t.data(), lambda t: np.from_dlpack(t)],
                         ids=["numpy", "data", "dlpack"])  # fmt: skip
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
def test_what_is_written_through_an_array_is_seen_by_all(view: Callable[[Any], Any], kept: bool) -> None:
    main, startup, loss = model()
    program = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=["cpu", "cpu"])
    executor = fluid.Executor("cpu")
    executor.run(startup)
    feed = {"x": X[:36], "y": Y[:36]}
    weight = fluid.global_scope().find_var("fc_1.w_0").get_tensor()
    array = view(weight) if kept else None
    for value in (0.0, 0.5):
        executor.run(program, feed, [loss])
        (array if array is not None else view(weight))[...] = value
        single = executor.run(main.clone(for_test=True), feed, [loss])[0]
        assert executor.run(program, feed, [loss])[0].mean() == pytest.approx(single.item(), rel=1e-6)


def test_state_has_its_lod_on_all_places() -> None:
    x = layers.data("x", [1])
    create = fluid.default_main_program().global_block().create_var
    words = create(name="words", shape=[-1, 1], dtype="float32", lod_level=1, persistable=True)
    y = layers.elementwise_add(x, layers.sequence_pool(words, "sum"))
    scope, executor = fluid.global_scope(), fluid.Executor("cpu")
    scope.var("words").get_tensor().set(np.arange(4, dtype="float32")[:, None], "cpu", [[0, 1, 4]])
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=["cpu", "cpu"])
    (found,) = executor.run(program, {"x": np.zeros((4, 1), "float32")}, [y])
    np.testing.assert_array_equal(found.ravel(), [0, 6, 0, 6])


def test_threads_share_a_program_of_several_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in its first run, which creates the members."""
    created, create = [], Replicas.__init__

    def create_slowly(self: Replicas, *arguments: Any) -> None:
        created.append(self)
        time.sleep(0.1)
        create(self, *arguments)

    monkeypatch.setattr(Replicas, "__init__", create_slowly)
    x = layers.data("x", [1])
    count = layers.create_global_var([1], 0.0, "float32", persistable=True, name="count")
    layers.increment(count)
    y = layers.elementwise_add(x, count)
    executor, startup = fluid.Executor("cpu"), fluid.default_startup_program()
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=["cpu", "cpu"])

    def work(number: int) -> list[float]:
        scope = fluid.Scope()
        executor.run(startup, scope=scope)
        feed = {"x": np.full((2, 1), 100.0 * number, "float32")}
        return [float(executor.run(program, feed, [y], scope=scope)[0].max()) for _ in range(20)]

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(work, range(3)))
    for number, found in enumerate(results):
        assert found == [100.0 * number + step for step in range(1, 21)]
    assert len(created) == 1


def test_feeds_may_be_split_by_hand() -> None:
    main, startup, loss = model()
    program = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=["cpu", "cpu"])
    executor = fluid.Executor("cpu")
    executor.run(startup)
    parts = [{"x": X[:10], "y": Y[:10]}, {"x": X[10:20], "y": Y[10:20]}]
    (found,) = executor.run(program, parts, [loss])
    assert found.shape == (2,)
    with pytest.raises(FeedError, match="a list of 3; expected one mapping for each of 2 places"):
        executor.run(program, [*parts, parts[0]], [loss])
    with pytest.raises(FeedError, match="1 rows for 2 places"):
        executor.run(program, {"x": X[:1], "y": Y[:1]}, [loss])
    (again,) = executor.run(program, {"x": X[:20], "y": Y[:20]}, [loss], return_numpy=False)
    assert again.dims == (2,)


# Sparse rows, sequences, loops ---------------------------------------------------------------------------------------

WORDS = RANDOM.integers(0, 12, (8, 1))
ROWS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fluid.optimizer.SGD(0.5),
    "lazy adam": lambda: fluid.optimizer.Adam(0.1, lazy_mode=True),
    "clipped ftrl": lambda: fluid.optimizer.Ftrl(
        0.1, regularization=fluid.regularizer.L2Decay(0.1), grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5)
    ),
}


def trained(places: Any, optimizer: str, mode: str, words: Any, fixed: int | None) -> tuple[Any, dict[str, Any]]:
    """Train a table of words, read twice, or steps over their sequences if any; return fetches, and parameters."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = layers.data("ids", [fixed or -1, 1], dtype="int64", lod_level=0 if fixed else 2, append_batch_size=False)
        embedded, again = (
            layers.embedding(ids, [12, 3], is_sparse=True, param_attr=fluid.ParamAttr(name="table")) for _ in range(2)
        )
        found = layers.concat([embedded, again * 2.0], axis=1) if fixed else embedded
        if not fixed:
            rnn, sentences = layers.DynamicRNN(), layers.sequence_pool(embedded, "sum")
            with rnn.block():
                sentence, before = rnn.step_input(sentences), rnn.memory(shape=[3])
                after = layers.fc([sentence, before], 3, act="tanh")
                rnn.update_memory(before, after)
                rnn.output(after)
            found = layers.sequence_last_step(rnn())
        cost = layers.softmax_with_cross_entropy(layers.fc(found, 4), layers.data("y", [1], dtype="int64"))
        loss = layers.mean(cost)
        ROWS[optimizer]().minimize(loss)
    program: Any = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=places) if places else main
    executor, scope = fluid.Executor("cpu", mode=mode), fluid.Scope()
    executor.run(startup, scope=scope)
    feed = {"ids": words, "y": Y[: 8 if fixed else 4]}
    for _ in range(3):
        values = executor.run(program, feed, [embedded, cost], scope=scope, return_numpy=False)
    return values, {p.name: scope.find_var(p.name).get_tensor().numpy() for p in main.all_parameters()}


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize("optimizer", ROWS)
@pytest.mark.parametrize("kind", ["rows", "sequences"])
def test_members_train_a_table_by_the_rows_of_all(kind: str, optimizer: str, mode: str) -> None:
    """Each member has other rows, of the sequences unequally many, which are split and joined with their LoD."""
    words = fluid.create_lod_tensor(WORDS, [[2, 1, 1, 2], [1, 0, 0, 1, 2, 4]], "cpu") if kind == "sequences" else WORDS
    alone, wanted = trained(None, optimizer, mode, words, 8 if kind == "rows" else None)
    both, found = trained(["cpu", "cpu"], optimizer, mode, words, 4 if kind == "rows" else None)
    for one, other in zip(both, alone, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)
        assert one.lod() == other.lod()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("optimizer", ROWS)
@pytest.mark.parametrize("lengths", [[0, 0, 1, 2], [0, 0, 0, 0]], ids=["one", "all"])
def test_a_member_without_rows_gathers_those_of_others(optimizer: str, lengths: list[int]) -> None:
    """Rows that no member has, such as row 0, stay as they are."""
    words = fluid.create_lod_tensor(1 + WORDS[: sum(lengths)] % 11, [[1, 1, 1, 1], lengths], "cpu")
    _, wanted = trained(None, optimizer, "compiled", words, None)
    _, found = trained(["cpu", "cpu"], optimizer, "compiled", words, None)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("names", [("table",), ("table", "fc.w", "fc.b")], ids="-".join)
def test_gradients_that_a_program_clips_itself_are_reduced_before(names: tuple[str, ...], sparse: bool) -> None:
    found = []
    for places in (None, ["cpu", "cpu"]):
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 7
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            ids, y = layers.data("ids", [1], dtype="int64"), layers.data("y", [1], dtype="int64")
            embedded = layers.embedding(ids, [12, 3], is_sparse=sparse, param_attr=fluid.ParamAttr(name="table"))
            scores = layers.fc(embedded, 4, param_attr=fluid.ParamAttr("fc.w"), bias_attr=fluid.ParamAttr("fc.b"))
            loss = layers.mean(layers.softmax_with_cross_entropy(scores, y))
            optimizer = fluid.optimizer.SGD(0.5)
            pairs = optimizer.backward(loss)
            optimizer.apply_gradients([(p, layers.clip_by_norm(g, 0.1) if p.name in names else g) for p, g in pairs])
        program: Any = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=places) if places else main
        executor, scope = fluid.Executor("cpu"), fluid.Scope()
        executor.run(startup, scope=scope)
        for _ in range(2):
            executor.run(program, {"ids": WORDS, "y": Y[:8]}, [loss], scope=scope)
        found.append({p.name: scope.find_var(p.name).get_tensor().numpy() for p in main.all_parameters()})
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_second_backward_behind_an_update_is_refused() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = layers.data("x", [3])
        losses = [layers.mean(layers.fc(x, 1)) for _ in range(2)]
        for loss in losses:
            fluid.optimizer.SGD(0.1).minimize(loss)
        with pytest.raises(ProgramError, match="a second backward, behind the update operator sgd"):
            insert_collectives(fluid.default_main_program(), losses[0].name)


@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("seed", [0, 7])
def test_members_drop_other_elements_and_make_equal_updates_of_noise(seed: int, branch: bool) -> None:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = seed
    with fluid.program_guard(main, startup):
        dropped = layers.dropout(layers.data("x", [500]), 0.5)
        loss = layers.mean(layers.fc(dropped, 2))
        made = fluid.optimizer.Dpsgd(0.1, clip=1.0, batch_size=4.0, sigma=1.0)
        if branch:
            with layers.ConditionalBlock([layers.fill_constant([1], "bool", True)], is_scalar_condition=True).block():
                made.minimize(loss)
        else:
            made.minimize(loss)
    program = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=["cpu", "cpu"])
    executor = fluid.Executor("cpu")
    executor.run(startup)
    for _ in range(2):
        kept = executor.run(program, {"x": np.ones((2, 500), "float32")}, [dropped])[0] != 0
        assert 0.3 < (kept[0] == kept[1]).mean() < 0.7
    (other,) = program._replicas._scopes
    for parameter in main.all_parameters():
        mine, theirs = (scope.find_var(parameter.name).get_tensor() for scope in (fluid.global_scope(), other))
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_what_cannot_be_split_or_joined_is_refused() -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = layers.data("x", [2], lod_level=1)
        array = layers.array_write(x, layers.fill_constant([1], "int64", 0))
    program = fluid.CompiledProgram(main).with_data_parallel(places=["cpu", "cpu"])
    executor = fluid.Executor("cpu")
    feed = {"x": fluid.create_lod_tensor(np.ones((3, 2), "float32"), [[1, 2]], "cpu")}
    with pytest.raises(FetchError, match="is a tensor array, whose elements on 2 places are not joined"):
        executor.run(program, feed, [array], return_numpy=False)
    with pytest.raises(FetchError, match="return_numpy=False"):
        executor.run(program, feed, [x])
    with pytest.raises(FeedError, match="has 1 sequences for 2 places"):
        executor.run(program, {"x": fluid.create_lod_tensor(np.ones((3, 2), "float32"), [[3]], "cpu")}, [x])
    with pytest.raises(FetchError, match="fetch_list is int 3"):
        executor.run(program, feed, 3)
    with pytest.raises(FeedError, match="the feed is int 3"):
        executor.run(program, 3, [x])
    with pytest.raises(FeedError, match="the feed of 'x' cannot become an array"):
        executor.run(program, {"x": [[1, 2], [3]]}, [x])
    (again,) = executor.run(program, feed, x, return_numpy=False)
    assert again.recursive_sequence_lengths() == [[1, 2]]


def test_feeds_of_several_places_are_checked_as_those_of_one() -> None:
    x, y = layers.data("x", [2]), layers.data("y", [1])
    out = layers.elementwise_sub(x, y)
    executor, main = fluid.Executor("cpu"), fluid.default_main_program()
    program = fluid.CompiledProgram(main).with_data_parallel(places=["cpu"] * 3)
    ones, column = np.ones((3, 2), "float32"), np.arange(3, dtype="float32")[:, None]
    for lists in ({"x": ones.tolist(), "y": column.tolist()}, {"x": np.ones((3, 2), int).tolist(), "y": column}):
        wanted, found = (executor.run(each, lists, [out])[0] for each in (main, program))
        np.testing.assert_array_equal(found, wanted)
    for value, message in (
        (np.ma.masked_array(ones, mask=True), "is a masked array"),
        (out, "which has no values of its own"),
        (None, "is NoneType; expected an array"),
        ("text", "is str; expected an array"),
        (np.ones((3, 3), "float32"), r"has dims \[3, 3\]"),
        (np.ones((3, 2), "int32"), "is int32"),
    ):
        for each in (main, program):
            with pytest.raises(FeedError, match=f"the feed of 'x' .*{message}"):
                executor.run(each, {"x": value, "y": column}, [out])
    with pytest.raises(FeedError, match=r"feed 'y' has 3 rows, and 'x' has 6; each of 3 places(?s:.*)Do: .*a list"):
        executor.run(program, {"x": np.ones((6, 2), "float32"), "y": column}, [out])
    with pytest.raises(FeedError, match="names 'z', which the program does not have"):
        executor.run(program, {"x": ones, "z": column}, [out])


@pytest.mark.parametrize("batches", [7, 6])
def test_a_reader_gives_its_batches_to_places_in_order(batches: int) -> None:
    """At the end of an epoch, batches for a part of the places change nothing."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = layers.data("x", [2])
        reader = fluid.io.DataLoader.from_generator(feed_list=[x], capacity=4, iterable=False)
        hidden = layers.batch_norm(layers.fc(x, 3, bias_attr=False), moving_mean_name="mean")
        loss = layers.mean(hidden * hidden)
        fluid.optimizer.SGD(layers.exponential_decay(0.1, 2, 0.5)).minimize(loss)
    reader.set_batch_generator(lambda: ([np.full((1, 2), i, "float32")] for i in range(batches)))
    executor = fluid.Executor("cpu")
    executor.run(startup)
    program = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=["cpu"] * 3)
    rows = []
    for _ in range(4):
        reader.start()
        with pytest.raises(fluid.core.EOFException):
            while True:
                rows.append(executor.run(program, fetch_list=[x])[0][:, 0].tolist())
        mean = fluid.global_scope().find_var("mean").get_tensor().numpy()
        reader.reset()
    assert rows == [[0, 1, 2], [3, 4, 5]] * 4
    assert fluid.global_scope().find_var("@LR_DECAY_COUNTER@").get_tensor().numpy()[0] == 7
    np.testing.assert_array_equal(fluid.global_scope().find_var("mean").get_tensor().numpy(), mean)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_shares_of_half_types_are_of_any_number_of_rows(dtype: str) -> None:
    """As many rows as float16 does not hold: they are counted in float32."""
    random = np.random.default_rng(0)
    x = random.normal(size=(70_000, 2)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    y = (x.astype("float32").sum(1) > 0).astype("int64").reshape(-1, 1)
    found = []
    for distributed in (False, True):
        network = nn.Network(
            [2], "cpu", optimizer=fluid.optimizer.SGD(0.5), loss="softmax_cross_entropy", seed=3,
            distributed=distributed, input_dtype=dtype, fallback="allow",
        )  # fmt: skip
        network.add_layer(nn.Dense(2))
        network.train((x, y), epochs=3)
        found.append([entry["loss"] for entry in network.state.history])
    np.testing.assert_allclose(*found, rtol=0.02)
    assert found[1][-1] < 0.9 * found[1][0]


def test_an_error_of_one_member_is_raised_and_the_next_run_works() -> None:
    main, startup, loss = model()
    program = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=["cpu", "cpu"])
    executor = fluid.Executor("cpu")
    executor.run(startup)
    good, bad = {"x": X[:20], "y": Y[:20]}, {"x": X[:20], "y": np.r_[Y[:19], [[9]]]}
    first = executor.run(program, good, [loss])[0]
    with pytest.raises((OutOfRangeError, FeedError)):
        executor.run(program, {"x": X[:20], "y": Y[:20].astype("float32")}, [loss])
    with pytest.raises(OutOfRangeError):
        executor.run(program, bad, [loss])
    second = executor.run(program, good, [loss])[0]
    assert second.mean() < first.mean()


def test_a_program_alone_runs_as_it_is() -> None:
    main, startup, loss = model()
    executor = fluid.Executor("cpu")
    executor.run(startup)
    feed = {"x": X, "y": Y}
    test = main.clone(for_test=True)
    wanted = executor.run(test, feed, [loss])[0]
    for program in (
        fluid.CompiledProgram(test), fluid.CompiledProgram(test).with_data_parallel(),
        fluid.CompiledProgram(test).with_data_parallel(places="cpu"),
    ):  # fmt: skip
        np.testing.assert_array_equal(executor.run(program, feed, [loss])[0], wanted)
    with pytest.raises(ProgramError, match="places names"):
        executor.run(fluid.CompiledProgram(test).with_data_parallel(places=str(fluid.places()[-1])), feed, [loss])
    with pytest.raises(ProgramError, match="takes a Program"):
        fluid.CompiledProgram(5)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="already"):
        fluid.CompiledProgram(test).with_data_parallel().with_data_parallel()


def test_members_that_run_other_programs_are_told(together: Callable[..., list[Any]]) -> None:
    from fluidlite.distributed.parameters import broadcast_state, check_same_program

    programs = [model(sizes=(8,))[0], model(sizes=(9,))[0]]

    def work(rank: int, group: Any) -> None:
        scope = fluid.Scope()
        scope.var("fc_0.w_0").get_tensor().set(np.zeros((6, 8 + rank), "float32"))
        with pytest.raises(CollectiveError, match="of member 1 of 2 is not that of member 0"):
            broadcast_state(programs[rank], scope, group)
        check_same_program(programs[rank], group)

    with pytest.raises(CollectiveError, match="the program of member 1 of 2 is not that of member 0"):
        together(2, work)


def test_a_batch_of_fewer_rows_than_members_is_refused() -> None:
    from fluidlite.nn.feeds import shard_of

    parts = [shard_of({"x": X}, rank, 5, "batch 0")["x"] for rank in range(5)]
    np.testing.assert_array_equal(np.concatenate(parts), X)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    with pytest.raises(NetworkError, match="batch 0 has 2 rows for 3 processes; each needs one"):
        shard_of({"x": X[:2]}, 0, 3, "batch 0")


# Networks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [37, 36])
def test_members_with_unequal_shares_give_the_numbers_of_the_whole_batch(
    together: Callable[..., list[Any]], rows: int
) -> None:
    """37 rows of 3 members: each gradient counts by its rows."""

    def made(group: Any) -> nn.Network:
        network = nn.Network([6], optimizer=fluid.optimizer.Adam(0.02), loss="softmax_cross_entropy", seed=4,
                             metrics="accuracy")  # fmt: skip
        if group is not None:
            network.distributed, network.group = True, group
        for layer in (nn.Dense(8, "relu"), nn.Dense(4)):
            network.add_layer(layer)
        network.compile()
        return network

    data = [(X[:rows], Y[:rows]), (X[5:rows], Y[5:rows])]
    alone = made(None)
    wanted = alone.batched_train(data, epochs=5, validation=(X, Y))

    def work(rank: int, group: Any) -> Any:
        network = made(group)
        return network.batched_train(data, epochs=5, validation=(X, Y)), network.parameters()

    found = together(3, work)
    for history, values in found:
        for mine, theirs in zip(history, wanted, strict=True):
            assert mine == pytest.approx(theirs, rel=2e-5)
        assert history == found[0][0]
        for name, value in values.items():
            np.testing.assert_array_equal(value, found[0][1][name])
            np.testing.assert_allclose(value, alone.parameters()[name], rtol=1e-3, atol=1e-5)
