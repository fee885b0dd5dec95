"""JSON of a run: what is whole is read, what is damaged is named."""

import json
import os

import pytest

from t2t_jax.errors import UserError
from t2t_jax.system.records import (
    NUMBER,
    append_line,
    as_line,
    parse_object,
    read_object,
    read_records,
    schema,
)

SCHEMA = schema({"step": int, "of": str}, {"loss": NUMBER})

DAMAGED = {
    "nothing": (b"", "not JSON"),
    "JSON that was cut": (b'{"step": 1, "of"', "not JSON"),
    "bytes that are not UTF-8": (b'{"step": 1, "of": "\xff"}', "not UTF-8"),
    "a list": (b"[1]", "Expected `object`, got `array`"),
    "null": (b"null", "Expected `object`, got `null`"),
    "100,000 levels": (b"[" * 100_000, "nested too deeply"),
    "a field that is missing": (b'{"step": 1}', "missing required field `of`"),
    "a field of another type": (b'{"step": "1", "of": "dev"}', r"`int`, got `str` - at `\$\.step`"),
    "a truth value for a number": (b'{"step": true, "of": "dev"}', "got `bool`"),
    "an optional field of another type": (
        b'{"step": 1, "of": "dev", "loss": "2"}',
        r"Expected `float \| null`, got `str` - at `\$\.loss`",
    ),
    "a step beyond 64 bits": (
        b'{"step": 1%s, "of": "dev"}' % (b"0" * 400),
        r"Expected `int`, got `float` - at `\$\.step`",
    ),
}


@pytest.mark.parametrize(("text", "told"), DAMAGED.values(), ids=DAMAGED.keys())
def test_what_does_not_fit_is_told_by_field(tmp_path, text, told):
    with pytest.raises(ValueError, match=told):
        parse_object(text, SCHEMA)
    path = tmp_path / "record.json"
    path.write_bytes(text)
    with pytest.raises(UserError, match=rf"{path} is damaged \(.*{told}.*\); remove it$"):
        read_object(path, SCHEMA, "remove it")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.json cannot be read: No such file"):
        read_object(tmp_path / "gone.json", SCHEMA, "remove it")


def test_a_named_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(UserError, match=r"pipe\.json cannot be read: it is not a regular file"):
        read_object(tmp_path / "pipe.json", SCHEMA, "remove it")


@pytest.mark.parametrize("line", [text for text, _ in DAMAGED.values() if text], ids=repr)
def test_a_damaged_line_of_a_log_is_left_out_and_named(tmp_path, capsys, line):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1, "of": "dev"}\n' + line + b'\n{"step": 3, "of": "dev"}\n')
    assert [record["step"] for record in read_records(path, SCHEMA)] == [1, 3]
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {path} line 2 is left out: ")


def test_a_line_that_is_being_written_is_left_out_in_silence(tmp_path, capsys):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1, "of": "dev"}\n{"step": 2, "of": "dev"}')
    assert [record["step"] for record in read_records(path, SCHEMA)] == [1]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("before", "whole"), [(b"", []), (b'{"a": 1}\n', [1]), (b'{"a": 1', [])])
def test_a_record_is_added_on_a_line_of_its_own(tmp_path, before, whole):
    path = tmp_path / "scores.jsonl"
    path.write_bytes(before)
    append_line(path, {"a": 2, "b": float("nan")})
    added = path.read_bytes().splitlines()[-1]
    assert json.loads(added) == {"a": 2, "b": None}
    assert [record["a"] for record in read_records(path, dict)] == [*whole, 2]


def test_fields_that_no_reader_knows_are_kept():
    assert parse_object('{"step": 1, "of": "dev", "new": [1]}', SCHEMA)["new"] == [1]


def test_null_stands_for_what_is_not_finite_at_any_depth():
    record = {"loss": float("nan"), "metrics": {"a": [1.5, float("inf")]}, "steps": (1, 2)}
    assert as_line(record) == '{"loss": null, "metrics": {"a": [1.5, null]}, "steps": [1, 2]}'
