"""Checkpoints: values, optimizer state, random numbers, history and the loader's position, saved atomically."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fluidlite.base.errors import SavedModelError
from fluidlite.io.commit import save_files
from fluidlite.io.manifest import parse_record
from fluidlite.io.paths import PathText, folder_of
from fluidlite.io.random_runs import SEEDS, parse_runs
from fluidlite.io.snapshot import Snapshot, read_folder
from fluidlite.io.tensor_file import Stored
from fluidlite.io.variables import is_persistable, read_values, selected_variables, set_values, value_writers
from fluidlite.nn.state import TrainingState
from fluidlite.program.program import Program
from fluidlite.program.scope import scope_guard
from fluidlite.program.variable import Variable

if TYPE_CHECKING:
    from fluidlite.nn.network import Network

VALUES, STATE = "network.safetensors", "network.json"
MAX_STATE_BYTES = 64 << 20
_FORMAT, _VERSION = "fluidlite.network", 1


def save(network: Network, folder: PathText) -> None:
    network.set_up()
    if network.group.rank != 0:
        return
    state = network.state
    loader = network.checkpoint_loader
    if loader is not None:  # a training is running: save its loader's position
        state.loader = position_of(loader)
    for callback in network.active_callbacks:
        state.callbacks[callback.name] = callback.state()
    record = {
        "format": _FORMAT,
        "version": _VERSION,
        "layers": _layers(network),
        "seed": network.seed,
        "random": [[stream, seed, count] for (stream, seed), count in sorted(network.scope.random_runs().items())],
        "training": state.record(),
    }
    try:
        text = json.dumps(record, indent=1, allow_nan=True).encode()
    except TypeError as exc:
        raise SavedModelError(f"the state of the loader or of a callback is no JSON: {exc}") from None
    with scope_guard(network.scope):
        writers = value_writers(_program(network), predicate=is_persistable, filename=VALUES)
    save_files(folder, {**writers, STATE: text})


def position_of(loader: Any) -> Any:
    """The state of a loader, from which a resumed training goes on; None if it has none."""
    return loader.state() if hasattr(loader, "state") and callable(loader.state) else None


def _program(network: Network) -> Program:
    """The program whose persistable variables are the network's values."""
    network.compile()
    return network.program


def _variables(network: Network) -> list[Variable]:
    return selected_variables(_program(network), None, is_persistable)


def _layers(network: Network) -> list[dict[str, Any]]:
    layers = [{"kind": layer.kind, "name": layer.name, **layer.config()} for layer in network.layers]
    result: list[dict[str, Any]] = json.loads(json.dumps(layers, default=repr))  # in the form in which they are read
    return result


def load(network: Network, folder: PathText) -> None:
    network.set_up()
    where = folder_of(folder)

    def read(snapshot: Snapshot) -> tuple[dict[str, Any], dict[str, Stored]]:
        record = _parsed(snapshot.read(STATE, MAX_STATE_BYTES), where / STATE)
        _check_layers(network, record["layers"], where / STATE)
        return record, read_values(snapshot, _variables(network), VALUES)

    record, values = read_folder(where, read)
    try:
        state = TrainingState.parse(record["training"])
        runs = parse_runs(record["random"])
        seed = record["seed"]
        if type(seed) is not int or seed == 0 or seed not in SEEDS:
            raise ValueError(f"seed is {seed!r:.40}")
    except (ValueError, TypeError, OverflowError) as exc:
        raise SavedModelError(f"{where / STATE} is malformed: {exc}\n  Do: save the network again") from None
    with scope_guard(network.scope):
        set_values(_variables(network), values, network.place)
    if seed != network.seed:
        network.seeded(seed)
    if network.group.rank:  # saved by the first process: this one has drawn as often, from its own seed
        runs = {(stream, network.member_seed if own == seed else own): count for (stream, own), count in runs.items()}
    network.scope.set_random_runs(runs)
    network.state = state


def _parsed(text: bytes, path: Any) -> dict[str, Any]:
    do = "\n  Do: save the network again"
    record = parse_record(text, path, _FORMAT, _VERSION, "saved network", do)
    missing = [name for name in ("layers", "seed", "random", "training") if name not in record]
    if missing:
        raise SavedModelError(f"{path} says nothing of {missing[0]!r}{do}")
    return record


def _check_layers(network: Network, saved: Any, path: Any) -> None:
    layers = _layers(network)
    if not isinstance(saved, list):
        raise SavedModelError(f"{path} is malformed: layers is {type(saved).__name__}")
    for number, (layer, saved_layer) in enumerate(zip(layers, saved, strict=False)):
        if layer != saved_layer:
            raise SavedModelError(
                f"{path} is of another network: layer {number} is {saved_layer!r:.200}; here it is {layer}"
            )
    if len(layers) != len(saved):
        raise SavedModelError(f"{path} is of another network: it has {len(saved)} layers; here there are {len(layers)}")
