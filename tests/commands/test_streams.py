"""What commands read and write: any file, pipe or device, whole or not at all."""

import gzip
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from t2t_jax import Config, UserError
from t2t_jax.commands import model_flags, streams
from t2t_jax.commands.entry import entry_command
from t2t_jax.commands.train import train_command
from t2t_jax.system import program
from tests.refusals import refused

AS_ROOT = os.geteuid() == 0


class Shouting:
    """Translates into capitals, so that lines can be told apart."""

    config = Config()

    def nbest(self, lines, num_best, first_line, **settings):
        return [[SimpleNamespace(text=line.strip().upper())] for line in lines]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, and a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_flags, "load_for", lambda *choice, **devices: Shouting())
    Path("lines").write_text("one\ntwo\n")
    return tmp_path


@pytest.fixture
def no_model(here, monkeypatch):
    """What is refused is refused before a model is loaded."""
    monkeypatch.setattr(model_flags, "load_for", pytest.fail)
    return here


def command(line):
    return entry_command(line.split()).run()


TRANSLATE = "translate --workdir w --input lines"


@pytest.mark.parametrize(
    ("content", "written"),
    [
        pytest.param(b"", b"", id="an empty file"),
        pytest.param(b"\n", b"\n", id="a blank line"),
        pytest.param(b"one", b"ONE\n", id="no end of the last line"),
        pytest.param(b"one\r\ntwo\r\n", b"ONE\nTWO\n", id="CR LF"),
        pytest.param(b"a\rb\n", b"A\rB\n", id="CR within a line"),
        pytest.param(b"a\0b\n", b"A\0B\n", id="NUL"),
        pytest.param("a\u2028b\n".encode(), "A\u2028B\n".encode(), id="a Unicode line separator"),
        pytest.param(b"\xef\xbb\xbfone\n", b"ONE\n", id="a byte order mark"),
    ],
)
def test_each_line_of_input_gives_one_line_of_output(here, content, written):
    Path("lines").write_bytes(content)
    assert command(f"{TRANSLATE} --output out") == 0
    assert Path("out").read_bytes() == written


def test_input_is_unpacked_if_its_name_ends_in_gz(here):
    Path("lines.gz").write_bytes(gzip.compress(b"one\r\ntwo\n"))
    assert command("translate --workdir w --input lines.gz --output out") == 0
    assert Path("out").read_text() == "ONE\nTWO\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.gz", b"one\n", r"cannot read a\.gz: Not a gzipped file .*; compress it again"),
        ("a.gz", gzip.compress(b"one\n" * 99)[:-9], r"cannot read a\.gz: .*; compress it again"),
        ("a", "one\n".encode("utf-16"), r"a is not UTF-8 text, but seems to be UTF-16; .* iconv"),
        ("a", b"one\rtwo\r", "a ends its lines only with carriage returns; convert it with: tr"),
    ],
    ids=["not packed", "cut", "UTF-16", "CR alone"],
)
def test_what_cannot_be_read_as_text_is_refused(here, name, content, message):
    Path(name).write_bytes(content)
    with refused(match=message):
        command(f"translate --workdir w --input {name} --output out")
    assert not Path("out").exists()


def test_each_line_that_is_typed_comes_at_once():
    keyboard, terminal = os.openpty()
    with streams.open_input(Path(os.ttyname(terminal))) as chunks:
        for line in ("one", "two"):
            os.write(keyboard, f"{line}\n".encode())
            assert next(chunks) == [line]
    os.close(keyboard)
    os.close(terminal)


def _link(name, target):
    Path(name).symlink_to(target)


OUTPUTS = {
    "a missing directory": (lambda: None, "no/out", "there is no directory .*no; make it first"),
    "a directory": (lambda: Path("out").mkdir(), "out", "Is a directory; name a file"),
    "below a file": (lambda: None, "lines/out", "no directory .*lines; make it first"),
    "a link to itself": (lambda: _link("out", "out"), "out", "out: it is a link that leads back"),
    "links in a circle": (
        lambda: (_link("out", "b"), _link("b", "out")),
        "out",
        "out: it is a link that leads back",
    ),
    "a name too long": (lambda: None, "x" * 300, "File name too long; choose a shorter name"),
    "a link to nowhere": (lambda: _link("out", "no/f"), "out", "no directory .*no; make it first"),
}


