"""Read models of transformers in the formats M2M100 (also NLLB), mBART and BART.

    DIR/config.json, generation_config.json     sizes, special ids, search settings
    DIR/model.safetensors                       the parameters, or pytorch_model.bin
    DIR/tokenizer.json ...                      the vocabulary; see `seq2seq.entries`

Imported entries get new ids: padding 0, end of sentence 1, and 2 for the token that starts a
target, or else for `<s>`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NotRequired

import numpy as np
from jaxtyping import Float32

from t2t_jax.batch import EOS_ID
from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange import generation, model_files, places, portable, pretrained
from t2t_jax.extras.interchange.carried import ANY, SEARCH, Carried, fields_of_transformers
from t2t_jax.extras.interchange.seq2seq.entries import Entries, read_entries, tokenizer_settings
from t2t_jax.extras.interchange.vocabularies import framed
from t2t_jax.functional.position import tensor2tensor_sinusoids
from t2t_jax.modules.names import Arrays
from t2t_jax.system.records import Record, schema

SHARED, BIAS = "shared.weight", "final_logits_bias"
_START, _FORCED = "decoder_start_token_id", "forced_bos_token_id"
_TOKENS = dict.fromkeys((_START, _FORCED, "bos_token_id"), NotRequired[model_files.ID | None])
RESERVED_ROWS = 2
"""The unused first rows of a learned position table: positions start after padding's id, 1."""
_VERSION: places.Constants = {r"(model\.)?(encoder|decoder)\.version": [lambda *_: 3]}
"""The layer version that fairseq stored; earlier versions computed another function."""
_SINUSOIDS = r"(model\.)?(encoder|decoder)\.embed_positions\.weights"
_EPSILON = 1e-5
"""The epsilon of these models' norms."""
_FIRST_POSITION = 2
"""The position of the first token in models with sinusoids."""


