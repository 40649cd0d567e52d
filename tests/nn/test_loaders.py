"""Networks with loaders: the same batches as by hand, positions that are saved, and shards of several members."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import loaders, nn
from fluidlite.errors import LoaderError, NetworkError

Make = Callable[..., nn.Network]


def stack() -> list[nn.Layer]:
    return [nn.Dense(16, "relu"), nn.Dropout(0.2), nn.Dense(10)]


def loader_of(kind: str, x: np.ndarray, y: np.ndarray, size: int = 30) -> loaders.BatchedLoader:
    if kind == "threads":
        return loaders.BatchedLoader((x, y), size, shuffle=True, seed=5, workers=2, buffers=3)
    if kind == "processes":
        return loaders.BatchedLoader((x, y), size, shuffle=True, seed=5, processes=True)
    return loaders.BatchedLoader(lambda: zip(x, y, strict=True), size, shuffle=40, seed=5)


KINDS = ("threads", "processes", "stream")


def test_a_loader_gives_the_numbers_of_the_same_batches(network: Make, digits: Any, place: str) -> None:
    x, y = digits[0][:100], digits[1][:100]
    found = network(stack(), place=place).batched_train(loaders.BatchedLoader((x, y), 30), epochs=2)
    by_hand = [(x[i : i + 30], y[i : i + 30]) for i in range(0, 100, 30)]
    assert found == network(stack(), place=place).batched_train(by_hand, epochs=2)


def test_every_epoch_has_an_order_of_its_own_across_calls(network: Make, digits: Any) -> None:
    x, y = digits[0][:90], digits[1][:90]
    once = network(stack())
    once.batched_train(loader_of("threads", x, y), epochs=3)
    thrice, loader = network(stack()), loader_of("threads", x, y)
    for _ in range(3):
        thrice.batched_train(loader)
    assert [e["loss"] for e in once.history] == [e["loss"] for e in thrice.history]
    assert loader.state() == {"epoch": 3, "batches": 0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [2, 4, 6])
def test_a_resumed_training_goes_on_at_the_loaders_position(
    network: Make, digits: Any, tmp_path: Path, kind: str, stop: int
) -> None:
    """Four batches an epoch; what workers had made ahead is made again."""
    x, y = digits[0][:110], digits[1][:110]

    class Stop(nn.Callback):
        def on_batch_end(self, network: nn.Network, logs: Any) -> None:
            if network.state.step == stop:
                network.save(tmp_path)
                raise KeyboardInterrupt

    whole = network(stack())
    whole.batched_train(loader_of(kind, x, y), epochs=3)
    first = network(stack())
    with pytest.raises(KeyboardInterrupt):
        first.batched_train(loader_of(kind, x, y), epochs=3, callbacks=[Stop()])
    second = network(stack(), seed=77)
    second.load(tmp_path)
    second.batched_train(loader_of(kind, x, y), epochs=3, resume=True)
    assert second.history == whole.history
    for name, value in second.parameters().items():
        np.testing.assert_array_equal(value, whole.parameters()[name])


def test_full_loaders(network: Make, digits: Any, place: str) -> None:
    x, y = digits[0][:100], digits[1][:100]
    made = network(stack(), place=place, metrics="accuracy")
    full = loaders.FullLoader((x, y), place, names=["input", "label"])
    history = made.train(full, epochs=3, validation=full)
    assert history == network(stack(), place=place, metrics="accuracy").train((x, y), epochs=3, validation=(x, y))
    assert made.predict(full).shape == (100, 10)
    assert made.predict(loaders.BatchedLoader(x, 30, names=["input"])).shape == (100, 10)
    full.close()


# Position and shards ------------------------------------------------------------------------------------------------


def ids(loader: Any) -> list[list[int]]:
    return [batch["i"].numpy().reshape(-1).tolist() for batch in loader]


def numbers(kind: str, size: int = 4, count: int = 18, **options: Any) -> loaders.BatchedLoader:
    source: Any = np.arange(count)[:, None]
    if kind == "stream":
        return loaders.BatchedLoader(lambda: iter(np.arange(count)[:, None]), size, names=["i"], shuffle=5, **options)
    return loaders.BatchedLoader(source, size, names=["i"], shuffle=True, processes=kind == "processes", **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_counts_what_the_loop_was_given(kind: str) -> None:
    whole = numbers(kind)
    epochs = [ids(whole), ids(whole)]
    loader = numbers(kind)
    assert ids(loader) == epochs[0]
    for batch in loader:
        if batch.number == 1:
            break
    state = loader.state()
    assert state == {"epoch": 1, "batches": 2}
    other = numbers(kind)
    other.load_state(state)
    assert other.state() == state
    rest = list(other)
    assert [batch["i"].numpy().reshape(-1).tolist() for batch in rest] == epochs[1][2:]
    assert [batch.number for batch in rest] == [2, 3, 4]
    assert other.state() == {"epoch": 2, "batches": 0}
    other.load_state({"epoch": 1, "batches": 5})  # at the end of an epoch that has not ended
    assert ids(other) == []
    assert ids(other) == ids_of_epoch(kind, 2)


def ids_of_epoch(kind: str, epoch: int) -> list[list[int]]:
    loader = numbers(kind)
    loader.epoch = epoch
    return ids(loader)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_the_batches(kind: str) -> None:
    whole = numbers(kind)
    parts = [numbers(kind).shard(rank, 2) for rank in range(2)]
    for _ in range(2):
        mine = [ids(part) for part in parts]
        assert [a + b for a, b in zip(*mine, strict=True)] == ids(whole)
        assert all(abs(len(a) - len(b)) <= 1 for a, b in zip(*mine, strict=True))


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(LoaderError, match="a batch of 2 samples is shared by 3 members"):
        ids(numbers("threads").shard(0, 3))  # the last batch
    assert len(ids(numbers("threads", drop_last=True).shard(0, 3))) == 4
    with pytest.raises(LoaderError, match="expected a rank from 0 to ranks - 1"):
        numbers("threads").shard(3, 3)
    with pytest.raises(LoaderError, match="the source yields batches"):
        loaders.BatchedLoader([{"i": np.zeros(3)}], yields="batches").shard(0, 2)
    full = loaders.FullLoader(np.arange(7)[:, None], names=["i"])
    assert [ids(full.shard(rank, 2)) for rank in range(2)] == [[[0, 1, 2]], [[3, 4, 5, 6]]]


@pytest.mark.parametrize(
    "state", [None, {}, {"epoch": 1}, {"epoch": -1, "batches": 0}, {"epoch": "a", "batches": 0}, 3]
)
def test_what_is_no_state_is_refused(state: Any) -> None:
    loader = numbers("threads")
    with pytest.raises(LoaderError, match="expected what a loader's state"):
        loader.load_state(state)
    assert loader.state() == {"epoch": 0, "batches": 0}


def test_members_that_share_a_loader_give_the_numbers_of_the_whole_batch(network: Make, digits: Any) -> None:
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from fluidlite.distributed.groups import set_thread_ring
    from fluidlite.distributed.threads import Rendezvous

    x, y, lock = digits[0][:100], digits[1][:100], threading.Lock()

    def made(group: Any) -> nn.Network:
        found = network([], optimizer=fluid.optimizer.Adam(0.01))
        if group is not None:
            found.distributed, found.group = True, group
        with lock:
            for layer in (nn.Dense(16, "relu"), nn.Dense(10)):
                found.add_layer(layer)
            found.compile()
        return found

    wanted = made(None).batched_train(loader_of("threads", x, y), epochs=3)
    meeting = Rendezvous(3)

    def work(rank: int) -> Any:
        set_thread_ring(0, meeting.members[rank])
        try:
            return made(meeting.members[rank]).batched_train(loader_of("threads", x, y), epochs=3)
        except BaseException as exc:
            meeting.fail(rank, exc)
            raise
        finally:
            set_thread_ring(0, None)

    with ThreadPoolExecutor(3) as pool:
        for history in pool.map(work, range(3)):
            for mine, theirs in zip(history, wanted, strict=True):
                assert mine == pytest.approx(theirs, rel=2e-5)


@pytest.mark.parametrize("form", ["arrays", "tensors"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x[:-1], y), "batch 2 of the loader has 19 rows of 'input', 20 rows of 'label'"),
        (lambda x, y: (x, y[:1]), "batch 2 of the loader has 20 rows of 'input', 1 rows of 'label'"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_after_batches_that_did(
    network: Make, digits: Any, form: str, change: Any, message: str
) -> None:
    """What was checked of the batch before is not taken for granted of one of other dims."""
    x, y = digits[0][:20], digits[1][:20]
    batches = [(x, y), (x, y), change(x, y), (x, y)]
    if form == "tensors":
        batches = [tuple(fluid.Tensor().set(part, "cpu") for part in batch) for batch in batches]
    made = network(stack())
    with pytest.raises(NetworkError, match=message):
        made.batched_train(batches)
    assert made.state.step == 2


def test_batches_of_several_forms_give_the_numbers_of_one(network: Make, digits: Any) -> None:
    """Arrays, tensors, vectors of labels, other dtypes and sizes, in turns."""
    x, y = digits[0][:20], digits[1][:20]
    parts = [slice(0, 20), slice(0, 20), slice(0, 7), slice(5, 12), slice(0, 20), slice(3, 10)]
    forms: list[Callable[[Any, Any], Any]] = [
        lambda a, b: (a, b), lambda a, b: {"input": a, "label": b}, lambda a, b: [a, b[:, 0]],
        lambda a, b: {"label": fluid.Tensor().set(b, "cpu"), "input": fluid.Tensor().set(a, "cpu")},
        lambda a, b: (a.astype(np.float16).astype(np.float32), b.astype(np.int32)),
        lambda a, b: {"input": a, "label": b, "more": b},
    ]  # fmt: skip
    wanted = network(stack()).batched_train([(x[part], y[part]) for part in parts], epochs=2)
    found = network(stack()).batched_train(
        [form(x[part], y[part]) for form, part in zip(forms, parts, strict=True)], epochs=2
    )
    assert found == wanted
