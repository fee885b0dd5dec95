"""The report on a run."""

import io
import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import t2t_jax
from t2t_jax import Config, UserError
from t2t_jax.config.file import load_config
from t2t_jax.extras.watching.page import deviations, plot_curves
from t2t_jax.extras.watching.report import build_report, paper_comparison
from t2t_jax.paper import TABLE_3

_CONFIGS = Path(t2t_jax.__file__).parents[1] / "configs"
_BLEU_SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def _score(split, num_sentences, corpus="tfds:wmt14_translate/de-en", **figures):
    """A line of scores.jsonl."""
    return {
        "corpus": corpus,
        "split": split,
        "num_sentences": num_sentences,
        "bleu": 26.5,
        "bleu_signature": _BLEU_SIGNATURE,
        "tokenized_split_bleu": 27.25,
        "chrf": None,
        "perplexity": 4.9,
        "checkpoints": [92_000, 94_000, 96_000, 98_000, 100_000],
        "decoding": {"beam_size": 4, "length_penalty": 0.6, "max_extra_length": 50, "top_k": 0},
        **figures,
    }


def _tree_score(split, corpus="trees:/ptb/wsj", **figures):
    """The same of a parser."""
    return {
        "corpus": corpus,
        "split": split,
        "num_sentences": 2416,
        "recall": 91.5,
        "precision": 90.25,
        "f1": 90.875,
        "num_skipped": 1,
        "num_errors": 2,
        "signature": "EVALB, COLLINS.prm",
        "num_repaired": 1003,
        "perplexity": 1.25,
        "checkpoints": [1, 2, 3, 4, 5],
        "decoding": {"beam_size": 21, "length_penalty": 0.3, "max_extra_length": 300},
        **figures,
    }


def _write(workdir, config, log=(), scores=()):
    workdir.mkdir(exist_ok=True)
    (workdir / "config.json").write_text(config.to_json())
    for name, records in (("log", log), ("scores", scores)):
        lines = (json.dumps(record) + "\n" for record in records)
        (workdir / f"{name}.jsonl").write_text("".join(lines))
    return workdir


_loaded = cache(load_config)


def _config(name, **changes):
    path, _, variant = name.partition(":")
    config = _loaded(f"{_CONFIGS / path}.py" + (f":{variant}" if variant else ""))
    return config.replace({path.replace("__", "."): value for path, value in changes.items()})


def _deviations(tmp_path, config, **files):
    report = build_report(_write(tmp_path / "run", config, **files))
    return deviations(report.sections[0].rows)


def _cells(report, title):
    """The rows of a section."""
    (section,) = (section for section in report.sections if section.title == title)
    return section.rows


# --- Settings ---

# Of the rows of each kind, which differ from each other in the number of their names.
_OWN_DIFFERENCE = {
    "A-h": ["heads h", "d_k", "d_v"],
    "B-dk": ["d_k"],
    "C-N": ["layers N"],
    "C-d": ["d_model", "d_k", "d_v"],
    "C-ff": ["d_ff"],
    "D-drop": ["P_drop"],
    "D-ls": ["label smoothing"],
    "E-learned": ["positions"],
}


