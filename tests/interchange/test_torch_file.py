"""Files of PyTorch: small ones take little time and memory, whatever they say of themselves."""

import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from t2t_jax import UserError
from t2t_jax.interchange.torch_file import read_torch_file, tensors_of


def archive(path: Path, pickled: bytes, numbers: bytes = b"", **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as opened:
        opened.writestr("archive/data.pkl", pickled)
        opened.writestr("archive/data/0", numbers)
    return path


def doublings(empty: bytes, pair: Callable[[bytes], bytes]) -> bytes:
    """A pickle of something twice in something twice in something, forty times."""
    lines = [empty + b"q\x00"]
    for number in range(40):
        twice = b"h" + bytes([number])
        lines.append(pair(twice) + b"q" + bytes([number + 1]))
    return b"\x80\x02" + b"".join(lines)


_STORAGE = (
    b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuM\x00\x01tQ"
)
_TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + _STORAGE + b"K\x00M\x00\x01\x85K\x01\x85tR"
_PICKLES = {
    "forty doublings of a list": (
        doublings(b"]", lambda twice: b"](" + twice * 2 + b"e") + b".",
        "unfolds to far more",
    ),
    "forty doublings of a tuple that is a key": (
        doublings(b")", lambda twice: twice * 2 + b"\x86") + b"q\xff}h\xffNs.",
        "neither text nor a number",
    ),
    "a list that holds itself": (b"\x80\x02]q\x00h\x00a.", "holds itself"),
    "a hundred thousand levels": (b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "unfolds"),
    "a memo of two billion places": (b"\x80\x02]r\xff\xff\xff\x7f0N.", "no dictionary of tensors"),
    "two million operations": (b"\x80\x02" + b"N0" * 1_000_000 + b"N.", "1,000,000 operations"),
    "a number of 8,000 bits": (b"\x80\x02\x8b\xe8\x03\x00\x00" + b"\x7f" * 1_000 + b".", "bits"),
    "a string that claims 4 GB": (b"\x80\x02X\xff\xff\xff\xffabc.", "is damaged"),
    "a set": (b"\x80\x04\x8f.", "has the operation EMPTY_SET"),
    "an operation that is none": (b"\x80\x02\xff.", "is damaged"),
    "a stack that is empty": (b"\x80\x020.", "is damaged"),
    "a function that is a number": (b"\x80\x02K\x01)R.", "calls what is no function"),
    "one tensor a hundred times": (b"\x80\x02](" + _TENSOR * 100 + b"e.", "unfolds to far more"),
    "a tensor of a storage that is short": (b"\x80\x02" + _TENSOR + b".", "cut off"),
    "code in a state": (b"\x80\x02cargparse\nNamespace\n)\x81cos\nsystem\nb.", "calls os.system"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("pickled", "said"), _PICKLES.values(), ids=_PICKLES.keys())
def test_a_small_pickle_takes_little(pickled, said, tmp_path):
    path = archive(tmp_path / "weights.bin", pickled, bytes(4 if said == "cut off" else 4 * 256))
    with pytest.raises(UserError, match=rf"weights\.bin .*{said}") as refusal:
        tensors_of(read_torch_file(path), path)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_pickle_is_read_as_pickle_reads_it(protocol, tmp_path):
    content = {"a": [1, -(2**40), 2.5, True, None, "é"], 3: {"b": [1, [2, []]]}, ("c", 1): {}}
    path = archive(tmp_path / "file.pt", pickle.dumps(content, protocol))
    assert read_torch_file(path) == content


def test_an_archive_that_unfolds_is_refused(tmp_path):
    packed = {"compression": zipfile.ZIP_DEFLATED}
    path = archive(tmp_path / "bomb.pt", b"\x80\x02N." + bytes(10_000_000), **packed)
    with pytest.raises(UserError, match=r"bomb\.pt is damaged, .* larger than the whole"):
        read_torch_file(path)


def test_a_member_that_lies_about_its_size_is_refused(tmp_path):
    path = archive(tmp_path / "liar.pt", b"\x80\x02" + _TENSOR + b".", bytes(4 * 256))
    content = path.read_bytes()
    path.write_bytes(content.replace(struct.pack("<LL", 1024, 1024), struct.pack("<LL", 1, 1024)))
    with pytest.raises(UserError, match=r"liar\.pt is damaged"):
        read_torch_file(path)
