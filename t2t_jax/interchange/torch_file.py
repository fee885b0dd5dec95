"""A reader of files of PyTorch, which needs no PyTorch and executes nothing in the files.

`torch.save` writes a pickle with the numbers of its tensors beside it: in a zip archive, or in
older files after the pickle. A pickle may name any function of Python and call it. This reader
knows the few names that weights need, takes settings of the programs that train models as plain
data, and refuses a file with any other name. A small file takes little time and memory, whatever
sizes it states.
"""

import io
import math
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from t2t_jax.errors import UserError, in_one_line, way_out_of
from t2t_jax.interchange.torch_pickle import File, Machine, Settings
from t2t_jax.system.regular_file import regular

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_BFLOAT16 = "bfloat16"
_DTYPES: Mapping[str, str] = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": _BFLOAT16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
# Objects of these programs are read as plain data, as none of their code is called.
_SETTINGS_OF = (
    "_codecs",
    "argparse",
    "collections",
    "fairseq",
    "numpy",
    "omegaconf",
    "torch",
    "typing",
)
# Settings of OmegaConf name the types of their values.
_BUILTIN = ("builtins", "__builtin__")
_TYPES = ("bool", "dict", "float", "int", "list", "object", "str", "tuple")
_MOST_VALUES = 1_000_000
_MOST_COPIES = 8
_MOST_AXES = 32


@dataclass
class _Storage:
    """The numbers that tensors lie in, which are filled in after the pickle is read."""

    dtype: str
    size: int
    numbers: Shaped[np.ndarray, " size"] | None = None

    @property
    def num_bytes(self) -> int:
        return self.size * (2 if self.dtype == _BFLOAT16 else np.dtype(self.dtype).itemsize)

    def fill(self, data: bytes) -> None:
        if len(data) != self.num_bytes:
            raise ValueError("the numbers of a tensor are cut off")
        if self.dtype == _BFLOAT16:
            self.numbers = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        else:
            self.numbers = np.frombuffer(data, self.dtype)


