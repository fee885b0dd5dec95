import ast
import dataclasses
import inspect
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import t2t_jax.config
from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecoderOnlyConfig,
    DecodingConfig,
    EncoderDecoderConfig,
    EvaluationConfig,
    ModelConfig,
    ParallelConfig,
    TrainingConfig,
    differences,
    from_dict,
    network_config,
    to_dict,
    walk,
)
from t2t_jax.config.checks import Section
from t2t_jax.config.config import known_fields
from t2t_jax.data.layout import bucket_lengths
from t2t_jax.errors import UserError, did_you_mean
from tests.free_fields import MAY_CHANGE
from tests.refusals import refused

_ROOT = Path(t2t_jax.config.__file__).parents[2]

_changes = st.fixed_dictionaries(
    {},
    optional={
        "model.d_k": st.none() | st.integers(1, 999),
        "model.d_model": st.integers(1, 99).map(lambda n: 8 * n),
        "model.norm_order": st.sampled_from(["post", "pre", "deep"]),
        "model.attention_window": st.none() | st.integers(1, 999),
        "model.norm_epsilon": st.floats(1e-12, 1),
        "model.feed_forward": st.sampled_from(["relu", "geglu", "swiglu"]),
        "model.share_embeddings": st.booleans(),
        "model.dropout_rate": st.floats(0, 0.99),
        "data.corpus": st.sampled_from(["text:A", "text:A*3+text:B", "trees:A+B", "python:"]),
        "data.vocab_size": st.integers(8, 2**31 - 1),
        "data.protected_tokens": st.lists(
            st.text(st.characters(categories=["L", "N"])).map("__{}__".format), unique=True
        ).map(tuple),
        "training.freeze": st.lists(st.text()).map(tuple),
        "training.adam_epsilon": st.floats(1e-30, 3e38),
        "training.learning_rate_factor": st.integers(0, 9),
        "training.seed": st.integers(0, 2**31 - 1),
        "checkpoint.every_minutes": st.none()
        | st.floats(0, exclude_min=True, allow_infinity=False),
        "checkpoint.keep_best": st.booleans(),
        "decoding.length_penalty": st.floats(0, 5),
        "parallel.data": st.just(-1) | st.integers(1, 999),
        "parallel.fsdp": st.integers(1, 999),
        "parallel.remat": st.sampled_from(["none", "dots", "layer"]),
        "parallel.loss_chunks": st.sampled_from([1, 2, 4, 8]),
    },
)


@given(_changes)
def test_json_gives_back_the_same_config(changes):
    config = Config().replace(changes)
    read = Config.from_json(config.to_json())
    assert read == config
    assert [type(value) for _, _, value in walk(read)] == [type(v) for _, _, v in walk(config)]
    assert read.to_json() == config.to_json()


def test_a_list_in_json_is_the_tuple_that_its_field_declares():
    config = Config().replace({"decoding.forbidden": ["a", "b c"], "training.freeze": ("x",)})
    read = Config.from_json(config.to_json())
    assert (read.decoding.forbidden, read.training.freeze) == (("a", "b c"), ("x",))
    assert (read, hash(read)) == (config, hash(config))
    nested = to_dict(config)
    nested["training"]["seed"] = [1]
    with pytest.raises(UserError, match=r"training.seed=\[1\] is a list, expected int"):
        from_dict(nested)


@dataclasses.dataclass(frozen=True)
class _Several(Section):
    numbers: tuple[int, ...] = ()


def test_several_numbers_are_numbers():
    assert _Several([1, 2]).numbers == (1, 2)  # as JSON has it
    for value in ((1, "2"), (True,), (1.0,), [1.0]):
        with pytest.raises(UserError, match="expected a tuple of values, each a int"):
            _Several(value)


@given(_changes)
def test_replace_changes_the_named_fields_and_no_other(changes):
    before = {path: value for path, _, value in walk(Config())}
    after = {path: value for path, _, value in walk(Config().replace(changes))}
    assert after == before | changes


@given(_changes)
def test_differences_are_the_fields_whose_values_differ(changes):
    values = {path: value for path, _, value in walk(Config())}
    expected = {p: (values[p], new) for p, new in changes.items() if values[p] != new}
    assert differences(Config(), Config().replace(changes)) == expected