@dataclass(frozen=True)
class Seq2SeqFormat:
    """One family of encoder-decoders in transformers, such as mBART."""

    VOCABULARIES: ClassVar = (framed.FramedVocabulary,)

    model_type: str
    """The value of `model_type` in config.json."""
    model_class: str
    """The model's class in transformers."""
    norm_order: Literal["pre", "post"]
    """Pre-norm or post-norm; each pre-norm stack has a final norm."""
    has_table: bool = True
    """Whether positions are learned, embeddings normalized and logits biased (BART). Otherwise
    positions are sinusoids."""
    starts_with_end: bool = True
    """Whether a target starts with `</s>` by default. Otherwise it starts with a language tag."""
    has_languages: bool = True
    """Whether the vocabulary has language tags."""

    @property
    def fields(self) -> pretrained.Counterparts:
        """Return the fields of config.json that match fields of our config."""
        if self.has_table:
            return pretrained.encoder_decoder_fields("gelu")
        return pretrained.encoder_decoder_fields("relu", scaled=True, attention_dropout=0.1)

    @property
    def fixed(self) -> dict[str, object]:
        """Return the only supported value of some options in config.json, by option."""
        tied, is_pre = {"tie_word_embeddings": True}, self.norm_order == "pre"
        norms = {"normalize_before": is_pre, "add_final_layer_norm": is_pre}
        bart = {"normalize_embedding": True, "static_position_embeddings": False, **norms}
        # Sinusoids begin after the id of padding; those of M2M100 and NLLB begin at 2.
        return {**tied, **(bart if self.has_table else {"pad_token_id": _FIRST_POSITION - 1})}

    @property
    def model_fields(self) -> dict[str, object]:
        """Return the config fields, by path, that are equal in all models of the format."""
        return {
            "model.attention_bias": True,
            "model.norm_epsilon": _EPSILON,
            "model.norm_order": self.norm_order,
            "model.position": "learned" if self.has_table else "sinusoidal_t2t",
            "model.first_position": 0 if self.has_table else _FIRST_POSITION,
            "model.embedding_norm": self.has_table,
            "model.output_bias": self.has_table,
            "model.share_embeddings": True,
        }

    def carried(self, config: Config) -> Carried:
        """Return the allowed values of each config field that the format can hold."""
        return {
            **fields_of_transformers(config.model),
            **SEARCH,
            **{name: (value,) for name, value in self.model_fields.items()},
            "model.max_positions": ANY,
            "model.architecture": ("encoder_decoder",),
            "model.start_token": ("begin", "end", *("padding",) * self.has_table),
        }

    def read(
        self, path: Path, *, source_language: str | None = None, target_language: str | None = None
    ) -> portable.PortableModel:
        """Read a model and its vocabulary from a directory.

        Args:
          source_language: the default source language of later commands; None takes it from the
            files, or else English.
          target_language: the language of translations; None takes it from the files.
        """
        hf_config = pretrained.read_encoder_decoder_config(
            path, self.model_type, self.fields, _TOKENS, self.fixed
        )
        entries = read_entries(path, hf_config["vocab_size"])
        if self.has_languages and not entries.languages:
            raise UserError(
                f"{entries.file} and the files beside it have no language tag, which every "
                f"{self.model_type} has; copy the files of one model"
            )
        file = path / generation.FILE
        search = model_files.read_json(file, schema(_TOKENS)) if file.exists() else {}
        # generation_config.json takes precedence over config.json, as in transformers.
        starts = {name: search[name] for name in (_START, _FORCED) if search.get(name) is not None}
        hf_config = {_START: None, _FORCED: None, **hf_config, **starts}
        languages = _languages(path, entries, hf_config, source_language, target_language)
        codes = [framed.language_code(name, list(entries.languages)) for name in languages]
        if hf_config[_START] is None and (self.starts_with_end or not codes):
            hf_config[_START] = hf_config["eos_token_id"]
        elif hf_config[_START] in (None, *entries.languages.values()):
            hf_config[_START] = entries.languages[codes[1]]
        # Padding has no position in transformers, so a target cannot start with it.
        if not self.has_table and hf_config[_START] == hf_config["pad_token_id"]:
            expected = {_START: hf_config["eos_token_id"]}
            pretrained.refuse_other_options(path / "config.json", hf_config, expected)
        vocabulary, hf_ids = _vocabulary(path, self, hf_config, entries, codes)
        start_names = {hf_config["pad_token_id"]: "padding", hf_config["eos_token_id"]: "end"}
        language_fields = "data.source_language", "data.target_language"
        changes: Mapping[str, Any] = {
            **self.model_fields,
            "model.start_token": start_names.get(hf_config[_START], "begin"),
            "data.vocab_size": len(vocabulary),
            "decoding.max_source_length": max(8, hf_config.get("max_position_embeddings", 1024)),
            **dict(zip(language_fields, languages, strict=False)),
        }
        config = pretrained.config_from_hf(path, hf_config, self.fields, changes)
        arrays = _arrays(pretrained.read_tensors(path), self, config, hf_ids)
        if self.has_table:
            length = len(arrays["target_position"])
            pretrained.refuse_other_options(
                path / "config.json", hf_config, {"max_position_embeddings": length}
            )
            limits = {
                "data.max_length": min(config.data.max_length, length // 2),
                "decoding.max_extra_length": min(config.decoding.max_extra_length, length // 2),
            }
            config = config.replace({"model.max_positions": length, **limits})
        model = portable.PortableModel(config, vocabulary, arrays, ())
        return generation.with_hf_search(model, path, hf_config, hf_ids.tolist(), (_FORCED, _START))

    def write(self, model: portable.PortableModel, directory: Path) -> None:
        """Write a model as transformers' `save_pretrained` does."""
        from t2t_jax.extras.interchange.seq2seq.writing import write_seq2seq  # imports this module

        write_seq2seq(model, self, directory)


M2M100 = Seq2SeqFormat("m2m_100", "M2M100ForConditionalGeneration", "pre", has_table=False)
MBART = Seq2SeqFormat("mbart", "MBartForConditionalGeneration", "pre", starts_with_end=False)
BART = Seq2SeqFormat("bart", "BartForConditionalGeneration", "post", has_languages=False)


def _languages(
    path: Path, entries: Entries, hf_config: Record, source: str | None, target: str | None
) -> tuple[str, ...]:
    """Return the source and target languages: the arguments, or else those in the files."""
    codes, settings = list(entries.languages), tokenizer_settings(path)
    if not codes:
        return ()
    code_of = {hf_id: code for code, hf_id in entries.languages.items()}
    english_codes = (code for code in codes if code.split("_")[0] in ("en", "eng"))
    source = source or settings.get("src_lang") or next(english_codes, codes[0])
    target = target or settings.get("tgt_lang") or code_of.get(hf_config[_FORCED])
    target = target or code_of.get(hf_config[_START])
    if target is None:
        raise UserError(
            f"{path} does not name the language to translate into; name one with "
            f"--target-language, such as {', '.join(codes[:6])}"
        )
    return source, target


def _vocabulary(
    path: Path, form: Seq2SeqFormat, hf_config: Record, entries: Entries, pair: Sequence[str]
) -> tuple[framed.FramedVocabulary, places.Order]:
    """Return the vocabulary with language tags, and the model's id of each entry."""
    ids = {piece: hf_id for hf_id, piece in enumerate(entries.pieces)}
    pad, end, start = hf_config["pad_token_id"], hf_config["eos_token_id"], hf_config[_START]
    stated_bos_id = hf_config.get("bos_token_id")
    bos_id: Any = ids.get(places.BEGIN, pad) if stated_bos_id is None else stated_bos_id
    first_ids = [pad, end, bos_id if start in (pad, end) else start, ids[places.UNKNOWN]]
    text, hf_ids = entries.vocabulary(first_ids, bos_id)
    our_ids = {int(hf_id): our_id for our_id, hf_id in enumerate(hf_ids)}
    if form.has_languages:
        settings = tokenizer_settings(path)
        # mBART-25 and legacy NLLB put the language tag after the source, not before it.
        is_mbart25 = start not in (pad, end) and "50" not in str(settings.get("tokenizer_class"))
        has_tag_after = bool(settings.get("legacy_behaviour")) or is_mbart25
        source = ([], [EOS_ID, framed.LANGUAGE]) if has_tag_after else ([framed.LANGUAGE], [EOS_ID])
        target = [framed.LANGUAGE] if start in (pad, end) else []
    else:
        source, target = ([our_ids[bos_id]], [EOS_ID]), [our_ids[bos_id]]
    vocabulary = framed.framed_vocabulary(
        text,
        source=source,
        target=target,
        silent=sorted(our_ids[hf_id] for hf_id in entries.silent | {bos_id}),
        languages={code: our_ids[hf_id] for code, hf_id in entries.languages.items()},
        pair=pair,
        first=first_ids,
    )
    return vocabulary, hf_ids


def _arrays(
    tensors: places.Tensors, form: Seq2SeqFormat, config: Config, hf_ids: places.Order
) -> Arrays:
    width, size, prefix = config.model.d_model, len(hf_ids), tensors.prefix("model.")
    # A file may repeat the shared embedding matrix under any of these names.
    sides = (f"{prefix}{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))
    output = f"{prefix}decoder.output_projection.weight"
    names = [f"{prefix}{SHARED}", *sides, output, "lm_head.weight"]
    embedding = tensors.take(next(filter(tensors.__contains__, names), names[0]), size, width)
    for name in names:
        tensors.take_copy(name, embedding)
    arrays = {"embedding": places.reorder_rows(embedding, hf_ids)}
    if form.has_table:
        arrays["output_bias"] = np.zeros(size, np.float32)  # what transformers takes without it
        if BIAS in tensors:
            arrays["output_bias"] = places.reorder_rows(tensors.take(BIAS, 1, size)[0], hf_ids)
        length = None
        for side, stack in (("source", "encoder"), ("target", "decoder")):
            rows = tensors.take(f"{prefix}{stack}.embed_positions.weight", length, width)
            arrays[f"{side}_position"] = rows[RESERVED_ROWS:]
            length = len(rows)
    pairs = places.encoder_decoder_pairs(config.model, prefix)
    arrays |= {pair.name: pair.import_array(tensors) for pair in pairs}
    tensors.finish(_VERSION if form.has_table else {**_VERSION, _SINUSOIDS: [_sinusoids]})
    return arrays


def _sinusoids(rows: int, width: int) -> Float32[np.ndarray, "rows width"]:
    table = np.array(tensor2tensor_sinusoids(rows, width))
    table[_FIRST_POSITION - 1] = 0  # the row of padding
    return table