@pytest.mark.parametrize("row", TABLE_3)
def test_a_row_of_table_3_on_other_data_deviates_in_the_data_and_its_own_difference(tmp_path, row):
    config = _config(f"table3:{row}", data__corpus="text:elsewhere")
    look = {"step": 5000, "of": "dev", "split": "dev", "num_sentences": 9, "bleu": 1.0}
    scores = [_score(split, 9, "text:elsewhere", checkpoints=[5000]) for split in ("dev", "train")]
    found = _deviations(tmp_path, config, log=[look], scores=scores)
    kind = row.rstrip("0123456789.")
    assert found == ["data", *_OWN_DIFFERENCE.get(kind, [])]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ende_base", []),
        ("ende_big", []),
        ("enfr_base", ["data"]),
        ("enfr_big", ["data"]),
        ("parsing_wsj", []),
        ("parsing_semi", []),
        ("base", ["data", "vocabulary"]),
        (
            "ende_t2t",
            [
                "vocabulary",
                "source tokens per step",
                "target tokens per step",
                "layer norm placement",
                "positions",
                "steps",
                "Adam's beta_2",
                "learning rate factor",
                "warmup steps",
                "dropout on attention",
                "dropout on activations",
            ],
        ),
    ],
)
def test_deviations_of_a_preset_are_all_named(tmp_path, name, expected):
    assert _deviations(tmp_path, _config(name)) == expected


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("data.source_language", "fr", "data"),
        ("data.corpus", "text:corpora/wmt14-en-de", "data"),
        ("data.corpus", "wmt16-en-ro:corpora/wmt14-en-de", "data"),
        ("data.batching", "pack", "batches by length"),
        ("model.norm_order", "pre", "layer norm placement"),
        ("model.share_embeddings", False, "shared embeddings"),
        ("model.d_v", 32, "d_v"),
        ("training.optimizer", "lion", "optimizer"),
        ("training.schedule", "constant", "equation 3"),
        ("training.peak_learning_rate", 1e-3, "equation 3"),
        ("training.clip_gradient_norm", 1.0, "gradient clipping"),
        ("training.ema_decay", 0.99, "moving average of parameters"),
        ("training.init_from", "runs/base", "run to start from"),
        ("training.adam_beta1", 0.8, "Adam's beta_1"),
        ("training.adam_epsilon", 1e-8, "Adam's epsilon"),
        ("checkpoint.every_steps", 100, "steps between averaged checkpoints"),
        ("checkpoint.average", 4, "checkpoints averaged"),
        ("decoding.beam_size", 5, "beam size"),
        ("decoding.length_penalty", 1.0, "length penalty alpha"),
        ("decoding.max_extra_length", 100, "maximum extra output length"),
    ],
)
def test_a_changed_setting_is_named_and_shown_beside_the_paper_s(tmp_path, path, value, name):
    report = build_report(_write(tmp_path, _config("ende_base").replace({path: value})))
    assert deviations(report.sections[0].rows) == [name]
    ((mark, *_, paper, ours),) = [row for row in _cells(report, "Settings") if row[1] == name]
    assert mark == "≠"
    assert paper != ours


@pytest.mark.parametrize("corpus", ["wmt14-en-de:elsewhere", "tfds:wmt14_translate/de-en"])
def test_the_paper_s_corpus_is_the_same_wherever_it_is_kept(tmp_path, corpus):
    scores = [_score("test", 3003, corpus=corpus)]
    if corpus.startswith("wmt14"):
        scores.append(_score("newstest2014-filtered", 2737, corpus=corpus))
    config = _config("ende_base", data__corpus=corpus)
    report = build_report(_write(tmp_path, config, scores=scores))
    assert deviations(report.sections[0].rows) == []
    names = [row[0] for row in _cells(report, "Scores")]
    assert names[0] == "newstest2014 (full, 3,003 sentences)"
    assert names[1:] == ["newstest2014 (filtered, 2,737 sentences)"] * (len(scores) - 1)


def test_a_score_on_a_test_set_of_the_paper_is_set_beside_its_figure():
    config = _config("ende_base", checkpoint__every_steps=1000, model__compute_dtype="float32")
    figure, *_, settings, precision = paper_comparison(config, [_score("test", 3003)])
    assert figure == "The paper, base, English-German: 27.3 BLEU on newstest2014 (Table 2)."
    assert settings.endswith("Deviations: steps between averaged checkpoints.")
    assert precision == "Computed in float32; the paper counts single precision."
    for other in (_score("test", 100), _score("test", 3003, corpus="bundled:")):
        assert paper_comparison(config, [other]) == []


def test_what_the_paper_does_not_publish_is_no_deviation(tmp_path):
    report = build_report(_write(tmp_path, _config("parsing_wsj", training__warmup_steps=123)))
    assert deviations(report.sections[0].rows) == []
    assert ("", "warmup steps", "6.3", "not published", "123") in _cells(report, "Settings")


_ONE_CHECKPOINT = _score("dev", 3000, checkpoints=[100_000])


_AVERAGED, _AVERAGED_IN_SCORING = "checkpoints averaged", "checkpoints averaged in scoring"
_ALL_SCORES = [_ONE_CHECKPOINT, _score("dev", 3000), _score("test", 3003)]