def test_head_sizes_follow_d_k_and_d_v_where_given():
    config = network_config(d_model=30, num_heads=4, d_k=3, d_v=5)
    assert (config.key_size, config.value_size) == (3, 5)
    config = network_config(d_model=32, num_heads=4, d_v=5)
    assert (config.key_size, config.value_size) == (8, 5)


# What each section refuses, and what its message must say besides the field and the value.
_MODEL = network_config
_REFUSED = [
    (_MODEL, {"norm_order": "psot"}, "not one of 'post', 'pre', 'deep'; did you mean post?"),
    (_MODEL, {"compute_dtype": "float16"}, "did you mean bfloat16?"),
    (_MODEL, {"position": "spiral"}, "not one of 'sinusoidal', 'sinusoidal_t2t', 'learned'"),
    (_MODEL, {"position": None}, "'relative_bias', 'none'; did you mean none?"),
    (_MODEL, {"position": "sinusoidal_t2t", "d_model": 9, "num_heads": 3}, "even d_model"),
    (_MODEL, {"position": "rotary", "d_k": 7}, "d_k=7 is odd, but rotary positions rotate pairs"),
    (_MODEL, {"position": "rotary", "d_model": 24}, "d_k=3 is odd"),
    (_MODEL, {"rotary_scale": 0.5}, "outside [1, inf]"),
    (_MODEL, {"rotary_base": 1.0}, "outside [2, inf]"),
    (_MODEL, {"num_kv_heads": 3}, "num_heads=8 is not a multiple of num_kv_heads=3"),
    (_MODEL, {"num_kv_heads": 0}, "is not positive; use None"),
    (_MODEL, {"attention_window": 0}, "is not positive; use None"),
    (_MODEL, {"norm_epsilon": 0.0}, "outside [1e-12, 1]"),
    (_MODEL, {"feed_forward": "swish"}, "'geglu', 'geglu_tanh', 'swiglu'"),
    (_MODEL, {"parametrisation": "complete"}, "set model.norm_order='pre', or use 'mup'"),
    (
        _MODEL,
        {"parametrisation": "mup", "attention_kind": "additive", "d_k": 32},
        "has no rule for model.attention_kind='additive' with heads of d_k=32; set model.d_k=64",
    ),
    (
        _MODEL,
        {"share_embeddings": False, "share_source_embedding": True, "share_target_embedding": True},
        "leave share_target_embedding and source_vocab_size out",
    ),
    (_MODEL, {"d_model": 512.0}, "is a float, expected int"),
    (_MODEL, {"d_model": True}, "is a bool, expected int"),
    (_MODEL, {"d_k": 2.5}, "is a float, expected int | None"),
    (_MODEL, {"share_embeddings": 1}, "is a int, expected bool"),
    (_MODEL, {"dropout_rate": False}, "is a bool, expected float"),
    (_MODEL, {"dropout_rate": 1.0}, "outside [0, 0.99]"),
    (_MODEL, {"dropout_rate": float("nan")}, "is not a finite number"),
    (_MODEL, {"attention_dropout_rate": 1.5}, "outside [0, 0.99]"),
    (_MODEL, {"activation_dropout_rate": 1.5}, "outside [0, 0.99]"),
    (_MODEL, {"d_k": 0}, "is not positive"),
    (_MODEL, {"d_v": -1}, "is not positive"),
    (_MODEL, {"d_model": 500}, "is not divisible by num_heads=8; set d_k and d_v"),
    (_MODEL, {"d_model": 513, "d_k": 64, "d_v": 64}, "even d_model or position='learned'"),
    (DataConfig, {"batching": "packed"}, "did you mean pack?"),
    (DataConfig, {"vocab_size": 7}, "outside [8, inf]"),
    (DataConfig, {"max_length": 0}, "outside [8, inf]"),
    (DataConfig, {"prefetch": 0}, "outside [1, 10000]"),
    (DataConfig, {"dev_lines": -1}, "dev_lines=-1 is outside [0, 1e+06]"),
    (DataConfig, {"source_tokens_per_step": 255}, "lower max_length"),
    (DataConfig, {"max_length": 257, "source_tokens_per_step": 263}, "per_step to 264"),
    (DataConfig, {"target_tokens_per_step": 255}, "raise target_tokens_per_step"),
    (DataConfig, {"target_language": "en"}, "are both 'en'"),
    (DataConfig, {"protected_tokens": ("<2de>", "")}, "'' is empty; leave it out"),
    (DataConfig, {"protected_tokens": ("<2 de>",)}, "'<2 de>' has white space"),
    (DataConfig, {"protected_tokens": ("\u2581de",)}, "'▁de' has white space, a NUL character or"),
    (DataConfig, {"protected_tokens": ("\0",)}, "which the vocabulary does not preserve"),
    (DataConfig, {"protected_tokens": ("a", "b", "a")}, "'a' is given twice; give it once"),
    (DataConfig, {"protected_tokens": ("<s>",)}, "'<s>' is the name of a special entry"),
    (DataConfig, {"protected_tokens": ("<0x0A>",)}, "the name of a special entry"),
    (DataConfig, {"protected_tokens": "<2de>"}, "is a str, expected a tuple of values, each a str"),
    (DataConfig, {"protected_tokens": (2,)}, "is a tuple, expected a tuple of values, each a str"),
    (TrainingConfig, {"adam_beta2": 1.0}, "outside [0, 0.999999]"),
    (TrainingConfig, {"adam_epsilon": 0.0}, "outside [1e-30, inf]"),
    (TrainingConfig, {"learning_rate_factor": float("inf")}, "is not a finite number"),
    (TrainingConfig, {"label_smoothing": 1}, "outside [0, 0.99]"),
    (TrainingConfig, {"optimizer": "adaw"}, "did you mean adamw?"),
    (TrainingConfig, {"schedule": "cosin"}, "did you mean cosine?"),
    (TrainingConfig, {"weight_decay": 0.1}, "no effect with optimizer='adam'; use optimizer="),
    (TrainingConfig, {"weight_decay": -0.1, "optimizer": "lion"}, "outside [0, inf]"),
    (TrainingConfig, {"adam_beta2": 0.05, "optimizer": "lion"}, "use 0.1 or more"),
    (TrainingConfig, {"clip_gradient_norm": 0.0}, "is not positive; use None"),
    (TrainingConfig, {"stop_after_evaluations_without_gain": 0}, "=0 is not positive; use None"),
    (TrainingConfig, {"clip_gradient_norm": 1e300}, "largest, a float of 32 bits, 3.4e+38"),
    (TrainingConfig, {"ema_decay": 1.0}, "outside (0, 1); use None"),
    (TrainingConfig, {"peak_learning_rate": 0.0}, "is not positive; use None"),
    (TrainingConfig, {"peak_learning_rate": 1, "learning_rate_factor": 2}, "leave one of them out"),
    (TrainingConfig, {"schedule_steps": 9000}, "has no effect on schedule='inverse_sqrt'"),
    (TrainingConfig, {"schedule_steps": 9, "schedule": "constant"}, "use 'cosine' or 'linear' or"),
    (TrainingConfig, {"schedule_steps": 0, "schedule": "linear"}, "is not positive; use None"),
    (TrainingConfig, {"schedule_steps": 4000, "schedule": "linear"}, "or lower warmup_steps"),
    (TrainingConfig, {"num_train_steps": 400, "schedule": "cosine"}, "raise num_train_steps or"),
    (TrainingConfig, {"schedule_steps": 2**31, "schedule": "wsd"}, "largest, 2**31 - 1"),
    (TrainingConfig, {"schedule": "wsd(decay_fraction=0)"}, "decay_fraction=0.0 is outside [1e-06"),
    (TrainingConfig, {"schedule": "wsd(decay_fraction=0.97)"}, "begins before the end"),
    (DataConfig, {"vocab_size": 3 * 10**9}, "data.vocab_size=3000000000 is more than the largest"),
    (TrainingConfig, {"learning_rate_factor": 1e300}, "largest, a float of 32 bits, 3.4e+38"),
    (EvaluationConfig, {"beam_size": 10**10}, "outside [1, 1000]"),
    (DecodingConfig, {"max_extra_length": 10**10}, "outside [1, 100000]"),
    (TrainingConfig, {"init_seed": -1}, "outside [0, "),
    (TrainingConfig, {"order_seed": 2**31}, "outside [0, "),
    (CheckpointConfig, {"keep": 0}, "outside [1, inf]"),
    (CheckpointConfig, {"every_steps": 0}, "is not positive; use None"),
    (CheckpointConfig, {"every_minutes": 0.0}, "is not positive; use None"),
    (EvaluationConfig, {"every_steps": 0}, "outside [1, inf]"),
    (EvaluationConfig, {"num_sentences": 0}, "use None"),
    (EvaluationConfig, {"num_samples": -1}, "outside [0, inf]"),
    (DecodingConfig, {"beam_size": 0}, "outside [1, 1000]"),
    (DecodingConfig, {"max_source_length": 2}, "outside [8, 100000]"),
    (DecodingConfig, {"long_lines": "cut"}, "'split', 'refuse'"),
    (DecodingConfig, {"length_penalty": 1e30}, "outside [0, 10]"),
    (DecodingConfig, {"temperature": -1.0}, "outside [0, inf]"),
    (DecodingConfig, {"top_p": 0.0}, "leaves nothing to sample from"),
    (DecodingConfig, {"top_p": 1.1}, "outside [0, 1]"),
    (ParallelConfig, {"data": 0}, "use -1 for all"),
    (ParallelConfig, {"fsdp": 2, "backend": "pmap"}, "must be 1; use backend='jit'"),
    (ParallelConfig, {"backend": "xmap"}, "not one of 'jit', 'pmap'; did you mean pmap?"),
    (ParallelConfig, {"remat": "layers"}, "did you mean layer?"),
    (ParallelConfig, {"loss_chunks": 3}, "not one of 1, 2, 4, 8; use one of these"),
    (ParallelConfig, {"loss_chunks": "8"}, "not one of 1, 2, 4, 8; did you mean 8?"),
    (ParallelConfig, {"loss_chunks": True}, "True is not one of 1, 2, 4, 8"),
    (ParallelConfig, {"loss_chunks": 2.0}, "2.0 is not one of 1, 2, 4, 8"),
    (ParallelConfig, {"tokens_per_device": 0}, "is not positive; use None"),
]


