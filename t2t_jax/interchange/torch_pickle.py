"""A reader of pickles as data: dictionaries, lists, numbers, strings, tensors and settings.

Python's `pickle` calls what a pickle names, and a short pickle can keep it busy without end, or
fill the memory: with a tuple of tuples of tuples that is a key, or with a memo of a billion places.
Here `pickletools` takes a pickle apart into operations, and only those that weights need are
carried out: each takes a bounded time, and their number is bounded.
"""

import io
import pickletools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

File: TypeAlias = io.BufferedReader | io.BytesIO

_MOST_OPERATIONS = 1_000_000
_MOST_BITS = 128
_MOST_PARTS = 8
_KEYS = (str, bytes, int, float, type(None))


class Settings:
    """The fields or entries of an object of another program, without its class."""

    def __init__(self, state: Mapping[Any, Any] | None = None) -> None:
        """Keep the fields or the entries of the object."""
        self.state: dict[Any, Any] = dict(state or {})


class Machine:
    """A machine with a stack and a memo, which carries out the operations of a pickle."""

    def __init__(
        self,
        find: Callable[[str, str], Callable[..., Any]],
        persistent: Callable[[Any], Any],
    ) -> None:
        """Make a machine.

        Args:
          find: takes the module and the name of a function or class, and gives the stand-in that
            is called; its time and the size of its result are to be bounded by its arguments.
          persistent: takes the id of an object outside of the pickle, and gives the object.
        """
        self.find = find
        self.persistent = persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def load(self, file: File) -> Any:
        """Return the value of the next pickle in a file.

        Raises:
          Exception: of any class, if the pickle is damaged.
        """
        for number, (operation, argument, _) in enumerate(pickletools.genops(file)):
            if number == _MOST_OPERATIONS:
                raise ValueError(f"it has more than {_MOST_OPERATIONS:,} operations")
            if isinstance(argument, int) and argument.bit_length() > _MOST_BITS:
                raise ValueError(f"it has an integer of {argument.bit_length():,} bits")
            name = operation.name
            if name in _ACTIONS:
                _ACTIONS[name](self, argument)
            elif name in _NEW:
                self.stack.append(_NEW[name]())
            elif name in _VALUES:
                self.stack.append(argument)
            elif name not in ("PROTO", "FRAME", "STOP"):
                raise ValueError(f"it has the operation {name}, which weights do not need")
        return self.stack.pop()

    def pop_several(self, number: int) -> list[Any]:
        """Take the last `number` values from the stack."""
        if number > len(self.stack):
            raise ValueError("it takes more from its stack than there is")
        taken = self.stack[len(self.stack) - number :]
        del self.stack[len(self.stack) - number :]
        return taken

    def pop_to_mark(self) -> list[Any]:
        """Take all values from the stack that are above its last mark."""
        return self.pop_several(len(self.stack) - self.marks.pop())

    def remember(self, place: int) -> None:
        """Keep the last value of the stack in a place of the memo."""
        self.memo[place] = self.stack[-1]

    def append(self, values: list[Any]) -> None:
        """Add elements to the list that is last on the stack."""
        there = self.stack[-1]
        if isinstance(there, Settings):
            there.state.update(zip(range(len(there.state), 1 << 62), values, strict=False))
        elif isinstance(there, list):
            there.extend(values)
        else:
            raise ValueError("it adds elements to what is no list")

    def set_items(self, values: list[Any]) -> None:
        """Set entries of the dictionary that is last on the stack."""
        there = self.stack[-1]
        entries = there.state if isinstance(there, Settings) else there
        if not isinstance(entries, dict):
            raise ValueError("it sets entries of what is no dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            parts = key if type(key) is tuple and len(key) <= _MOST_PARTS else (key,)
            if not all(isinstance(part, _KEYS) for part in parts):
                raise ValueError("a key of a dictionary is neither text nor a number")
            entries[key] = value

    def named(self, module: Any, name: Any) -> None:
        """Put the stand-in for a function or class on the stack."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("it names a function by what is no text")
        self.stack.append(self.find(module, name))

    def call(self, arguments: Any) -> None:
        """Replace the function that is last on the stack by its result."""
        function = self.stack.pop()
        if not callable(function) or not isinstance(arguments, tuple):
            raise ValueError("it calls what is no function")
        self.stack.append(function(*arguments))

    def build(self, state: Any) -> None:
        """Set the fields of the last object on the stack, if its class is `Settings`."""
        there = self.stack[-1]
        if isinstance(there, Settings) and isinstance(state, dict):
            there.state = state


_Action: TypeAlias = Callable[[Machine, Any], Any]
_ACTIONS: Mapping[str, _Action] = {
    "MARK": lambda on, _: on.marks.append(len(on.stack)),
    "POP": lambda on, _: on.stack.pop(),
    "POP_MARK": lambda on, _: on.pop_to_mark(),
    "DUP": lambda on, _: on.stack.append(on.stack[-1]),
    "TUPLE": lambda on, _: on.stack.append(tuple(on.pop_to_mark())),
    "TUPLE1": lambda on, _: on.stack.append(tuple(on.pop_several(1))),
    "TUPLE2": lambda on, _: on.stack.append(tuple(on.pop_several(2))),
    "TUPLE3": lambda on, _: on.stack.append(tuple(on.pop_several(3))),
    "LIST": lambda on, _: on.stack.append(on.pop_to_mark()),
    "APPEND": lambda on, _: on.append(on.pop_several(1)),
    "APPENDS": lambda on, _: on.append(on.pop_to_mark()),
    "SETITEM": lambda on, _: on.set_items(on.pop_several(2)),
    "SETITEMS": lambda on, _: on.set_items(on.pop_to_mark()),
    "GLOBAL": lambda on, names: on.named(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda on, _: on.named(*on.pop_several(2)),
    "REDUCE": lambda on, _: on.call(on.stack.pop()),
    "NEWOBJ": lambda on, _: on.call(on.stack.pop()),
    "BUILD": lambda on, _: on.build(on.stack.pop()),
    "BINPERSID": lambda on, _: on.stack.append(on.persistent(on.stack.pop())),
    "MEMOIZE": lambda on, _: on.remember(len(on.memo)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), Machine.remember),
    **dict.fromkeys(
        ("GET", "BINGET", "LONG_BINGET"), lambda on, place: on.stack.append(on.memo[place])
    ),
}
_NEW: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
_VALUES = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
)
