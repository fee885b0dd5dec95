"""The flags of other programs, with the meanings that their own documents and sources give them."""

import pytest

from t2t_jax.commands.entry import command_class, entry_command
from t2t_jax.commands.flag_table import flags_of
from t2t_jax.commands.foreign_flags import _BY_FLAG, _FLAGS_IN_HINT, ALIASES
from t2t_jax.commands.groups import COMMANDS
from t2t_jax.commands.train import train_command
from t2t_jax.errors import UserError
from tests.refusals import refused

SAME = [
    ("fairseq --lr 0.0005", "training.peak_learning_rate"),
    ("fairseq --dropout 0.3", "model.dropout_rate"),
    ("fairseq --attention-dropout 0.2", "model.attention_dropout_rate"),
    ("fairseq --activation-dropout 0.2", "model.activation_dropout_rate"),
    ("fairseq --patience 4", "training.stop_after_evaluations_without_gain"),
    ("fairseq --max-update 9000", "training.num_train_steps"),
    ("fairseq --warmup-updates 90", "training.warmup_steps"),
    ("fairseq --clip-norm 0.5", "training.clip_gradient_norm"),
    ("fairseq --adam-eps 1e-08", "training.adam_epsilon"),
    ("fairseq --label-smoothing 0.2", "training.label_smoothing"),
    ("fairseq --encoder-layers 3", "model.num_encoder_layers"),
    ("fairseq --decoder-layers 2", "model.num_decoder_layers"),
    ("fairseq --log-interval 7", "training.log_every_steps"),
    ("fairseq --validate-interval-updates 70", "evaluation.every_steps"),
    ("fairseq --ema-decay 0.999", "training.ema_decay"),
    ("fairseq --source-lang fr", "data.source_language"),
    ("fairseq --model-parallel-size 2", "parallel.tensor"),
    ("JoeyNMT --hidden_size 256", "model.d_model"),
    ("OpenNMT-py --heads 4", "model.num_heads"),
    ("OpenNMT-py --transformer_ff 1024", "model.d_ff"),
    ("OpenNMT-py --train_steps 9000", "training.num_train_steps"),
    ("OpenNMT-py --valid_steps 70", "evaluation.every_steps"),
    ("OpenNMT-py --save_checkpoint_steps 700", "checkpoint.every_steps"),
    ("OpenNMT-py --keep_checkpoint 8", "checkpoint.keep"),
    ("OpenNMT-py --early_stopping 4", "training.stop_after_evaluations_without_gain"),
    ("OpenNMT-py --report_every 7", "training.log_every_steps"),
    ("transformers --seed 3", "training.seed"),
    ("transformers --max_steps 9000", "training.num_train_steps"),
    ("transformers --warmup_steps 90", "training.warmup_steps"),
    ("transformers --save_steps 700", "checkpoint.every_steps"),
    ("transformers --max_grad_norm 0.5", "training.clip_gradient_norm"),
    ("transformers --adam_beta2 0.95", "training.adam_beta2"),
]
"""Flags that are aliases: the field of the config gets the value."""