@pytest.mark.parametrize(("section", "values", "message"), _REFUSED)
def test_refused_value_is_explained_in_one_line(section, values, message):
    with refused(message) as error:
        section(**values)
    assert next(iter(values)) in str(error.value) or "language" in message


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (lambda: DataConfig(vocab_sze=9), {"data.vocab_sze": 9}),
        (lambda: DataConfig(whole_words=True), {"data.whole_words": True}),
        (lambda: EncoderDecoderConfig(d_model="256"), {"model.d_model": "256"}),
        (lambda: EncoderDecoderConfig(patch_size=2), {"model.patch_size": 2}),
        (
            lambda: DecoderOnlyConfig(num_encoder_layers=2),
            {"model.architecture": "decoder_only", "model.num_encoder_layers": 2},
        ),
        (lambda: Config(d_model=256), {"d_model": 256}),
    ],
)
def test_a_keyword_is_refused_as_the_dotted_name_is(make, changes):
    with pytest.raises(UserError) as of_name:
        Config().replace(changes)
    with refused(str(of_name.value)):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Config(data=EvaluationConfig()), "is a EvaluationConfig, expected DataConfig"),
        (lambda: Config(model={"d_ff": 8}), "model={'d_ff': 8} is a dict, expected ModelConfig"),
        (lambda: ModelConfig(d_ff=8), "is an abstract class; use EncoderDecoderConfig or another"),
    ],
)
def test_a_section_of_another_class_is_refused(make, message):
    with refused(message):
        make()


