"""An imported model of marian-nmt: what its own program and transformers compute with it."""

import json
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import yaml

import t2t_jax
from t2t_jax import UserError, score
from t2t_jax.interchange import marian_nmt
from t2t_jax.interchange.runs import write_run
from tests.interchange.marian_nmt_forward import MarianNmt
from tests.interchange.marian_nmt_models import (
    OPTIONS,
    options_of,
    random_weights,
    real_pairs,
    write_directory,
    write_npz,
)
from tests.interchange.models import translator_of
from tests.selection import thorough_after

LINES = 6


@pytest.fixture
def opus(tmp_path):
    write_directory(tmp_path / "opus", "opus")
    return tmp_path / "opus"


def their_ids(directory, side, lines):
    """The ids that marian-nmt gives to lines."""
    settings = yaml.safe_load((directory / "decoder.yml").read_text())
    file = directory / settings["vocabs"][side]
    if file.suffix == ".spm":
        processor = sentencepiece.SentencePieceProcessor(str(file))
        return [[*processor.encode(line), 0] for line in lines]
    splitter = directory / ("source.spm", "target.spm")[side]
    processor = sentencepiece.SentencePieceProcessor(str(splitter))
    table = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        piece, _, number = line.rpartition(": ")
        table[json.loads(piece) if piece.startswith('"') else piece] = int(number)
    rows = [processor.encode(line, out_type=str) for line in lines]
    return [[*(table.get(piece, 1) for piece in row), 0] for row in rows]


def model_in(directory, name="opus"):
    """The model of a directory as marian-nmt has it."""
    with np.load(directory / "opus.npz") as archive:
        weights = {key: archive[key] for key in archive.files if not key.startswith("special")}
    return MarianNmt(weights, options_of(name))


@pytest.mark.parametrize("name", thorough_after(3, OPTIONS))
def test_probabilities_are_those_of_marian_nmt(name, tmp_path):
    directory = tmp_path / "model"
    write_directory(directory, name)
    translator = translator_of(marian_nmt.read(directory))
    sources, targets = (side[:LINES] for side in real_pairs())
    theirs = model_in(directory, name)
    given = their_ids(directory, 0, sources), their_ids(directory, 1, targets)
    for found, source, target in zip(score(translator, sources, targets), *given, strict=True):
        expected = theirs.log_probs(source, target)
        own = expected[np.arange(len(target)), target]
        np.testing.assert_allclose(found.token_log_probs, own, rtol=1e-5, atol=1e-5)


def test_a_run_translates_line_by_line(opus, tmp_path):
    model = marian_nmt.read(opus)
    write_run(model, tmp_path / "run", {"format": "marian_nmt"})
    lines, _ = real_pairs()
    found = t2t_jax.load(tmp_path / "run").translate([*lines[:3], "", lines[3]])
    assert len(found) == 5
    assert found[3] == ""
    assert (model.config.decoding.beam_size, model.config.decoding.length_penalty) == (6, 1.0)


def test_a_search_never_finds_padding(opus):
    translator = translator_of(marian_nmt.read(opus))
    for found in translator.nbest(real_pairs()[0][:LINES], 4):
        for hypothesis in found:
            assert 0 not in hypothesis.tokens
            assert np.isfinite(hypothesis.score)


def test_subwords_that_yaml_would_take_for_other_things_are_text(opus):
    vocabulary = marian_nmt.read(opus).vocabulary
    pieces = vocabulary.pieces([range(len(vocabulary))])[0]
    assert pieces[:6] == ["<pad>", "</s>", "<unk>", ">>deu<<", "no", "~"]
    tagged, plain = vocabulary.encode([">>deu<< Hello", "Hello"])
    assert tagged == [3, *plain]


def test_a_table_of_another_size_is_cut_or_filled_as_marian_nmt_does(opus):
    whole = marian_nmt.read(opus).vocabulary
    table = opus / "opus.vocab.yml"
    lines = table.read_text(encoding="utf-8").splitlines()
    table.write_text("\n".join([*lines, "much: 5000", "more: 5001"]), encoding="utf-8")
    assert marian_nmt.read(opus).vocabulary.serialized == whole.serialized
    table.write_text("\n".join(lines[:-2]), encoding="utf-8")
    filled = marian_nmt.read(opus).vocabulary
    assert len(filled) == len(whole)
    assert filled.pieces([[len(whole) - 1]]) == [[f"<unused {len(whole) - 2}>"]]


def test_a_file_is_found_with_its_own_settings_or_with_the_only_vocabulary(opus):
    whole = marian_nmt.read(opus)
    (opus / "decoder.yml").rename(opus / "opus.npz.decoder.yml")
    assert marian_nmt.read(opus / "opus.npz").config == whole.config
    (opus / "opus.npz.decoder.yml").unlink()
    alone = marian_nmt.read(opus)
    assert alone.vocabulary.serialized == whole.vocabulary.serialized
    assert alone.config.model == whole.config.model


