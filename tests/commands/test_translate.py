"""The flags of `translate`."""

import t2t_jax
from t2t_jax.commands.entry import entry_command
from tests.commands.untrained import SOURCES
from tests.refusals import refused

LINES = [*SOURCES, ""]


def command(*arguments):
    return entry_command([str(argument) for argument in arguments]).run()


def translate(workdir, folder, *flags):
    """The lines of the output that a command writes."""
    (folder / "lines").write_text("".join(f"{line}\n" for line in LINES))
    files = ("--workdir", workdir, "--input", folder / "lines", "--output", folder / "out")
    assert command("translate", *files, *flags) == 0
    return (folder / "out").read_text().splitlines()


def test_prefixes_are_one_for_all_lines_or_one_for_each(workdir, folder):
    translator = t2t_jax.load(workdir)
    found = translate(workdir, folder, "--prefix", "das Haus")
    assert found == translator.translate(LINES, prefixes=["das Haus"] * 5)
    assert all(line.startswith("das Haus") for line in found[:4])
    prefixes = ["der", "", "zwei Hunde", "das", ""]
    (folder / "prefixes").write_text("".join(f"{line}\n" for line in prefixes))
    found = translate(workdir, folder, "--prefixes", folder / "prefixes")
    assert found == translator.translate(LINES, prefixes=prefixes)
    (folder / "out").unlink()
    (folder / "prefixes").write_text("der\n")
    with refused("prefixes has 1 lines, but the input has 5"):
        translate(workdir, folder, "--prefixes", folder / "prefixes")
    assert not (folder / "out").exists()


def test_constraints_are_flags(workdir, folder):
    [first, *_] = translate(workdir, folder)
    words = first.split()[:2]
    found = translate(workdir, folder, "--forbidden", *words, "--min-length", 4)
    assert not set(words) & {word for line in found for word in line.split()}
    assert found[4] == ""
    flags = {"forbidden": words, "min_length": 4}
    assert found == t2t_jax.load(workdir).translate(LINES, **flags)


def test_flags_that_do_not_go_together_are_refused(workdir, folder):
    with refused("--prefix and --prefixes cannot be combined"):
        translate(workdir, folder, "--prefix", "a", "--prefixes", "b")