def test_a_notebook_shows_the_fields_as_keywords():
    for kind in (Config, *(type(section) for section in vars(Config()).values())):
        assert [*inspect.signature(kind).parameters] == [f.name for f in dataclasses.fields(kind)]


_LARGEST = {path: leaf.metadata for path, leaf, _ in walk(Config()) if "fits" in leaf.metadata}


@pytest.mark.parametrize("path", _LARGEST)
def test_a_size_is_positive_and_fits_into_32_bits(path):
    with refused(f"{path}={2**31} is more than the largest, 2**31 - 1, 2,147,483,647"):
        Config().replace({path: 2**31})
    if _LARGEST[path].get("range") == (1, math.inf):
        with refused(f"{path}=0 is outside [1, inf]"):
            Config().replace({path: 0})


def test_a_pace_may_be_any_number_and_means_never():
    assert EvaluationConfig(every_steps=10**12).every_steps == 10**12
    assert CheckpointConfig(every_minutes=1e300, every_steps=10**30).every_minutes == 1e300
    assert TrainingConfig(log_every_steps=10**30, max_nonfinite_steps=10**30).log_every_steps


def test_int_is_accepted_where_a_float_is_asked():
    assert TrainingConfig(learning_rate_factor=2).learning_rate_factor == 2
    assert CheckpointConfig(every_minutes=5).every_minutes == 5


