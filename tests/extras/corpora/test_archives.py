"""Archives that are damaged, or unpack to far more than they are: one line, and bounded memory."""

import gzip
import io
import lzma
import random
import tarfile
import tracemalloc

import pytest

from t2t_jax.data import lines as lines_module
from t2t_jax.errors import UserError
from t2t_jax.extras.corpora.catalogue import Archive, Text
from t2t_jax.extras.corpora.texts import lines_of

MIB = 1 << 20
PLAIN = Text(Archive("http://x/a.gz"))
MEMBER = Text(Archive("http://x/a.tgz"), "x/a.en")
PACKED_MEMBER = Text(Archive("http://x/a.tgz"), "x/a.en.gz")
MEMORY = Text(Archive("http://x/a.tmx.gz"), language="en")
UNIT = b'<tmx><tu><tuv xml:lang="en"><seg>'


def header(name, size, kind=b"0"):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def tar(content, name="./x/a.en", kind=tarfile.GNU_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for member, text in (("y" * 200, b"other\n"), (name, content)):
            info = tarfile.TarInfo(member)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    return buffer.getvalue()


def pax(*records):
    """A member's header of records such as `size=5`, as POSIX has it."""
    content = b""
    for record in records:
        length = len(record) + 3  # its own digits, a space and a line end
        content += b"%d %s\n" % (length + (length > 9), record)
    return header("x", len(content), b"x") + content.ljust(512, b"\0")


def many(begin, piece=b"a"):
    """A gzip of some bytes and then 64 MiB of a piece."""
    return gzip.compress(begin + piece * (64 * MIB // len(piece)), 1)


LAUGHS = b"".join(
    b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 20 if n else b"ha" * 500) for n in range(8)
)
BOMBS = {
    "one line": (PLAIN, lambda: many(b""), "line 1 is longer than"),
    "one line of a member": (MEMBER, lambda: many(header("x/a.en", 64 * MIB)), "line 1 is longer"),
    "one line of a packed member": (
        PACKED_MEMBER,
        lambda: gzip.compress(tar(many(b""), "x/a.en.gz"), 1),
        "line 1 is longer",
    ),
    "a long name": (MEMBER, lambda: many(header("x", 64 * MIB, b"L")), "more headers than"),
    "records of a member": (MEMBER, lambda: many(header("x", 64 * MIB, b"x")), "more headers"),
    "records of all": (MEMBER, lambda: many(header("x", 64 * MIB, b"g")), "more headers than"),
    "names of names": (MEMBER, lambda: many(b"", header("x", 0, b"L")), "is damaged"),
    "empty members": (MEMBER, lambda: many(b"", header("x", 0)), "more headers than"),
    "a file with holes": (
        MEMBER,
        lambda: gzip.compress(
            pax(b"GNU.sparse.size=9", b"GNU.sparse.map=0,9") + header("x/a.en", 9) + bytes(512)
        ),
        "is damaged",
    ),
    "a map of holes": (
        MEMBER,
        lambda: many(
            pax(b"GNU.sparse.major=1", b"GNU.sparse.minor=0") + header("x/a.en", 64 * MIB), b"1"
        ),
        "is damaged",
    ),
    "a segment": (MEMORY, lambda: many(UNIT), "a unit is larger"),
    "a name of a tag": (MEMORY, lambda: many(b"<tmx><"), "a unit is larger"),
    "a comment": (MEMORY, lambda: many(b"<tmx><!--"), "a unit is larger"),
    "entities of entities": (
        MEMORY,
        lambda: gzip.compress(b"<!DOCTYPE x [" + LAUGHS + b"]>" + UNIT + b"&a7;"),
        "is damaged",
    ),
}


@pytest.mark.parametrize("case", BOMBS)
def test_what_an_archive_unpacks_to_is_bounded(tmp_path, monkeypatch, case):
    monkeypatch.setattr(lines_module, "LONGEST_LINE", 4 * MIB)
    text, make, message = BOMBS[case]
    (tmp_path / text.archive.name).write_bytes(make())
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=message) as refusal:
            list(lines_of(text, tmp_path))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(refusal.value).isprintable()
    assert most < 24 * MIB


@pytest.mark.parametrize(
    ("packed", "found"),
    [
        (gzip.compress(b"a\nb\n") * 3, ["a", "b"] * 3),
        (gzip.compress(b"a\n") + bytes(100), ["a"]),
        (gzip.compress(b""), []),
        (gzip.compress(b"a\n") + b"garbage", "is damaged .Not a gzipped file"),
        (gzip.compress(b"a\n") + gzip.compress(b"b\n")[:-5], "is damaged .Compressed file ended"),
        (gzip.compress(b"a\n")[:-6] + b"??" + bytes(4), "is damaged .CRC check failed"),
        (b"a\n", "is damaged .Not a gzipped file"),
        (lzma.compress(b"a\n"), "is damaged .Not a gzipped file"),
    ],
    ids=["three in one", "zeros", "nothing", "garbage", "cut", "turned", "plain", "xz"],
)
def test_gzip_in_odd_forms(tmp_path, packed, found):
    (tmp_path / "a.gz").write_bytes(packed)
    if isinstance(found, list):
        assert list(lines_of(PLAIN, tmp_path)) == found
        return
    with pytest.raises(UserError, match=found):
        list(lines_of(PLAIN, tmp_path))


@pytest.mark.parametrize("text", [MEMBER, MEMORY, PLAIN], ids=["tar", "memory", "plain"])
def test_no_damage_of_an_archive_raises_anything_but_one_line(tmp_path, text):
    lines = b"one\ntwo\n" * 100
    memory = UNIT + b"one</seg></tuv></tu></tmx>"
    plain = [tar(lines, kind=kind) for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    whole = {MEMBER: plain, MEMORY: [memory], PLAIN: [lines]}[text]
    packed = [gzip.compress(content) for content in whole]
    rng, said = random.Random(0), set()
    for _ in range(300):
        within = bool(rng.getrandbits(1))  # damaged before it was packed, or afterwards
        content = bytearray(rng.choice(whole if within else packed))
        place = rng.randrange(len(content))
        if rng.getrandbits(1):
            content[place : place + rng.randrange(20)] = rng.randbytes(rng.randrange(20))
        else:
            del content[place:]
        damaged = gzip.compress(content, 1) if within else bytes(content)
        (tmp_path / text.archive.name).write_bytes(damaged)
        try:
            list(lines_of(text, tmp_path))
        except UserError as error:
            said.add(str(error))
    assert said
    assert all(map(str.isprintable, said))


def test_a_segment_is_the_text_up_to_a_tag_of_the_last_side_in_its_language(tmp_path):
    english, german = '<tuv xml:lang="en">', '<tuv xml:lang="de">'
    units = [
        f"{english}<prop>p</prop><seg> a <!-- c --> b</seg><seg>no</seg></tuv>",
        f"{english}<seg>no</seg></tuv>{english}<seg>c<it/>no</seg></tuv>",
        f"{german}<seg>no</seg></tuv>",
        f"{english}<seg>&lt;d&gt;</seg></tuv><tuv><seg>no</seg></tuv>",
    ]
    content = f"<tmx><body><tu>{'</tu><tu>'.join(units)}</tu></body></tmx>".encode()
    (tmp_path / "a.tmx.gz").write_bytes(gzip.compress(content))
    assert list(lines_of(MEMORY, tmp_path)) == ["a b", "c", "", "<d>"]