def test_a_table_in_json_and_numbers_of_16_bits(opus):
    whole = marian_nmt.read(opus)
    pieces = whole.vocabulary.pieces([range(len(whole.vocabulary))])[0]
    ids = {piece: number for number, piece in enumerate(pieces[1:])}
    (opus / "vocab.json").write_text(json.dumps(ids))
    settings(opus, vocabs=["vocab.json", "vocab.json"])
    options = {**options_of("opus"), "dim-vocabs": [len(ids)] * 2}
    weights = random_weights(options)
    write_npz(opus / "opus.npz", {k: x.astype(np.float16) for k, x in weights.items()}, options)
    found = marian_nmt.read(opus)
    assert found.vocabulary.serialized == whole.vocabulary.serialized
    assert all(array.dtype == np.float32 for array in found.arrays.values())


def settings(directory, **changes):
    """Change settings in `decoder.yml`; None takes one away."""
    file = directory / "decoder.yml"
    values = {**yaml.safe_load(file.read_text()), **changes}
    file.write_text(yaml.safe_dump({key: x for key, x in values.items() if x is not None}))


def rewritten(directory, changes=None, arrays=None, without=()):
    """Write the parameters anew, with other options or arrays."""
    with np.load(directory / "opus.npz") as archive:
        weights = {k: archive[k] for k in archive.files if k not in ("special:model.yml", *without)}
    write_npz(
        directory / "opus.npz",
        {**weights, **(arrays or {})},
        {**options_of("opus"), **(changes or {})},
    )


_PRE = {"transformer-preprocess": "n", "transformer-postprocess": "da"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"type": "s2s"}, "a model of type 's2s'; only the type 'transformer'"),
        ({"type": None}, "a model of type ''"),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg: 'rnn', and only"),
        ({"transformer-decoder-autoreg": "average-attention"}, "'average-attention'"),
        ({"transformer-ffn-depth": 3}, "transformer-ffn-depth: 3"),
        ({"transformer-decoder-dim-ffn": 64}, "another width in its decoder"),
        ({"transformer-no-projection": True}, "transformer-no-projection: True"),
        ({"transformer-attention-mask": "alibi"}, "'alibi'"),
        ({"lemma-dim-emb": 8}, "lemma-dim-emb: 8"),
        ({"right-left": True}, "right-left: True"),
        ({"transformer-postprocess": "dhn"}, "transformer-postprocess: 'dhn'"),
        ({**_PRE, "version": "v1.11.0"}, "transformer-postprocess-top: ''"),
        ({**_PRE, "transformer-postprocess-top": "n"}, "pre-norm model of a marian-nmt before"),
        ({"transformer-heads": 3}, "num_heads=3"),
        ({"transformer-heads": "4"}, "transformer-heads in .* is '4', which is no int"),
        ({"enc-depth": 3}, "has no array encoder_l3_self_Wq"),
        ({"enc-depth": 1}, "has the array encoder_l2_context|has the array encoder_l2_"),
        ({"transformer-tied-layers": [1]}, "no number for each of the 2 layers"),
        ({"tied-embeddings-all": False}, "has no array encoder_Wemb"),
    ],
)
def test_options_that_no_model_here_has_are_refused_by_name(opus, changes, said):
    rewritten(opus, changes)
    with pytest.raises(UserError, match=said) as refusal:
        marian_nmt.read(opus)
    assert "\n" not in str(refusal.value)


def _truncated(opus):
    (opus / "opus.npz").write_bytes((opus / "opus.npz").read_bytes()[:5000])


def _table(opus, text):
    (opus / "opus.vocab.yml").write_text(text, encoding="utf-8")


def _text_vocabulary(opus):
    (opus / "vocab.txt").write_text("</s>\n<unk>\n")
    settings(opus, vocabs=["vocab.txt"] * 2)


def _of_bpe(opus):
    (opus / "source.spm").rename(opus / "source.bpe")