def test_a_step_holds_a_sentence_of_max_length_with_its_padding():
    fits = DataConfig(max_length=257, source_tokens_per_step=264, target_tokens_per_step=264)
    length = bucket_lengths(fits.max_length)[-1]
    assert length == fits.source_tokens_per_step


def test_odd_width_is_fine_with_learned_positions():
    assert network_config(d_model=513, d_k=64, d_v=64, position="learned").d_model == 513


def test_learned_positions_must_cover_the_longest_output():
    shorter = {"model.position": "learned", "model.max_positions": 305}
    with pytest.raises(UserError, match=r"raise model\.max_positions to 306"):
        Config().replace(shorter)  # data.max_length 256 + decoding.max_extra_length 50
    Config().replace(shorter | {"model.max_positions": 306})
    Config().replace(shorter | {"model.position": "sinusoidal"})


def test_a_decoder_alone_has_positions_for_source_and_target_together():
    alone = {"model.architecture": "decoder_only", "model.position": "learned"}
    with pytest.raises(UserError, match=r"twice data\.max_length=256 .* raise .* to 562"):
        Config().replace(alone | {"model.max_positions": 561})
    config = Config().replace(alone | {"model.max_positions": 562})
    assert config.model.longest_sentence == 281
    text = {"data.task": "language_modelling", "model.max_positions": 256}
    Config().replace(alone | text)  # a text that goes on can be cut


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.task": "language_modelling"}, "set model.architecture='decoder_only'"),
        ({"model.prefix_attention": True}, "prefix_attention is for .*decoder_only"),
        (
            {
                "model.architecture": "decoder_only",
                "model.share_embeddings": False,
                "model.source_vocab_size": 9,
            },
            "size is for .*='encoder_decoder' or 'encoder_only', not for 'decoder_only'; leave it",
        ),
    ],
)
def test_what_an_architecture_cannot_have_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        Config().replace(changes)


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("model.dff", "model.d_ff"),
        ("model.num_head", "model.num_heads"),
        ("training.labelsmoothing", "training.label_smoothing"),
        ("trainning.seed", "training.seed"),
        ("d_model", "model.d_model"),
        ("decoding.beamsize", "decoding.beam_size"),
    ],
)
def test_unknown_field_is_refused_with_the_nearest_name(path, nearest):
    message = re.escape(f"unknown config field {path!r}; did you mean {nearest}?")
    with pytest.raises(UserError, match=message):
        Config().replace({path: 1})

    nested = to_dict(Config())
    section, _, name = path.partition(".")
    if name:
        nested.setdefault(section, {})[name] = 1
    else:
        nested[section] = 1
    with pytest.raises(UserError, match=message):
        Config.from_json(json.dumps(nested))


@pytest.mark.parametrize("path", ["", ".", "model", "model.", ".d_ff", "model.d_ff.x", "zzz"])
def test_path_that_names_no_field_is_refused(path):
    with pytest.raises(UserError, match="unknown config field"):
        Config().replace({path: 1})


@pytest.mark.parametrize("section", ["model", "data", "training"])
def test_a_config_that_lacks_a_section_of_every_release_is_refused(section):
    nested = to_dict(Config())
    del nested[section]
    with pytest.raises(UserError, match=rf"lacks the section {section}, which every release"):
        from_dict(nested)


