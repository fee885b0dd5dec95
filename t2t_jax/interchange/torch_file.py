"""Files of PyTorch, read without PyTorch and without executing anything that is in them.

What `torch.save` writes is a pickle with the numbers of its tensors beside it: in a zip archive, or
in older files after the pickle. A pickle may name any function of Python and call it. This reader
knows the few names that weights need, takes settings of the programs that train models as plain
data, and refuses a file with any other name.
"""

import io
import math
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float32, Shaped

from t2t_jax.errors import UserError

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_BFLOAT16 = "bfloat16"
_DTYPES: Mapping[str, str] = MappingProxyType(
    {
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
)
# What these programs define is data once nothing of it is called.
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
_File: TypeAlias = io.BufferedReader | io.BytesIO


class Settings:
    """An object of another program, of which there is only the data."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Keep nothing of what the object would be made from."""
        self.state: dict[Any, Any] = {}

    def __setstate__(self, state: Any) -> None:
        """Take the object's fields."""
        self.state = dict(state) if isinstance(state, Mapping) else {}

    def __setitem__(self, key: Any, value: Any) -> None:
        """Take an entry, of an object that is a dictionary."""
        self.state[key] = value

    def append(self, value: Any) -> None:
        """Take an element, of an object that is a list."""
        self.state[len(self.state)] = value


class _Dictionary(dict[Any, Any]):
    """A dictionary without what else is kept with it: versions, in that of a module's tensors."""

    def __setstate__(self, state: Any) -> None:
        """Keep nothing of it."""


@dataclass
class _Storage:
    """The numbers of tensors; those of older files come after the pickle."""

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
    """A tensor that is made of its storage once that has its numbers."""

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
        return np.lib.stride_tricks.as_strided(place, self.shape, strides).copy()


def _rebuild_tensor(storage: _Storage, offset: int, shape: Any, strides: Any, *_: Any) -> _Tensor:
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    return data


_KNOWN: Mapping[tuple[str, str], Callable[..., Any]] = MappingProxyType(
    {
        ("collections", "OrderedDict"): _Dictionary,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
        ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
        ("torch", "Size"): tuple,
    }
)


class _Unpickler(pickle.Unpickler):
    """Makes of a pickle dictionaries, lists, numbers, strings, tensors and `Settings`."""

    def __init__(self, file: _File, storages: dict[str, _Storage]) -> None:
        super().__init__(file)
        self._storages = storages

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a function or class that the pickle names."""
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module.partition(".")[0] in _SETTINGS_OF or (module in _BUILTIN and name in _TYPES):
            return Settings
        raise UserError(f"has code, which calls {module}.{name}, and nothing of it was executed")

    def persistent_load(self, pid: Any) -> _Storage:
        """The storage of a tensor."""
        kind, dtype, key, _, size, *view = pid
        if kind != "storage" or dtype not in _DTYPES.values() or any(view):
            raise ValueError("there is a tensor of an unknown kind")
        return self._storages.setdefault(str(key), _Storage(dtype, int(size)))


def read_torch_file(path: Path) -> Any:
    """What `torch.save` has written.

    Args:
      path: the file.

    Returns:
      The dictionaries, lists, numbers and strings of the file, with NumPy arrays for tensors and
      `Settings` for objects of known programs.

    Raises:
      UserError: the file is missing, or damaged, or no such file, or has code.
    """
    try:
        with path.open("rb") as file:
            read = _read_archive if zipfile.is_zipfile(file) else _read_legacy
            file.seek(0)
            return _with_arrays(read(file))
    except UserError as error:
        raise UserError(f"{path} {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{path} is damaged, or no file of PyTorch: {error}") from error


def _read_archive(file: _File) -> Any:
    storages: dict[str, _Storage] = {}
    with zipfile.ZipFile(file) as archive:
        [pickled] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        found = _Unpickler(io.BytesIO(archive.read(pickled)), storages).load()
        place = pickled.removesuffix("data.pkl") + "data/"
        for key, storage in storages.items():
            if archive.getinfo(place + key).file_size != storage.num_bytes:
                raise ValueError("the numbers of a tensor are cut off")
            storage.fill(archive.read(place + key))
    return found


def _read_legacy(file: _File) -> Any:
    """Read a file of PyTorch before 1.6: several pickles, then the numbers of each storage."""
    storages: dict[str, _Storage] = {}
    magic, _, _ = (_Unpickler(file, storages).load() for _ in range(3))
    if magic != _LEGACY_MAGIC:
        raise ValueError("it does not begin as such files do")
    found = _Unpickler(file, storages).load()
    for key in _Unpickler(file, storages).load():
        storage = storages[str(key)]
        (size,) = struct.unpack("<q", file.read(8))
        if size != storage.size:
            raise ValueError("the numbers of a tensor are cut off")
        storage.fill(file.read(storage.num_bytes))
    return found


def _with_arrays(node: Any) -> Any:
    """The same tree with an array in the place of every tensor."""
    if isinstance(node, _Tensor):
        return node.array()
    if isinstance(node, dict):
        return {key: _with_arrays(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_with_arrays(value) for value in node]
    return node


def tensors_of(found: Any, path: Path) -> dict[str, Float32[np.ndarray, "..."]]:
    """The tensors of a dictionary that `read_torch_file` gave, in float32.

    Args:
      found: the dictionary.
      path: the file, for errors.

    Raises:
      UserError: it is no dictionary with names and tensors.
    """
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UserError(f"{path} has no dictionary of tensors, which weights are")
    arrays = {name: x for name, x in found.items() if isinstance(x, np.ndarray)}
    if not arrays:
        raise UserError(f"{path} has no dictionary of tensors, which weights are")
    return {name: np.asarray(array, np.float32) for name, array in arrays.items()}