@pytest.mark.parametrize(
    ("name", "scores", "expected"),
    [
        ("table3:base", [], []),
        ("table3:base", [_ONE_CHECKPOINT], []),
        ("table3:base", [_ONE_CHECKPOINT | {"split": "newstest2013"}], []),
        ("table3:base", [_ONE_CHECKPOINT | {"split": "train"}], []),
        ("table3:base", [_score("dev", 3000)], [_AVERAGED_IN_SCORING]),
        ("table3:base", [_ONE_CHECKPOINT, _score("test", 3003)], [_AVERAGED]),
        (
            "table3:base",
            [_score("test", 3003, checkpoints=[100_000])],
            [_AVERAGED, _AVERAGED_IN_SCORING],
        ),
        ("ende_base", _ALL_SCORES, []),
        ("parsing_wsj", [_tree_score("dev"), _tree_score("test")], []),
        ("parsing_wsj", [_tree_score("dev", checkpoints=[1])], [_AVERAGED_IN_SCORING]),
    ],
)
def test_a_single_checkpoint_is_table_3_s_way_until_the_test_set_is_scored(
    tmp_path, name, scores, expected
):
    assert _deviations(tmp_path, _config(name), scores=scores) == expected


@pytest.mark.parametrize(
    ("setting", "name", "theirs"),
    [
        ({"beam_size": 10}, "beam size in scoring", "4"),
        ({"length_penalty": 1.0}, "length penalty alpha in scoring", "0.6"),
        ({"max_extra_length": 200}, "maximum extra output length in scoring", "50"),
    ],
)
def test_a_score_by_another_search_is_a_deviation_though_the_config_has_the_paper_s(
    tmp_path, setting, name, theirs
):
    paper_s = _score("test", 3003)
    other = paper_s | {"decoding": paper_s["decoding"] | setting}
    workdir = _write(tmp_path, _config("ende_base"), scores=[other, paper_s, other])
    report = build_report(workdir)
    assert deviations(report.sections[0].rows) == [name]
    ours = f"{next(iter(setting.values())):g}"
    assert _cells(report, "Settings").count(("≠", name, "6.1", theirs, ours)) == 1


@pytest.mark.parametrize(
    ("corpus", "data"),
    [
        ("trees:/ptb/wsj", "WSJ sections 2-21"),
        ("trees:/ptb/wsj+/silver", "WSJ sections 2-21, 17M trees by other parsers"),
    ],
)
def test_a_parser_stands_beside_the_paper_s_parsing(tmp_path, corpus, data):
    config = _config("parsing_semi" if "+" in corpus else "parsing_wsj", data__corpus=corpus)
    scores = [_tree_score(split, corpus) for split in ("dev", "test", "train")]
    report = build_report(_write(tmp_path, config, scores=scores))
    assert deviations(report.sections[0].rows) == []
    rows = _cells(report, "Settings")
    vocab = f"{config.data.vocab_size:,}"
    for row in [
        ("", "data", "6.3", data, corpus),
        ("", "vocabulary", "6.3", vocab, vocab),
        ("", "heads h", "3.2.2", "8", "8"),
        ("", "beam size", "6.3", "21", "21"),
        ("", "dev set", "6.3", "WSJ section 22", f"{corpus} dev"),
        ("", "test set", "6.3", "WSJ section 23", f"{corpus} test"),
        ("", "train set", "6.3", "–", f"{corpus} train"),
    ]:
        assert row in rows
    text = report.markdown()
    assert f"Which trees {corpus} has cannot be checked." in text
    assert [word for word in ("newstest", "BLEU") if word in text] == []


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (_score("dev", 3000), []),
        (_score("test", 3003), []),
        (_score("test", 2737), []),
        (_score("test", 100), ["test set"]),
        (_score("test", 1000, "bundled:"), ["test set"]),
        (_score("dev", 100), ["dev set"]),
        (_score("newstest2015", 2169), ["newstest2015 set"]),
        (_score("train", 100), []),
    ],
)
def test_another_test_set_than_newstest_is_named(tmp_path, score, expected):
    assert _deviations(tmp_path, _config("ende_base"), scores=[score]) == expected
    french = [score | {"corpus": score["corpus"].replace("de-en", "fr-en")}]
    assert _deviations(tmp_path, _config("enfr_base"), scores=french) == ["data", *expected]


# --- Cost ---

