"""Every command with a run of every family: it works, or is refused with the one that fits."""

import re
from functools import partial

import pytest

import t2t_jax
from t2t_jax.__main__ import main
from t2t_jax.commands.groups import all_commands
from t2t_jax.errors import UserError
from t2t_jax.extras.inspect.figures.long_context import long_context
from t2t_jax.workdir import read_config
from tests.commands.families import FAMILIES

FILES = ["--source", "FOLDER/test.en", "--target", "FOLDER/test.de"]
COMMAND_LINES = {
    "translate": ["--workdir", "RUN", "--input", "FOLDER/test.en"],
    "score": ["--workdir", "RUN", *FILES],
    "generate": ["RUN", "--prompt", "the dog"],
    "predict": ["RUN", "--input", "FOLDER/test.en"],
    "serve": ["RUN", "--port", "0"],
    "explore": ["RUN", "--output", "FOLDER/page.html", "--text", "the dog"],
    "heads": ["RUN", "--loss-only"],
}
"""The commands that are for some families alone."""
FITS = {
    "translator": ("a model that translates", "translate", "score"),
    "decoder alone": ("a model that translates", "translate", "score"),
    "parser": ("a parser", "translate", "score"),
    "language model": ("a language model", "generate", "evaluate"),
    "masked model": ("a masked language model", "predict", "evaluate"),
    "tagger": ("a tagger", "predict", "evaluate"),
    "classifier": ("a classifier of sentences", "predict", "evaluate"),
    "image classifier": ("a classifier of images", "predict", "evaluate"),
}
"""What errors call a family, and the commands that they name: to use and to measure it."""
DOES = {
    "translator": {"translate", "serve", "score", "explore", "heads"},
    "decoder alone": {"translate", "serve", "score", "explore"},
    "parser": {"translate", "score", "explore", "heads"},
    "language model": {"generate"},
    "masked model": {"predict"},
    "tagger": {"predict"},
    "classifier": {"predict"},
    "image classifier": {"predict"},
}
REFUSED = [(family, name) for family in FITS for name in COMMAND_LINES if name not in DOES[family]]


def call(name, corpora, run, flags):
    places = {"RUN": str(run), "FOLDER": str(corpora)}
    return main([name, *(re.sub("RUN|FOLDER", lambda m: places[m[0]], flag) for flag in flags)])


@pytest.mark.parametrize(("family", "name"), REFUSED, ids=lambda value: value.replace(" ", "-"))
def test_a_command_for_other_models_names_the_one_that_fits(family, name, corpora, runs):
    model, *fits = FITS[family]
    groups = "using a trained model", "measuring a model"
    [fit] = (one for one, group in zip(fits, groups, strict=True) if name in all_commands()[group])
    with pytest.raises(UserError) as refusal:
        call(name, corpora, runs[family], COMMAND_LINES[name])
    message = str(refusal.value)
    assert "\n" not in message
    if (family, name) == ("decoder alone", "heads"):  # its task is that of the translator
        assert "model.architecture='decoder_only'" in message
        assert "t2t-jax explore" in message
    else:
        assert message == (
            f"{runs[family]} is {model}, and t2t-jax {name} is not for such a model; use t2t-jax "
            f"{fit}"
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_each_task_says_which_commands_its_models_have(family, runs):
    data = read_config(runs[family]).data
    has = {*data.facts.commands}
    assert has - ({"heads"} if family == "decoder alone" else set()) == DOES[family]


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_the_pictures_of_every_family_are_drawn(family, corpora, runs, monkeypatch, capsys):
    monkeypatch.setattr("t2t_jax.extras.inspect.figures.write.encode_figure", lambda *_: b"")
    short = partial(long_context, lengths=(8, 16))
    monkeypatch.setattr("t2t_jax.extras.inspect.figures.write.long_context", short)
    place = corpora / f"figures_{runs[family].name}"
    assert main(["figures", str(place), "--workdir", str(runs[family])]) == 0
    drawn = {path.stem for path in place.iterdir()}
    attention = {name for name in drawn if name.startswith("attention_")}
    translates = family in ("translator", "decoder alone", "parser")
    wanted = {"attention_decoder_1"} if family == "language model" else set()
    wanted |= {"attention_encoder_1", "attention_cross_1"} if translates else set()
    assert attention == wanted
    assert ("long_context" in drawn) != (family == "image classifier")
    assert "architecture" in drawn


@pytest.mark.parametrize("family", FAMILIES)
def test_every_run_has_a_report_and_is_watched_and_exported(family, corpora, runs, capsys):
    run, out = str(runs[family]), str(corpora / f"out_{runs[family].name}")
    assert main(["watch", run]) == 0
    assert main(["report", "--workdir", run]) == 0
    assert main(["export", run, out, "--to", "safetensors"]) == 0
    assert "contains the model as safetensors" in capsys.readouterr().out


@pytest.mark.parametrize("family", [name for name in FAMILIES if "translate" not in DOES[name]])
def test_python_says_as_well_that_a_model_does_not_translate(family, runs):
    model = t2t_jax.load(runs[family])
    source, target = "the dog", "der Hund"
    for call in (
        lambda: t2t_jax.score(model, [source], [target]),
        lambda: t2t_jax.attention_maps(model, source, target),
    ):
        with pytest.raises(UserError, match=rf"data\.task={model.config.data.task}, not to"):
            call()


def test_a_corpus_for_other_models_is_refused(corpora, runs):
    treebank = ["--corpus", f"trees:{corpora}"]
    message = (
        rf"is a model that translates, and trees:{corpora} is for a parser; name another --cor"
    )
    with pytest.raises(UserError, match=message):
        main(["evaluate", "--workdir", str(runs["translator"]), *treebank])


def test_a_score_of_images_has_their_words_alone(corpora, runs, capsys):
    run = str(runs["image classifier"])
    assert main(["evaluate", "--workdir", run]) == 0
    assert main(["report", "--workdir", run]) == 0
    printed = " ".join(capsys.readouterr().out.partition("Settings")[0].split())
    assert re.search(
        r"loss [\d.]+ label-smoothed cross-entropy, nats per label, mean of 6 ", printed
    )
    assert re.search(r"perplexity [\d.]+ exp\(NLL\), per label images 6 npz:", printed)
    report = (runs["image classifier"] / "report.md").read_text()
    assert "beam size" not in report
    scores = report.partition("## Scores")[2]
    assert "| set | images | checkpoints | accuracy |" in scores
    for text in (printed, scores):
        assert not re.search("subword|sentence|beam|decoding|token", text)


@pytest.mark.parametrize("flags", [["--beam-size", "3"], ["--seed", "1"]])
@pytest.mark.parametrize("family", ["tagger", "language model"])
def test_the_score_of_a_model_that_does_not_search_takes_no_flags_of_a_search(family, flags, runs):
    with pytest.raises(UserError, match="need no beam search; leave out --seed"):
        main(["evaluate", str(runs[family]), *flags])


def test_what_is_watched_has_the_words_of_its_task(runs, capsys):
    for names, unit in ((["tagger"], "label"), (["tagger", "parser"], "target")):
        assert main(["watch", *(str(runs[name]) for name in names)]) == 0
        printed = capsys.readouterr().out
        assert f" {unit}s/s " in printed
        assert f"training loss, nats per {unit}" in printed
        assert "token" not in printed