OTHER = [
    ("fairseq --save-interval", "a number of steps, not of epochs: --checkpoint.every-steps"),
    ("fairseq --max-tokens", "over all devices, not for each GPU: --data.source-tokens-per-step"),
    ("fairseq --update-freq", "--parallel.tokens-per-device splits into passes"),
    ("fairseq --arch", "--config names a network"),
    ("fairseq --encoder-embed-dim", "have one width: --model.d-model"),
    ("fairseq --share-all-embeddings", "that is the default, --model.share-embeddings True"),
    ("fairseq --restore-file", "run the same t2t-jax train command again to resume"),
    ("fairseq --fp16", "--model.compute-dtype is float32, bfloat16 or auto"),
    ("fairseq --save-dir", "give the run directory without a flag, or as --workdir DIR"),
    ("JoeyNMT --learning_rate", "--training.peak-learning-rate is the rate at the end of the"),
    ("JoeyNMT --overwrite", "a run is never overwritten"),
    ("OpenNMT-py --layers", "--model.num-encoder-layers and --model.num-decoder-layers"),
    ("OpenNMT-py --batch_size", "over all devices, not in sentences: --data.source-tokens-per"),
    ("OpenNMT-py --share_embeddings", "False and --model.share-source-embedding True"),
    ("OpenNMT-py --average_decay", "--training.ema-decay is 1 minus that number"),
    ("OpenNMT-py --world_size", "a training uses all visible devices"),
    ("OpenNMT-py --num_workers", "--data.prefetch is the number of batches that are made ahead"),
    ("OpenNMT-py --data", "--data.corpus names the corpus"),
    ("transformers --weight_decay", "--training.optimizer adamw rather than adam"),
    ("transformers --save_total_limit", "the best one is kept in addition"),
    ("transformers --max_source_length", "longer pairs are left out, not cut"),
    ("T5X --gin_file", "--config names a config file"),
    ("T5X --gin.TRAIN_STEPS", "give --training.num-train-steps"),
    ("T5X --gin.DROPOUT_RATE", "--model.dropout-rate and --model.attention-dropout-rate"),
    ("T5X --gin.BATCH_SIZE", "not in sentences"),
    ("scripts --gpus", "choose GPUs by CUDA_VISIBLE_DEVICES"),
    ("scripts --workers", "leave it out; --data.prefetch"),
    ("scripts --wandb", "--track sends the log"),
    ("scripts --epochs", "a number of steps, not of epochs: --training.num-train-steps"),
]
"""Flags that are refused: they do another thing, or count in another unit."""


def known_flags(command: str) -> set[str]:
    return {flag.flag for flag in flags_of(command_class(command))} | {"--workdir"}


@pytest.mark.parametrize(("line", "path"), SAME)
def test_a_flag_that_does_the_same_elsewhere_is_an_alias(line, path):
    _, alias, value = line.split()
    own = f"--{path.replace('_', '-')}"
    by_alias, by_name = (
        train_command(["--config", "base", "w", flag, value]) for flag in (alias, own)
    )
    assert by_alias == by_name
    section, _, name = path.partition(".")
    assert str(getattr(getattr(by_alias.fields, section), name)) == value


@pytest.mark.parametrize(("line", "hint"), OTHER)
def test_a_flag_that_does_another_thing_elsewhere_is_refused_with_a_way_out(line, hint):
    _, flag = line.split()
    with refused(hint) as refusal:
        train_command(["--config", "base", "w", flag, "1"])
    assert str(refusal.value).startswith(f"unknown flag {flag}; ")


@pytest.mark.parametrize("line", ["--beam 3", "--num_beams 3"])
def test_the_flags_of_a_search_have_aliases_too(line):
    assert entry_command(["translate", "w", *line.split()]).decoding.beam_size == 3


@pytest.mark.parametrize("flag", ["--data", "--batch-size", "--epochs"])
def test_a_hint_for_training_is_not_given_to_a_translation(flag):
    with pytest.raises(UserError, match=f"unknown flag {flag}; see --help-all for all flags"):
        entry_command(["translate", "w", flag, "1"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--lr 1 --training.peak-learning-rate 2", "is given twice, first as --lr; give it once"),
        ("--lr 1 --lr=2", "--lr is given twice; give it once"),
        ("--lr=", "--training.peak-learning-rate is given an empty value"),
    ],
)
def test_an_alias_is_the_flag_itself(line, message):
    with pytest.raises(UserError, match=message):
        train_command(["--config", "base", "w", *line.split()])


def test_no_alias_is_a_flag_of_a_command_that_has_both():
    for command in (name for names in COMMANDS.values() for name in names if name != "launch"):
        known = known_flags(command)
        assert not known & {name for flag in known for name in ALIASES.get(flag, ())}


def test_every_hint_names_flags_of_a_command():
    known = known_flags("train"), known_flags("translate")
    for hint in _BY_FLAG.values():
        assert any({*_FLAGS_IN_HINT.findall(hint)} <= flags for flags in known), hint
    assert not {*_BY_FLAG} & {name for names in ALIASES.values() for name in names}


def test_help_finds_a_flag_by_an_alias(capsys):
    with pytest.raises(SystemExit):
        entry_command(["train", "--help", "lr"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("--training.peak-learning-rate FLOAT|None")
    assert "Also --lr." in shown
