"""The reference that the site has of the config and of the commands is complete."""

import importlib.util
import re

import pytest

from t2t_jax.commands.entry import all_commands
from t2t_jax.config.config import known_fields
from tests.programs import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def reference():
    """The extension of the site that makes the reference."""
    spec = importlib.util.spec_from_file_location("reference", DOCS / "extensions/reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_field_of_the_config_is_there_once_with_its_type_default_and_meaning(reference):
    entries = re.findall(
        r"```\{confval\} (.+)\n:type: `(.+)`\n:default: `(.+)`\n\n(\S.+)\n",
        reference.config_reference(),
    )
    assert [(path, default) for path, _, default, _ in entries] == [
        (path, repr(leaf.default)) for path, leaf in known_fields().items()
    ]


def test_the_summary_has_every_field_once_in_a_line_under_the_families_that_have_it(reference):
    text = reference.config_summary()
    rows = re.findall(r"^\| \{confval\}`(.+?)` \| `(.+?)` \| (\S.+) \|$", text, re.MULTILINE)
    assert {path: default for path, default, _ in rows} == {
        path: repr(leaf.default) for path, leaf in known_fields().items()
    }
    assert len(rows) == len(known_fields())
    of_decoders = text.split("Where `model.architecture` is `'decoder_only'`:\n")[1]
    assert of_decoders.split("\n\n")[0].count("{confval}`model.prefix_attention`") == 1


def test_a_field_has_what_the_paper_and_the_config_say_of_it(reference):
    text = reference.config_reference()
    fields = {entry.split("\n")[0]: entry for entry in text.split("```{confval} ")[1:]}
    assert ":type: `'post' | 'pre' | 'deep'`" in fields["model.norm_order"]
    assert "Section 3.2.2 of the paper: d_k, `64`." in fields["model.d_k"]
    assert "Section 5.3 of the paper: warmup steps, `4000`." in fields["training.warmup_steps"]
    assert "may be continued with another value" in fields["parallel.fsdp"]
    assert "may be continued with another value" not in fields["model.d_ff"]


def test_every_command_is_there_with_its_flags(reference):
    text = reference.command_reference()
    commands = [name for group in all_commands().values() for name in group]
    assert re.findall(r"^### t2t-jax (.+)$", text, re.MULTILINE) == commands
    sections = dict(zip(commands, text.split("\n### ")[1:], strict=True))
    assert "```{option} --prefixes PATH|None\nFile with a prefix" in sections["translate"]
    assert "```{option} --beam-size INT\nNumber of hypotheses" in sections["translate"]
    assert "```{option} CORPUS\nCorpus: wmt14-en-de" in sections["data"]
    assert "```{option} --parallel.fsdp INT\nNumber of devices" in sections["translate"]
    # Fields of the config have a page of their own.
    assert "```{option} --compile-only" in sections["train"]
    assert "model.d-ff" not in text
    assert not re.search(r"```\{option\} .*\n```", text)