# A model of 1 layer each and d_model 2, d_ff 3, h 1, over 8 subwords: source tokens meet 16
# weights of self-attention, 12 of the feed-forward network and 8 for keys and values of the
# cross-attention, target tokens 16 + 8 of attention, 12 and 8 x 2 of the projection.
_SMALL = Config().replace(
    {
        "model.d_model": 2,
        "model.num_heads": 1,
        "model.d_ff": 3,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "data.vocab_size": 8,
        "data.source_tokens_per_step": 1000,
        "data.target_tokens_per_step": 2000,
    }
)


def _log(*counts, rate=50.0, **figures):
    """Training records, 10 steps apart."""
    return [
        {
            "of": "train",
            "step": 10 * number,
            "loss": 5.0 - number,
            "learning_rate": 1e-4 * number,
            "target_tokens": float(count),
            "target_tokens_per_second": rate,
            **figures,
        }
        for number, count in enumerate(counts, start=1)
    ]


def test_the_cost_of_a_run_follows_from_its_log(tmp_path):
    # 100 target tokens a step, and 50 source tokens: the ratio of the two bounds. The third record
    # follows a restart and counts 4 steps. 40 steps of 2 s each.
    log = _log(1000, 1000, 400, 1000, devices=3)
    report = build_report(_write(tmp_path, _SMALL, log), sustained_tflops=1e-9)
    ours = {name: value for name, _, value in _cells(report, "Cost of training")}
    flops = 6 * (50 * (16 + 12 + 8) + 100 * (24 + 12 + 16))
    assert flops == 42_000
    assert ours == {
        "parameters": "118",  # 8 x 2 + (16 + 17 + 2 x 4) + (2 x 16 + 17 + 3 x 4); 17 = 12 + 3 + 2
        "target tokens a step": "100",
        "model FLOPs a step": "4.2e04",
        "steps": "40",
        "devices": "3",
        "time": "80 s",
        "model FLOPs": "1.68e06",
        "model FLOP/s": "2.1e04",
        "time × devices × sustained FLOP/s": "2.4e05",
    }


def test_the_cost_of_a_run_that_went_on_with_other_devices_counts_each_for_its_time(tmp_path):
    # 20 steps of 2 s on 8 devices, then 10 of 4 s on 2: 320 and 80 device seconds.
    eight, two = _log(1000, 1000, devices=8), _log(0, 0, 1000, rate=25.0, devices=2)[2:]
    report = build_report(_write(tmp_path, _SMALL, eight + two), sustained_tflops=1e-9)
    ours = {name: value for name, _, value in _cells(report, "Cost of training")}
    assert ours["devices"] == "8, then 2"
    assert ours["time"] == "80 s"
    assert ours["time × devices × sustained FLOP/s"] == "4e05"


@pytest.mark.parametrize(
    ("name", "time", "flops", "estimate"),
    [
        ("ende_base", "12 h", "9.45e17", "3.28e18"),
        ("ende_big", "3.5 days", "9.63e18", "2.3e19"),
        ("parsing_wsj", "–", "1.5e18", "–"),
    ],
)
def test_the_paper_s_own_cost_stands_beside(tmp_path, name, time, flops, estimate):
    report = build_report(_write(tmp_path, _config(name)))
    theirs = {name: value for name, value, _ in _cells(report, "Cost of training")}
    assert theirs["time"] == time
    assert theirs["model FLOPs"] == flops
    assert theirs["time × devices × sustained FLOP/s"] == estimate


def test_a_run_without_a_step_costs_what_its_config_says(tmp_path):
    report = build_report(_write(tmp_path, _config("ende_base")), sustained_tflops=9.5)
    rows = {name: (theirs, ours) for name, theirs, ours in _cells(report, "Cost of training")}
    for name in ("parameters", "model FLOPs a step", "steps", "model FLOPs"):
        assert rows[name][0] == rows[name][1]
    assert rows["time"][1] == rows["time × devices × sustained FLOP/s"][1] == "–"


# --- Curves ---


def test_a_curve_is_drawn_dot_by_dot():
    # 4 columns of dots at the levels 0 2 5 7 of 0 to 7, each joined to the one before. Bits of the
    # dots of a character, from above: 1 2 4 64 on the left, 8 16 32 128 on the right.
    drawn = plot_curves(np.array([1.0, 4.0]), np.array([0.0, 7.0]), width=2, height=2)
    top_right = (64 + 4) + (32 + 16 + 8)
    bottom_left, bottom_right = 64 + (128 + 32 + 16), 2 + 1
    characters = [0, top_right, bottom_left, bottom_right]
    assert "".join(line[-2:] for line in drawn.splitlines()[:2]) == "".join(
        chr(0x2800 + bits) for bits in characters
    )


