"""Write M2M100, NLLB, mBART and BART models in the layout of transformers' `save_pretrained`.

The directory gets the files that `seq2seq.format` reads, and a README.md with Python code that
translates. Vocabulary entries get back the ids that they had before the import.
"""

from pathlib import Path
from typing import Any

import numpy as np

from t2t_jax.batch import BOS_ID
from t2t_jax.extras.interchange import generation, places, portable, pretrained
from t2t_jax.extras.interchange.seq2seq import entries
from t2t_jax.extras.interchange.seq2seq.format import BIAS, RESERVED_ROWS, SHARED, Seq2SeqFormat
from t2t_jax.extras.interchange.vocabularies.framed import FramedVocabulary
from t2t_jax.extras.interchange.vocabularies.paired import PairedVocabulary

_README = """\
# A model of t2t_jax as {name} of transformers

    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(".")
    model = AutoModelForSeq2SeqLM.from_pretrained(".")
    outputs = model.generate(**tokenizer(["Hello, world!"], return_tensors="pt", padding=True))
    print(tokenizer.batch_decode(outputs, skip_special_tokens=True)[0])

The example needs `pip install transformers torch sentencepiece`.{languages}
"""
_LANGUAGES = """ It translates from {} to {}; `tokenizer.src_lang` and the
`forced_bos_token_id` of `generate` choose other languages of the model."""


def write_seq2seq(model: portable.PortableModel, form: Seq2SeqFormat, directory: Path) -> None:
    """Write a model, its vocabulary and a README to a directory."""
    vocabulary, config = model.vocabulary, model.config
    assert isinstance(vocabulary, FramedVocabulary)
    size, length = len(vocabulary), config.model.num_positions
    _, hf_ids = places.new_order([""] * size, vocabulary.first)
    pieces = vocabulary.pieces([range(size)])[0]
    bos_id = pieces.index(places.BEGIN) if places.BEGIN in pieces else BOS_ID
    special_settings = generation.special_ids(config.model, hf_ids, bos_id)
    forced_id = vocabulary.target_begin[0] if vocabulary.target_begin else None
    special_settings["forced_bos_token_id"] = None if forced_id is None else int(hf_ids[forced_id])
    settings = {
        "vocab_size": size,
        **pretrained.hf_encoder_decoder_fields(config.model, form.fields),
        "max_position_embeddings": length if form.has_table else generation.num_positions(config),
        "tie_word_embeddings": True,
        **special_settings,
    }
    arrays = dict(_their_arrays(model, form, hf_ids))
    languages = _LANGUAGES.format(*vocabulary.pair) if vocabulary.pair else ""
    readme = _README.format(name=form.model_class, languages=languages)
    pretrained.write_files(directory, form.model_class, form.model_type, settings, arrays, readme)
    generation.write_search(directory, config, special_settings, hf_ids)
    _write_vocabulary(vocabulary, form, hf_ids, directory)


def _their_arrays(
    model: portable.PortableModel, form: Seq2SeqFormat, hf_ids: places.Order
) -> places.NamedArrays:
    our_ids, arrays = np.argsort(hf_ids), model.arrays
    yield f"model.{SHARED}", arrays["embedding"][our_ids]
    if form.has_table:
        yield BIAS, arrays["output_bias"][our_ids][None]
        for stack, side in (("encoder", "source"), ("decoder", "target")):
            table = arrays[f"{side}_position"]
            reserved_rows = np.zeros((RESERVED_ROWS, table.shape[1]), table.dtype)
            yield f"model.{stack}.embed_positions.weight", np.concatenate([reserved_rows, table])
    for pair in places.encoder_decoder_pairs(model.config.model, "model."):
        yield pair.hf_name, pair.export_array(arrays)


def _write_vocabulary(
    vocabulary: FramedVocabulary, form: Seq2SeqFormat, hf_ids: places.Order, directory: Path
) -> None:
    settings: dict[str, Any] = dict(zip(("src_lang", "tgt_lang"), vocabulary.pair, strict=False))
    our_ids = np.argsort(hf_ids).tolist()  # by the model's id
    names = [vocabulary.pieces([[our_id]])[0][0] for our_id in our_ids]
    tags = [names[hf_id] for hf_id in sorted(hf_ids[list(vocabulary.marks.values())])]
    settings |= {"tokenizer_class": _tokenizer_class(vocabulary, form, tags)}
    files = vocabulary.text.files
    if isinstance(vocabulary.text, PairedVocabulary):
        (directory / entries.SENTENCEPIECE).write_bytes(files["source.spm"])
        size = min(map(names.index, tags), default=len(names))
        extra = [name for n, name in enumerate(names[size:], size) if name != entries.unused(n)]
        pretrained.write_json(directory / entries.SPECIAL, {"additional_special_tokens": extra})
        if tags and tags[0].startswith("__"):
            table = {name: hf_id for hf_id, name in enumerate(names[:size])}
            pretrained.write_json(directory / entries.TABLE, table)
            settings |= entries.language_codes(list(vocabulary.marks))
    else:
        (directory / entries.TOKENIZER).write_bytes(files[entries.TOKENIZER])
        settings |= {"extra_special_tokens": tags}
    # Legacy NLLB adds two tokens after a source: </s> and the language tag.
    if form.starts_with_end and vocabulary.source_frame[1][0] != vocabulary.source_frame[1][-1]:
        settings |= {"legacy_behaviour": True}
    pretrained.write_json(directory / entries.SETTINGS, settings)


def _tokenizer_class(vocabulary: FramedVocabulary, form: Seq2SeqFormat, tags: list[str]) -> str:
    if not form.has_languages:
        return "BartTokenizer"
    if form.model_type == "mbart":
        return "MBart50Tokenizer" if vocabulary.source_frame[0] else "MBartTokenizer"
    return "M2M100Tokenizer" if tags and tags[0].startswith("__") else "NllbTokenizer"