def test_missing_fields_and_other_missing_sections_have_their_defaults():
    changed = Config().replace({"model.d_ff": 64, "decoding.beam_size": 2})
    nested = to_dict(changed)
    del nested["parallel"], nested["model"]["d_v"], nested["data"]["max_length"]
    assert from_dict(nested) == changed
    del nested["decoding"]
    assert from_dict(nested) == Config().replace({"model.d_ff": 64})


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"model"', '{"model": 3}'])
def test_text_that_is_no_config_is_refused(text):
    with pytest.raises(UserError):
        Config.from_json(text)


def test_configs_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().model.d_ff = 1


def test_only_binding_differences_leave_out_what_may_change_when_a_run_is_continued():
    binding = {"model.d_ff": 9, "training.seed": 9, "data.batching": "pack"}
    new = Config().replace(MAY_CHANGE | binding)
    assert differences(Config(), new, only_binding=True) == {
        "model.d_ff": (2048, 9),
        "training.seed": (0, 9),
        "data.batching": ("bucket", "pack"),
    }
    assert set(differences(Config(), new)) == set(MAY_CHANGE | binding)
    other_backend = {"parallel.backend": "pmap"}  # which does not go with fsdp and tensor
    assert not differences(Config(), Config().replace(other_backend), only_binding=True)
    marked = {path for path, leaf, _ in walk(Config()) if "may_change" in leaf.metadata}
    assert marked == set(MAY_CHANGE | other_backend)


def test_the_nearest_name_is_proposed_or_else_what_the_caller_says():
    assert did_you_mean("beamsize", iter(["beam_size", "top_k"]), "no idea") == (
        "did you mean beam_size?"
    )
    assert did_you_mean("zzz", ["beam_size", "top_k"], "no idea") == "no idea"
    assert did_you_mean("zzz", [], "no idea") == "no idea"


def test_every_field_is_documented_below_its_line():
    undocumented = []
    folder = Path(t2t_jax.config.__file__).parent
    source = "\n".join(path.read_text() for path in folder.glob("*.py"))
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name != "Config":
            for statement, below in zip(node.body, node.body[1:], strict=False):
                documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                name = isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target)
                if name and name != "architecture" and not documented:
                    undocumented.append(f"{node.name}.{ast.unparse(statement.target)}")
    assert undocumented == []


def _read_by(source, is_config):
    """The names of attributes that a module reads; of the config's own, those of its properties."""
    nodes = ast.walk(ast.parse(source))
    if is_config:
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        properties = [one for one in functions if one.name[0] != "_"]
        nodes = [node for one in properties for node in ast.walk(one)]
    return {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def test_every_field_is_read_somewhere():
    package = _ROOT / "t2t_jax"
    sources = [*package.rglob("*.py"), _ROOT / "train.py", _ROOT / "eval.py"]
    read = set().union(
        *(_read_by(path.read_text(), path.parent.name == "config") for path in sources)
    )
    composed = {f"{use}_seed" for use in ("init", "order", "dropout")}
    composed |= {f"{stack}_heads" for stack in ("encoder", "decoder", "cross")}
    # These are read by names that are put together.
    assert {path.partition(".")[2] for path in known_fields()} - read <= composed


def test_the_end_of_a_schedule_that_was_left_open_may_be_left_open_again():
    asked = Config().replace({"training.schedule": "wsd"})
    settled = asked.replace({"training.schedule_steps": 100_000})
    assert differences(settled, asked, only_binding=True) == {}
    other = asked.replace({"training.schedule_steps": 90_000})
    assert "training.schedule_steps" in differences(settled, other, only_binding=True)


def test_a_choice_left_open_differs_from_none_that_a_run_has_made():
    chosen = Config().replace({"model.compute_dtype": "bfloat16"})
    left_open = Config()
    changed = {"model.compute_dtype": ("bfloat16", "auto")}
    assert differences(chosen, left_open) == changed
    assert differences(chosen, left_open, only_binding=True) == {}
    assert differences(left_open, chosen, only_binding=True) == {}
    assert [one.model.dtype for one in (chosen, left_open)] == ["bfloat16", "float32"]
    other = Config().replace({"model.compute_dtype": "float32"})
    assert differences(chosen, other, only_binding=True)
