"""Scope: the state of programs, by variable name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import ref

from fluidlite.base.arguments import check_instance, check_int, text
from fluidlite.base.context_value import ContextDefault
from fluidlite.base.errors import ProgramError
from fluidlite.base.fork import new_lock
from fluidlite.base.invalidation import cache_version
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.program.selected_rows import SelectedRows
from fluidlite.program.variable_metadata import ROWS
from fluidlite.tensor.tensor import Tensor
from fluidlite.tensor.tensor_array import TensorArray


class ScopeVariable:
    """A variable of a scope: a name and its tensor."""

    __slots__ = ("__weakref__", "_scope", "name", "number", "tensor")

    def __init__(self, name: str, scope: Scope | None = None) -> None:
        self.name = name
        self._scope = ref(scope) if scope is not None else None
        self.tensor = Tensor()
        self.number: int | float | None = None

    def get_tensor(self) -> Tensor:
        """Return the tensor; the next run reads its new value if it is set."""
        return self.tensor

    def hold(self, tensor: Tensor) -> Tensor:
        """Store the result of a run in the variable's tensor object, and return that object."""
        if isinstance(tensor, TensorArray) and not isinstance(self.tensor, TensorArray):
            self.tensor = TensorArray(tensor._required_spec().dtype, tensor.place)
        return self.tensor.share_data_with(tensor)

    def get_lod_tensor_array(self) -> TensorArray:
        """Return the tensor array; create one if the variable is empty.

        Raises
        ------
        ProgramError
            If the variable holds a tensor.
        """
        if not isinstance(self.tensor, TensorArray):
            if self.tensor.spec is not None:
                raise ProgramError(f"scope variable {self.name!r} holds {self.tensor!r}, which is no tensor array")
            self.tensor = TensorArray()
        return self.tensor

    def get_selected_rows(self) -> SelectedRows:
        """Return sparse rows: the values are this variable's tensor, the row numbers that of ``name@ROWS``.

        Raises
        ------
        ProgramError
            If it holds a tensor, and the variable of row numbers does not exist.
        """
        scope = self._scope() if self._scope is not None else None
        numbers = self.name + ROWS
        if scope is None or (self.tensor.initialized and scope.find_var(numbers) is None):
            raise ProgramError(
                f"scope variable {self.name!r} holds a tensor, no SelectedRows: there are no rows in {numbers!r}"
                "\n  Do: get_tensor(); a gradient of rows is kept where its variable has persistable=True"
            )
        return SelectedRows.of(self.tensor, scope.find_var(numbers) or scope.var(numbers))

    def set_int(self, value: int) -> None:
        """Store an int besides the tensor; programs do not read it."""
        self.number = check_int(f"the number of scope variable {self.name!r}", value)

    def get_int(self) -> int:
        """Return the int that :meth:`set_int` stored."""
        if not self.is_int():
            raise ProgramError(f"scope variable {self.name!r} holds no int\n  Do: set_int(value) first")
        return int(self.number or 0)

    def is_int(self) -> bool:
        """Whether it holds an int."""
        return isinstance(self.number, int)

    def set_float(self, value: float) -> None:
        """Store a float besides the tensor; programs do not read it."""
        self.number = float(value)

    def get_float(self) -> float:
        """Return the float that :meth:`set_float` stored."""
        if not self.is_float():
            raise ProgramError(f"scope variable {self.name!r} holds no float\n  Do: set_float(value) first")
        return float(self.number or 0.0)

    def is_float(self) -> bool:
        """Whether it holds a float."""
        return isinstance(self.number, float)

    def __repr__(self) -> str:
        return f"ScopeVariable({self.name!r}, {self.tensor!r})"


class Scope:
    """Variables by name, with a chain of outer scopes. One scope (or child scope) a thread.

    Attributes
    ----------
    generation : int
        Version counter, incremented when a variable is created or erased: cached variables are then looked up again.
    random_key : int or None
        The key that random operators use instead of their program's seed.
    private : frozenset of str
        Variables whose tensors and memory only :meth:`replace` changes: programs bound to them do not check them at
        each call.
    """

    random_key: int | None = None
    private: frozenset[str] = frozenset()

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self._vars: dict[str, ScopeVariable] = {}
        self._kids: WeakObjects[Scope] = WeakObjects()
        self._runs: dict[tuple[int, int], int] = {}
        self._lock = new_lock()
        self.generation = 0

    def var(self, name: str) -> ScopeVariable:
        """Return the variable of that name in this scope; create it if it does not exist."""
        variable = self._vars.get(name) if isinstance(name, str) else None
        if variable is None:
            name = text("the name of a variable of a scope", name)
            variable = self._vars.setdefault(name, ScopeVariable(name, self))  # another thread may be first
            self.generation += 1
            cache_version.invalidate()
        return variable

    def replace(self, name: str, tensor: Tensor) -> None:
        """Replace the tensor of a variable: programs bound to the old one look it up again."""
        self.var(name).tensor = tensor
        self.generation += 1
        cache_version.invalidate()

    def find_var(self, name: str) -> ScopeVariable | None:
        """Return the variable of that name in this or an outer scope, or None."""
        scope: Scope | None = self
        while scope is not None:
            variable = scope._vars.get(name)
            if variable is not None:
                return variable
            scope = scope.parent
        return None

    def new_scope(self) -> Scope:
        """Return a child scope: it sees this scope's variables and has its own."""
        child = Scope(self)
        self._kids.add(child)
        return child

    new_child = new_scope

    def drop_kids(self) -> None:
        """Drop the references to child scopes, which live as long as they are used."""
        self._kids = WeakObjects()

    def erase(self, names: list[str]) -> None:
        """Remove variables of this scope."""
        self.generation += 1
        cache_version.invalidate()
        for name in names:
            self._vars.pop(name, None)

    def local_var_names(self) -> list[str]:
        """Return the names of this scope's own variables."""
        return list(self._vars)

    def next_run(self, stream: int, seed: int) -> int:
        """Count a run of a random stream in this scope, not in its children; return the number of earlier runs."""
        key = (stream, seed)
        with self._lock:
            number = self._runs.get(key, 0)
            self._runs[key] = number + 1
        return number

    def draw(self, key: int, stream: int, seed: int) -> tuple[int, int, int]:
        """Return the key, run number and stream of a random operator's run in this scope."""
        number = self.next_run(stream, seed)
        return (key if self.random_key is None else self.random_key), number, stream

    def random_runs(self) -> dict[tuple[int, int], int]:
        """Return a copy of the run numbers by stream and seed, for a checkpoint."""
        with self._lock:
            return dict(self._runs)

    def set_random_runs(self, runs: Mapping[tuple[int, int], int]) -> None:
        """Restore the run numbers that :meth:`random_runs` returned."""
        with self._lock:
            self._runs = dict(runs)

    def update_random_runs(self, runs: Mapping[tuple[int, int], int]) -> None:
        """Set the run numbers of these streams only."""
        with self._lock:
            self._runs.update(runs)

    def __repr__(self) -> str:
        return f"Scope({len(self._vars)} variables)"


_scope = ContextDefault("scope", Scope())


def global_scope() -> Scope:
    """Return the default scope of runs."""
    return _scope.variable.get(_scope.process_value)


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Make ``scope`` the global scope of this thread inside the block."""
    with _scope.guard(check_instance("the scope of scope_guard", scope, Scope)):
        yield


def switch_scope(scope: Scope) -> Scope:
    """Make ``scope`` the global scope, inside a guard that of its thread; return the one before."""
    return _scope.switch(check_instance("the scope of switch_scope", scope, Scope))