def test_a_plot_is_labelled_with_its_ranges():
    drawn = plot_curves(
        np.array([100.0, 2500.0, 3000.0]), np.array([7.25, 3.0, 4.0]), width=30, height=3
    )
    top, _, bottom, axis = drawn.splitlines()
    assert top.split()[0] == "7.25"
    assert bottom.split()[0] == "3"
    assert axis.split() == ["step", "100", "3,000"]
    assert len({len(line) for line in drawn.splitlines()}) == 1


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40), st.integers(15, 40), st.integers(2, 6)
)
def test_a_plotted_curve_has_a_dot_in_every_column_and_no_gap(values, width, height):
    drawn = plot_curves(np.arange(1.0, len(values) + 1), np.array(values), width, height)
    lines = [line[-width:] for line in drawn.splitlines()[:-1]]
    cells = np.array([[ord(character) - 0x2800 for character in line] for line in lines])
    assert cells.shape == (height, width)
    bits = np.array([[1, 8], [2, 16], [4, 32], [64, 128]])  # the Braille block of Unicode
    dots = ((cells[:, None, :, None] & bits[:, None]) > 0).reshape(4 * height, 2 * width)
    assert dots.any(0).all()
    assert not np.diff(np.pad(dots, ((1, 1), (0, 0))), axis=0).sum(0).max() > 2
    assert (dots[:, 1:] & dots[:, :-1]).any(0).all()


def test_loss_and_learning_rate_are_plotted_once_there_are_two_records(tmp_path):
    looks = [{"of": "dev", "step": step, "loss": loss} for step, loss in ((10, 6.5), (20, 6.25))]
    report = build_report(_write(tmp_path, _SMALL, [*_log(100, 100, 100), *looks]))
    plots = report.sections[2].plots
    assert [plotted.split()[0] for plotted in plots] == ["loss", "loss", "learning"]
    assert " 6.5 " in plots[1]
    assert " 0.0003 " in plots[2]

    report = build_report(_write(tmp_path, _SMALL, _log(100)))
    assert report.sections[2].plots == []


@pytest.mark.parametrize("missing", ["null", "absent"])
def test_records_without_a_figure_are_left_out(tmp_path, missing):
    log = _log(100, 100, 100, 100)
    for figure in ("loss", "target_tokens_per_second"):
        if missing == "null":
            log[1][figure] = None
        else:
            del log[1][figure]
    report = build_report(_write(tmp_path, _SMALL, log))
    assert len(report.sections[2].plots) == 2
    assert ("steps", "100,000", "40") in _cells(report, "Cost of training")


def test_warnings_and_the_reason_of_an_early_end_are_in_the_report(tmp_path):
    warning = {"step": 7, "of": "warning", "rule": "much_padding", "text": "half is padding"}
    end = {"step": 90, "of": "end", "text": "dev rose no more"}
    report = build_report(_write(tmp_path, _config("ende_base"), log=[warning, end]))
    (said,) = (section for section in report.sections if section.title == "Training messages")
    assert said.notes == ["dev rose no more"]
    assert said.rows == [("7", "half is padding")]
    done = [end | {"step": 100_000}]
    workdir = _write(tmp_path, _config("ende_base"), log=done)
    sections = build_report(workdir).sections
    assert "Training messages" not in [section.title for section in sections]
    place = workdir / "profile" / "steps_5_7"
    place.mkdir(parents=True)
    said = next(s for s in build_report(workdir).sections if s.title == "Training messages")
    assert said.notes == [f"A profile to open in xprof or Perfetto: {place}"]


# --- Scores ---


