"""Lines of files: what ends one, what is unpacked, and what is refused by name."""

import gzip
import hashlib
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.data import lines as lines_module
from t2t_jax.data.lines import blocks_of, check_aligned, read_lines, survey
from tests.refusals import refused


def _file(directory, content, name="lines"):
    path = directory / name
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["lines", "lines.gz"])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb", ["a", "b"]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\n\nb\n\n", ["a", "", "b", ""]),
        (b"a\r\n\r\nb\r\n", ["a", "", "b"]),
        (b"a\rb\r\r\n", ["a\rb\r"]),
        ("Grüß\u2028Gott\x0b\x0c\x1c\x85\n".encode(), ["Grüß\u2028Gott\x0b\x0c\x1c\x85"]),
        (b" a\t\n", [" a\t"]),
    ],
)
def test_only_a_line_feed_ends_a_line(tmp_path, name, content, lines):
    path = _file(tmp_path, content, name)
    assert list(read_lines(path)) == lines
    assert survey(path) == (len(lines), hashlib.sha256(content).hexdigest())


@given(st.lists(st.text(max_size=3), max_size=20), st.booleans())
def test_lines_come_back_as_they_were_written(tmp_path_factory, texts, ends):
    lines = [text.replace("\n", "").replace("\r", "") for text in texts]
    ends = ends or not lines or not lines[-1]  # an empty line is one only if something ends it
    content = "\n".join(lines) + "\n" * (ends and bool(lines))
    path = _file(tmp_path_factory.getbasetemp(), content.encode())
    assert list(read_lines(path)) == lines
    assert survey(path)[0] == len(lines)


@pytest.mark.parametrize("number", [1, 1000, 1001, 2345])  # lines are decoded by the thousand
def test_bytes_that_are_not_utf_8_are_named_with_their_line(tmp_path, number):
    content = b"gut\n" * (number - 1) + b"caf\xe9\n" + b"gut\n" * 10
    lines = read_lines(_file(tmp_path, content, "latin.de"))
    with refused(match=rf"latin\.de line {number}, byte 4 is not UTF-8"):
        list(lines)


@pytest.mark.parametrize("read", [survey, lambda path: list(read_lines(path))])
@pytest.mark.parametrize("damage", ["missing", "directory", "cut", "not gzip"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, read, damage):
    path = tmp_path / "lines.gz"
    if damage == "directory":
        path.mkdir()
    elif damage == "cut":
        path.write_bytes(gzip.compress(b"a\n" * 1000)[:-12])
    elif damage == "not gzip":
        path.write_bytes(b"a\n")
    with refused("lines.gz cannot be read: "):
        read(path)


@pytest.mark.parametrize("name", ["lines", "lines.gz"])
def test_a_line_without_an_end_is_refused_by_its_number(tmp_path, monkeypatch, name):
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 1000)
    path = _file(tmp_path, b"a\n" + b"b" * 999 + b"\n" + b"c" * 1001, name)
    lines = read_lines(path)
    with refused(match=rf"{name} line 3 is longer than 1,000 bytes; write"):
        list(lines)


def test_long_lines_are_read_in_smaller_blocks(monkeypatch):
    monkeypatch.setattr(lines_module, "_BLOCK_BYTES", 10)
    text = b"aaaa\nb\n\n" * 50 + b"end"
    blocks = list(blocks_of(io.BytesIO(text), "text"))
    assert b"".join(blocks) == text
    assert max(map(len, blocks)) < 15
    assert [len(block) for block in blocks_of(io.BytesIO(b"a\nb\nc\n"), "text", 2)] == [4, 2]


def test_files_of_unequal_length_are_refused_by_their_names():
    check_aligned(Path("a.en"), 2, Path("a.de"), 2)
    with refused("a.en has 2 lines, but a.de has 3; line n of one must"):
        check_aligned(Path("a.en"), 2, Path("a.de"), 3)