@dataclass(frozen=True)
class _Tensor:
    """The place of a tensor in a storage; `array` gives its numbers once the storage is filled."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self) -> Shaped[np.ndarray, "..."]:
        numbers = self.storage.numbers
        if numbers is None or min((self.offset, *self.shape, *self.strides)) < 0:
            raise ValueError("a tensor is not in its storage")
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        whole = math.prod(self.shape)
        if whole and self.offset + max(last, whole - 1) >= len(numbers):
            raise ValueError("a tensor is not in its storage")
        strides = [stride * numbers.itemsize for stride in self.strides]
        place = numbers[self.offset :]
        return np.lib.stride_tricks.as_strided(place, self.shape, strides, writeable=False)


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    known = isinstance(storage, _Storage) and len(shape) == len(strides) <= _MOST_AXES
    if not known or {type(n) for n in (offset, *shape, *strides)} != {int}:
        raise ValueError("a tensor has no place in a storage")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _first(data: Any, *_: Any) -> Any:
    return data


def _no_entries(*arguments: Any) -> dict[Any, Any]:
    if any(arguments):
        raise ValueError("a dictionary is made in a way that PyTorch does not use")
    return {}


_KNOWN: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _no_entries,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch", "Size"): _first,
}


def _find(module: str, name: str) -> Any:
    """Return the stand-in for a function or class that a pickle names, or refuse the name."""
    if (module, name) in _KNOWN:
        return _KNOWN[module, name]
    if module == "torch" and name in _DTYPES:
        return _DTYPES[name]
    if module.partition(".")[0] in _SETTINGS_OF or (module in _BUILTIN and name in _TYPES):
        return lambda *_: Settings()  # whose fields the pickle sets later
    called = ascii(f"{module}.{name}")[1:-1]
    raise UserError(f"has code, which calls {called:.80}, and nothing of it was executed")


def read_torch_file(path: Path) -> Any:
    """Read a file that `torch.save` has written.

    Returns:
      The dictionaries, lists, numbers and strings of the file, with NumPy arrays for tensors and
      `Settings` for objects of known programs.

    Raises:
      UserError: the file is missing, or damaged, or no file of PyTorch, or has code.
    """
    try:
        with regular(path).open("rb") as file:
            read = _read_archive if zipfile.is_zipfile(file) else _read_legacy
            file.seek(0)
            return read(file, path.stat().st_size)
    except UserError as error:
        raise UserError(f"{path} {error}") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}); {way_out_of(error)}"
        ) from error
    except Exception as error:  # a damaged pickle may raise anything
        why = in_one_line(error) or type(error).__name__
        raise UserError(
            f"{path} is damaged, or no file of PyTorch: {why:.100}; copy it anew"
        ) from error


class _Storages(dict[str, _Storage]):
    """The storages of a file, by their keys."""

    def named(self, pid: Any) -> _Storage:
        """Return the storage that a pickle names, which is made at its first use."""
        match pid:
            case ("storage", str(dtype), str(key), _, int(size), *view) if not any(view):
                return self.setdefault(key, _Storage(dtype, size))
        raise ValueError("there is a tensor of an unknown kind")


def _read_archive(file: File, size: int) -> Any:
    storages = _Storages()
    with zipfile.ZipFile(file) as archive:
        # PyTorch compresses nothing: members that claim to be larger than the file are refused.
        if sum(member.file_size for member in archive.infolist()) > size:
            raise ValueError("its parts are larger than the whole")
        [pickled] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        found = Machine(_find, storages.named).load(io.BytesIO(archive.read(pickled)))
        place = pickled.removesuffix("data.pkl") + "data/"
        for key, storage in storages.items():
            if archive.getinfo(place + key).file_size != storage.num_bytes:
                raise ValueError("the numbers of a tensor are cut off")
            storage.fill(archive.read(place + key))
    return _unfolded(found, storages)


def _read_legacy(file: File, size: int) -> Any:
    """Read a file of PyTorch before 1.6: several pickles, then the numbers of each storage."""
    storages = _Storages()
    magic, _, _ = (Machine(_find, storages.named).load(file) for _ in range(3))
    if magic != _LEGACY_MAGIC:
        raise ValueError("it does not begin as such files do")
    found = Machine(_find, storages.named).load(file)
    for key in Machine(_find, storages.named).load(file):
        storage = storages[key]
        (length,) = struct.unpack("<q", file.read(8))
        if length != storage.size or not 0 <= storage.num_bytes <= size:
            raise ValueError("the numbers of a tensor are cut off")
        storage.fill(file.read(storage.num_bytes))
    return _unfolded(found, storages)


def _unfolded(found: Any, storages: Mapping[str, _Storage]) -> Any:
    """Return the same tree with an array in the place of every tensor.

    A pickle may name one list many times, and that list another one many times, so the number of
    values in the tree is bounded; so are the numbers in tensors that overlap in a storage.
    """
    values_left = _MOST_VALUES
    numbers_left = _MOST_COPIES * sum(storage.size for storage in storages.values())

    def unfold(node: Any) -> Any:
        nonlocal values_left, numbers_left
        values_left -= 1
        if isinstance(node, _Tensor):
            array = node.array()
            numbers_left -= array.size
            node = array
        if min(values_left, numbers_left) < 0:
            raise RecursionError
        if isinstance(node, Settings):
            # A value in a container of OmegaConf has the container as its parent: that is a cycle.
            return Settings(unfold({k: x for k, x in node.state.items() if k != "_parent"}))
        if isinstance(node, dict):
            return {key: unfold(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return [unfold(value) for value in node]
        return node

    try:
        return unfold(found)
    except RecursionError as error:
        raise ValueError("it holds itself, or unfolds to far more than it is") from error


def tensors_of(found: Any, path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return the tensors of a dictionary that `read_torch_file` gave.

    Raises:
      UserError: `found` is no dictionary, or has no tensor, or has a key that is no text.
    """
    names = found if isinstance(found, dict) else {}
    arrays = {name: x for name, x in names.items() if isinstance(x, np.ndarray)}
    if not arrays or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} has no dictionary of tensors, which weights are")
    return arrays