def test_the_last_look_at_dev_and_every_score_are_in_the_table(tmp_path):
    look = {"of": "dev", "split": "dev", "num_sentences": 3000, "bleu": 24.125, "perplexity": 5.5}
    log = [look | {"step": 4000, "bleu": 20.0}, look | {"step": 5000}]
    scores = [_score("test", 3003)]
    report = build_report(_write(tmp_path, _config("ende_base"), log, scores))
    (section,) = (section for section in report.sections if section.title == "Scores")
    assert section.header[4:] == ("sacreBLEU", "tokenized_split_bleu", "chrF", "perplexity")
    assert section.rows == [
        (
            "newstest2013",
            "3,000",
            "1, to step 5,000",
            "beam_size=1 length_penalty=0.6",
            *("24.12", "–", "–", "5.50"),
        ),
        (
            "newstest2014 (full, 3,003 sentences)",
            "3,003",
            "5, to step 100,000",
            "beam_size=4 length_penalty=0.6",
            *("26.50", "27.25", "–", "4.90"),
        ),
    ]
    assert f"sacreBLEU: {_BLEU_SIGNATURE}" in section.notes


def test_scores_of_a_moving_average_say_so(tmp_path):
    look = {"of": "dev", "split": "dev", "num_sentences": 3000, "step": 5000}
    score = _score("test", 3003, checkpoints=[9000], ema_decays=[0.5])
    config = _config("ende_base", training__ema_decay=0.5)
    report = build_report(_write(tmp_path, config, [look], [score]))
    (section,) = (section for section in report.sections if section.title == "Scores")
    assert [row[2] for row in section.rows] == [
        "moving average, decay 0.5, to step 5,000",
        "moving average, decay 0.5, to step 9,000",
    ]
    ours = "moving average, decay 0.5"
    row = ("≠", "checkpoints averaged in scoring", "6.1", "5", ours)
    assert row in _cells(report, "Settings")


def test_scores_of_a_parser_have_what_was_repaired_and_left_out(tmp_path):
    report = build_report(_write(tmp_path, _config("parsing_wsj"), scores=[_tree_score("test")]))
    section = report.sections[-1]
    shown = dict(zip(section.header[4:], section.rows[0][4:], strict=True))
    assert shown == {
        "recall": "91.50",
        "precision": "90.25",
        "F1": "90.88",
        "repaired": "1,003",
        "skipped": "1",
        "errors": "2",
        "perplexity": "1.25",
    }
    assert "F1: EVALB, COLLINS.prm" in section.notes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ende_base", ["27.3 BLEU on newstest2014", "row base of Table 3", "perplexity of 4.92"]),
        ("ende_big", ["28.4 BLEU on newstest2014", "row big of Table 3", "26.4 BLEU"]),
        ("table3:A-h16", ["27.3 BLEU", "row A-h16 of Table 3", "25.8 BLEU", "perplexity of 4.91"]),
        ("enfr_big", ["41.8 BLEU"]),
        ("enfr_base", ["38.1 BLEU"]),
        ("parsing_semi", ["92.7"]),
        ("quickstart", ["27.3 BLEU"]),
    ],
)
def test_what_the_paper_reports_stands_beside_the_scores(tmp_path, name, expected):
    report = build_report(_write(tmp_path, _config(name)))
    notes = " ".join(report.sections[-1].notes)
    assert [words for words in expected if words not in notes] == []
    assert notes.count("of Table 3") == sum("of Table 3" in words for words in expected)


# --- The page ---


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run directory"):
        build_report(tmp_path)


def test_terminal_and_markdown_have_the_same_content(tmp_path):
    scores = [_score("test", 3003)]
    workdir = _write(tmp_path, _config("quickstart"), _log(100, 90, 80), scores)
    report = build_report(workdir)
    printed = io.StringIO()
    Console(file=printed, width=250, highlight=False).print(report.terminal())
    pages = printed.getvalue(), report.markdown().replace("\\|", "|")
    for section in report.sections:
        contents = [section.title, *section.notes, *section.header]
        contents += [cell for row in section.rows for cell in row]
        contents += [line.rstrip() for plotted in section.plots for line in plotted.splitlines()]
        for page in pages:
            assert [content for content in contents if content not in page] == []


def test_tables_in_markdown_keep_their_columns(tmp_path):
    odd = {"corpus": "text:a|b", "bleu_signature": _BLEU_SIGNATURE}
    scores = [_score("test", 5) | odd]
    workdir = _write(tmp_path, _config("ende_base", data__corpus="text:a|b"), _log(100), scores)
    text = build_report(workdir).markdown()
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    assert text.count("```") % 2 == 0