@pytest.mark.parametrize(("make", "output", "message"), OUTPUTS.values(), ids=list(OUTPUTS))
@pytest.mark.parametrize(
    "line",
    [TRANSLATE, "score --workdir w --source lines --target lines", "evaluate --workdir w"],
    ids=lambda line: line.split()[0],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(
    no_model, line, make, output, message
):
    make()
    before = sorted(no_model.iterdir())
    with pytest.raises(UserError, match=f"^cannot write .*{message}") as refusal:
        command(f"{line} --output {output}")
    assert ".tmp" not in str(refusal.value)
    assert sorted(no_model.iterdir()) == before


@pytest.mark.skipif(AS_ROOT, reason="permissions do not bind root")
def test_a_directory_that_may_not_be_written_is_refused_before_the_model_is_loaded(no_model):
    Path("closed").mkdir(mode=0o500)
    with pytest.raises(UserError, match="Permission denied; check its permissions"):
        command(f"{TRANSLATE} --output closed/out")


INPUTS = {
    "a missing file": (lambda: None, "nowhere: No such file or directory; check the path"),
    "a directory": (lambda: Path("nowhere").mkdir(), "nowhere: Is a directory; name a file"),
    "a link to itself": (lambda: _link("nowhere", "nowhere"), "symbolic links; a link leads back"),
}


@pytest.mark.parametrize(("make", "message"), INPUTS.values(), ids=list(INPUTS))
def test_an_input_that_cannot_be_read_is_refused_before_the_model_is_loaded(
    no_model, make, message
):
    make()
    with pytest.raises(UserError, match=f"^cannot read .*{message}"):
        command("translate --workdir w --input nowhere --output out")
    assert not Path("out").exists()


def test_output_over_the_input_itself_is_written_once_all_is_read(here, monkeypatch):
    monkeypatch.setattr(streams, "_LINES_AT_ONCE", 1)
    assert command(f"{TRANSLATE} --output lines") == 0
    assert Path("lines").read_text() == "ONE\nTWO\n"


def test_output_goes_where_a_link_leads_and_the_link_stays(here):
    Path("real").write_text("old")
    _link("out", "real")
    assert command(f"{TRANSLATE} --output out") == 0
    assert Path("out").is_symlink()
    assert Path("real").read_text() == "ONE\nTWO\n"


def test_a_name_that_is_not_utf8_is_read_and_written(here):
    source, output = (os.fsdecode(name) for name in (b"in\xe9", b"out\xe9"))
    Path(source).write_text("one\n")
    assert command(f"translate --workdir w --input {source} --output {output}") == 0
    assert Path(output).read_text() == "ONE\n"


def test_a_name_as_long_as_names_may_be_is_written(here):
    assert command(f"{TRANSLATE} --output {'x' * 255}") == 0
    assert Path("x" * 255).read_text() == "ONE\nTWO\n"


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(here, monkeypatch):
    monkeypatch.setattr(streams, "_LINES_AT_ONCE", 2)
    shout = Shouting.nbest

    def grow(self, lines, *rest, **settings):
        if lines[0] == "one":
            with open("lines", "a") as file:
                file.write("three\n")
        return shout(self, lines, *rest, **settings)

    monkeypatch.setattr(Shouting, "nbest", grow)
    assert command(f"{TRANSLATE} --output out") == 0
    assert Path("out").read_text() == "ONE\nTWO\nTHREE\n"


def test_input_comes_from_a_named_pipe_and_output_goes_into_one(here):
    os.mkfifo("in")
    os.mkfifo("out")
    with ThreadPoolExecutor() as others:
        others.submit(Path("in").write_text, "one\n")
        written = others.submit(Path("out").read_text)
        assert command("translate --workdir w --input in --output out") == 0
    assert written.result() == "ONE\n"
    assert Path("out").is_fifo()  # which is not replaced


def test_a_full_device_is_named(here):
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        command(f"{TRANSLATE} --output /dev/full")


def test_two_translations_into_one_file_at_once_leave_one_of_them_whole(here):
    Path("many").write_text("a line of the other\n" * 20_000)
    lines = [TRANSLATE, "translate --workdir w --input many"]
    with ThreadPoolExecutor(2) as both:
        assert list(both.map(command, [f"{line} --output out" for line in lines])) == [0, 0]
    assert Path("out").read_text() in ("ONE\nTWO\n", "A LINE OF THE OTHER\n" * 20_000)
    assert sorted(path.name for path in here.iterdir()) == ["lines", "many", "out"]


def test_a_failure_midway_leaves_what_was_there(here, monkeypatch):
    monkeypatch.setattr(streams, "_LINES_AT_ONCE", 1)
    Path("out").write_text("old")
    Path("lines").write_bytes(b"one\n\xff\n")
    with pytest.raises(UserError, match=r"lines line 2, byte 1 is not UTF-8"):
        command(f"{TRANSLATE} --output out")
    assert Path("out").read_text() == "old"
    assert sorted(path.name for path in here.iterdir()) == ["lines", "out"]


@pytest.mark.parametrize(
    ("stream", "line", "message"),
    [
        ("stdin", "translate --workdir w", "standard input is closed; name a file with --input"),
        ("stdout", TRANSLATE, "the result would be lost; name a file with --output"),
        ("stdout", "score --workdir w --source lines --target lines", "name a file with --output"),
        ("stdout", "evaluate --workdir w", "name an output file with --output"),
        ("stdout", "compare --references lines --hypotheses lines", "the result would be lost"),
    ],
)
def test_a_closed_stream_that_is_needed_is_refused(no_model, monkeypatch, stream, line, message):
    monkeypatch.setattr(program, "_closed", {stream})
    with pytest.raises(UserError, match=message):
        command(line)


def test_closed_streams_that_are_not_needed_do_not_matter(here, monkeypatch):
    monkeypatch.setattr(program, "_closed", {"stdin", "stdout", "stderr"})
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert command(f"{TRANSLATE} --output out") == 0
    assert Path("out").read_text() == "ONE\nTWO\n"


def test_the_cache_may_be_given_as_nothing_which_is_the_users_own():
    line = ["--config", "base", "--data.cache-dir", "", "--workdir=run"]
    assert train_command(line).fields.data.cache_dir == ""


def test_a_run_directory_whose_name_is_not_utf8_is_refused(no_model):
    with pytest.raises(UserError, match=r"b'run\\xe9' is not UTF-8") as refusal:
        command(f"translate --input lines --workdir {os.fsdecode(b'run' + bytes([0xE9]))}")
    str(refusal.value).encode()