_HARMS = {
    "truncated": (_truncated, "damaged, or no .npz"),
    "empty": (lambda opus: (opus / "opus.npz").write_bytes(b""), "damaged, or no .npz"),
    "pickles": (
        lambda opus: np.savez(opus / "opus.npz", Wemb=np.array([{}, print], object)),
        "damaged, or no .npz",
    ),
    "foreign": (
        lambda opus: np.savez(opus / "opus.npz", x=np.ones(3)),
        "has no special:model.yml, so it is no model",
    ),
    "integers": (
        lambda opus: rewritten(opus, arrays={"decoder_l1_ffn_W1": np.ones((16, 32), np.int8)}),
        "numbers of the kind int8",
    ),
    "another array": (
        lambda opus: rewritten(opus, arrays={"Wtype": np.ones((2, 16), np.float32)}),
        "has the array Wtype, which no model",
    ),
    "another bias": (
        lambda opus: rewritten(opus, arrays={"decoder_ff_logit_out_b": np.ones((1, 5))}),
        "do not belong together",
    ),
    "no YAML": (lambda opus: settings_text(opus, "models: [opus.npz"), "decoder.yml is no YAML"),
    "code": (
        lambda opus: settings_text(opus, "models: !!python/object/apply:os.system [ls]"),
        "decoder.yml is no YAML",
    ),
    "deep": (lambda opus: settings_text(opus, "a: " + "[" * 50_000), "decoder.yml is no YAML"),
    "no settings": (lambda opus: settings_text(opus, "7"), "has no options"),
    "outside": (
        lambda opus: settings(opus, vocabs=["../../etc/passwd"] * 2),
        r"names ../../etc/passwd, which is outside",
    ),
    "absolute": (lambda opus: settings(opus, models=["/etc/passwd"]), "names /etc/passwd, which"),
    "several": (lambda opus: settings(opus, models=["opus.npz", "b.npz"]), "has 2 models"),
    "one vocabulary": (lambda opus: settings(opus, vocabs=["a.spm"]), "has to name two"),
    "no list": (lambda opus: settings(opus, vocabs="a.spm"), "vocabs in .* is no list of files"),
    "a beam of words": (lambda opus: settings(opus, **{"beam-size": "wide"}), "beam-size"),
    "no splitter": (lambda opus: (opus / "target.spm").unlink(), "as target.spm"),
    "another splitter": (
        lambda opus: (opus / "target.spm").write_bytes(b"text"),
        "target.spm is damaged, or no SentencePiece model",
    ),
    "BPE": (_of_bpe, "split by Moses and source.bpe"),
    "text": (_text_vocabulary, "vocab.txt is neither"),
    "a spm of another size": (
        lambda opus: settings(opus, vocabs=["source.spm"] * 2),
        "source.spm has 200 subwords, and the model",
    ),
    "no table": (lambda opus: _table(opus, "- a\n- b\n"), "no table of the id"),
    "words": (lambda opus: _table(opus, "a: b\n"), "no table of the id"),
    "twice": (lambda opus: _table(opus, "</s>: 0\n<unk>: 1\na: 1\n"), "an id is there twice"),
    "no end": (lambda opus: _table(opus, "a: 0\n<unk>: 1\n"), "has no </s>"),
    "deep table": (lambda opus: _table(opus, "[" * 50_000), "no table of the id"),
}


def settings_text(directory, text):
    (directory / "decoder.yml").write_text(text)


@pytest.mark.parametrize("name", _HARMS)
def test_damaged_and_hostile_files_are_refused_in_one_line(name, opus):
    harm, said = _HARMS[name]
    harm(opus)
    before = sorted(opus.iterdir())
    with pytest.raises(UserError, match=said) as refusal:
        marian_nmt.read(opus)
    assert "\n" not in str(refusal.value)
    assert sorted(opus.iterdir()) == before


def test_a_path_without_a_model_is_refused(tmp_path):
    for path, said in ((tmp_path, "has 0 models"), (tmp_path / "no.npz", "there is no")):
        with pytest.raises(UserError, match=said):
            marian_nmt.read(path)


def test_the_converter_of_hugging_face_makes_the_same_of_it(opus):
    golden = json.loads(
        (Path(__file__).parents[1] / "goldens" / "marian_nmt_goldens.json").read_text("utf-8")
    )
    translator = translator_of(marian_nmt.read(opus))
    (pieces,) = translator.vocabulary.pieces([range(len(translator.vocabulary))])
    assert pieces == [golden["tokens"][-1], *golden["tokens"][:-1]]  # all ids are one more here
    sources, targets = (side[: len(golden["sources"])] for side in real_pairs())
    assert translator.encode(sources) == [[n + 1 for n in row] for row in golden["sources"]]
    for own, log_probs in zip(
        score(translator, sources, targets), golden["log_probs"], strict=True
    ):
        np.testing.assert_allclose(own.token_log_probs, log_probs, rtol=1e-5, atol=1e-5)
    greedy = translator.nbest(sources, 1, beam_size=1)
    for (best,), tokens in zip(greedy, golden["greedy"], strict=True):
        shorter = min(len(best.tokens), len(tokens))
        assert list(best.tokens[:shorter]) == [n + 1 for n in tokens[:shorter]]
    beam = translator.nbest(sources, 1, beam_size=4, length_penalty=0.0)
    theirs = model_in(opus)
    same = 0
    for (best,), source, tokens in zip(beam, golden["sources"], golden["beam"], strict=True):
        same += list(best.tokens) == [n + 1 for n in tokens]
        # transformers drops an end that is not among the four best, which this package keeps.
        log_probs = theirs.log_probs(source, tokens)[np.arange(len(tokens)), tokens]
        assert best.score >= log_probs.sum() - 1e-4
    assert same >= 6
