"""Write `fairseq/` and `fairseq_goldens.npz`: checkpoints of fairseq, and what it computes.

    git clone https://github.com/facebookresearch/fairseq
    pip install torch omegaconf hydra-core sacremoses subword-nmt sentencepiece regex sacrebleu
    python -m tests.goldens.make_fairseq_goldens fairseq

fairseq is not installed: its packages need older versions of Python. Its model, its dictionary and
its search are imported from the clone, past the code that imports everything else.

Each model is trained for some seconds on short lines, so that its hypotheses end. There are

    fairseq/NAME/       the checkpoint with its dictionaries and the file that splits text
    NAME/logits         of each line and each subword of its target, in fairseq's order of ids,
                        computed in float64
    NAME/text           as JSON: the lines, their subwords, the subwords that greedy search finds
                        (by fairseq's `SequenceGenerator`), and those of a beam search over the
                        log-probabilities of fairseq's model
"""

import argparse
import collections
import dataclasses
import gzip
import importlib
import io
import json
import random
import re
import sys
import types
from pathlib import Path
from unittest import mock

import numpy as np
import omegaconf
import sacremoses
import sentencepiece
import torch
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

HERE = Path(__file__).parent
BUNDLED = HERE.parents[1] / "t2t_jax" / "data" / "bundled"
LANGUAGES = ("en", "de")
LINES, LEARNT, LONGEST, BEAM_SIZE = 4, 16, 40, 5
SIZES = {
    "embed_dim": 16,
    "ffn_embed_dim": 24,
    "attention_heads": 4,
}
MODELS = {
    "wmt14": {"share_all_embeddings": True, "arch": "transformer_wmt_en_de"},
    "iwslt": {
        "arch": "transformer_iwslt_de_en",
        "share_decoder_input_output_embed": True,
        "normalize_before": True,
        "learned_pos": True,
        "activation_fn": "gelu",
        "layernorm_embedding": True,
        "max_source_positions": 60,
        "max_target_positions": 50,
    },
    "old": {"arch": "transformer_wmt_en_de", "normalize_before": True},
    "flores": {
        "arch": "transformer",
        "share_all_embeddings": True,
        "no_scale_embedding": True,
        "no_token_positional_embeddings": True,
    },
}


def import_fairseq(clone):
    """Import what is needed of fairseq: its model, its dictionary and its search."""
    _allow_default_objects()

    def package(name, **content):
        module = types.ModuleType(name)
        module.__path__ = [str(clone / name.replace(".", "/"))]
        vars(module).update(content)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
        return module

    def register(*_, **__):
        return lambda registered: registered

    package("fairseq")
    package("fairseq.distributed", fsdp_wrap=lambda module, **_: module, utils=mock.MagicMock())
    sys.modules["fairseq.distributed.utils"] = mock.MagicMock()
    sys.modules["fairseq.tasks"] = mock.MagicMock()
    models = package(
        "fairseq.models", register_model=register, register_model_architecture=register
    )
    for name in ("decoder", "encoder", "incremental_decoder", "model"):
        module = importlib.import_module(f"fairseq.models.fairseq_{name}")
        found = {key: x for key, x in vars(module).items() if re.match("(Base)?Fairseq", key)}
        vars(models).update(found)
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerConfig, TransformerModel
    from fairseq.sequence_generator import SequenceGenerator

    return types.SimpleNamespace(
        Dictionary=Dictionary,
        Model=TransformerModel,
        Config=TransformerConfig,
        Generator=SequenceGenerator,
    )


def _allow_default_objects():
    """Let fields of dataclasses have objects as defaults, which Python 3.11 refuses."""
    made = dataclasses.dataclass

    def dataclass(cls=None, /, **options):
        def make(cls):
            plain = "__hash__" not in vars(cls) and not options.get("frozen")
            return made(cls, **(options | {"unsafe_hash": True} if plain else options))

        return make if cls is None else make(cls)

    dataclasses.dataclass = dataclass


def corpus():
    """Short lines of the bundled corpus, in both languages."""
    files = [BUNDLED / f"dev.{name}.gz" for name in LANGUAGES]
    sides = [gzip.decompress(file.read_bytes()).decode().split("\n")[:-1] for file in files]
    pairs = zip(*sides, strict=True)
    return [pair for pair in pairs if max(map(len, pair)) <= LONGEST]


def words_of(pairs, side):
    tokenizer = sacremoses.MosesTokenizer(LANGUAGES[side])
    return [tokenizer.tokenize(pair[side], True, return_str=True) for pair in pairs]


def split_by_merges(name, pairs, directory):
    """The subwords of both sides, by merges that are learnt; the old format is that of fastBPE."""
    words = [words_of(pairs, side) for side in range(2)]
    codes = io.StringIO()
    learn_bpe(io.StringIO("\n".join(words[0] + words[1]) + "\n"), codes, 60)
    codes.seek(0)
    merges = BPE(codes)
    text = codes.getvalue()
    if name == "old":
        _, *lines = text.splitlines()
        text = "".join(f"{line} {len(lines) - n}\n" for n, line in enumerate(lines))
    (directory / ("codes" if name == "old" else "bpecodes")).write_text(text, "utf-8")
    return [[merges.segment(line).split() for line in side] for side in words]


def split_by_sentencepiece(pairs, directory):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for pair in pairs for line in pair]),
        model_writer=model,
        vocab_size=110,
        model_type="bpe",
        normalization_rule_name="identity",
        minloglevel=2,
    )
    (directory / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [processor.encode([pair[side] for pair in pairs], out_type=str) for side in range(2)]


def dictionaries(fairseq, subwords, joined, directory):
    """Entries by how often they are found; some rare ones are left out, and so unknown."""
    counts = [collections.Counter(piece for row in side for piece in row) for side in subwords]
    if joined:
        counts = [counts[0] + counts[1]] * 2
    found = []
    for name, count in zip(LANGUAGES, counts, strict=True):
        dictionary = fairseq.Dictionary()
        for piece, number in count.items():
            dictionary.add_symbol(piece, number)
        dictionary.finalize(threshold=2)
        dictionary.save(str(directory / f"dict.{name}.txt"))
        found.append(dictionary)
    return found


def options_of(name):
    """The options of a model, as fairseq-train would have put them into `args`."""
    chosen = dict(MODELS[name])
    for option in ("normalize_before", "learned_pos"):
        chosen.setdefault(option, False)
    for option in (*SIZES, "normalize_before", "learned_pos"):
        value = SIZES.get(option, chosen.pop(option, None))
        chosen |= {f"{side}_{option}": value for side in ("encoder", "decoder")}
    languages = {"source_lang": LANGUAGES[0], "target_lang": LANGUAGES[1]}
    layers = {"encoder_layers": 1, "decoder_layers": 2}
    return argparse.Namespace(**layers, **chosen, **languages, task="translation", dropout=0.0)


def padded(rows, pad):
    """Rows of ids as a tensor."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, pad)


def train(model, rows, pad):
    """Train a model a little on pairs of rows; returns the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    rng = random.Random(0)
    for _ in range(180):
        batch = rng.sample(rows, 8)
        sources, targets = (padded([pair[side] for pair in batch], pad) for side in range(2))
        logits, _ = model(sources, None, targets.roll(1, 1).index_fill(1, torch.tensor(0), 2))
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=pad
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def old_names(state):
    """Parameters under the names that early versions of fairseq had for them."""
    norms = {
        "encoder": ("self_attn_layer_norm", "final_layer_norm"),
        "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    }
    found = {"decoder.embed_positions._float_tensor": torch.zeros(1)}
    for name, tensor in state.items():
        stack = name.partition(".")[0]
        for number, norm in enumerate(norms[stack]):
            if f".{norm}." in name:
                name = name.replace(norm, f"layer_norms.{number}")
        if ".k_proj." in name or ".v_proj." in name:
            continue
        if ".q_proj." in name:
            own = [state[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            name, tensor = name.replace("q_proj.", "in_proj_"), torch.cat(own)
        found["decoder.embed_out" if "output_projection" in name else name] = tensor.half()
    return found


def save(name, fairseq, options, model, directory):
    """Write the checkpoint in one of the forms that versions of fairseq have written."""
    state = model.state_dict()
    history = [{"criterion_name": "LabelSmoothedCrossEntropyCriterion", "num_updates": 180}]
    content = {"args": None, "model": state, "optimizer_history": history}
    task = {"_name": "translation", "source_lang": LANGUAGES[0], "target_lang": LANGUAGES[1]}
    if name in ("wmt14", "old"):
        content["args"] = options
        content["model"] = old_names(state) if name == "old" else state
    elif name == "iwslt":
        content["cfg"] = {"model": options, "task": task, "tokenizer": None}
    else:
        own = {x: y for x, y in vars(options).items() if x not in ("source_lang", "target_lang")}
        nested = fairseq.Config.from_namespace(argparse.Namespace(**own))
        nested = omegaconf.OmegaConf.to_container(
            omegaconf.OmegaConf.structured(nested), enum_to_str=True
        )
        nested["_name"] = "transformer"
        content["cfg"] = omegaconf.OmegaConf.create({"model": nested, "task": task})
    file = directory / ("checkpoint_best.pt" if name != "old" else "averaged.pt")
    torch.save(content, file, _use_new_zipfile_serialization=name in ("iwslt", "flores"))


def greedy(fairseq, model, dictionary, sources):
    """What fairseq's own search finds with one hypothesis."""
    generator = fairseq.Generator([model], dictionary, beam_size=1, max_len_b=40, min_len=0)
    lengths = (sources != dictionary.pad()).sum(1)
    found = generator.generate(
        [model], {"net_input": {"src_tokens": sources, "src_lengths": lengths}}
    )
    return [[dictionary[token] for token in best["tokens"][:-1]] for best, *_ in found]


def beam(model, dictionary, source):
    """The most probable hypothesis of a beam search, and its log-probability.

    fairseq's own stops once five hypotheses have ended, which may all be less probable than one
    that has not. This one goes on until no other can be more probable.
    """
    source = source[source != dictionary.pad()][None]
    live, best = [([dictionary.eos()], 0.0)], ([], -np.inf)
    while live[0][1] > best[1]:
        prefixes = torch.tensor([tokens for tokens, _ in live])
        logits, _ = model(source.expand(len(live), -1), None, prefixes)
        scores = logits[:, -1].log_softmax(-1) + torch.tensor([[score] for _, score in live])
        scores[:, dictionary.pad()] = -np.inf
        values, places = scores.flatten().topk(2 * BEAM_SIZE)
        extended = [
            (live[place // len(dictionary)][0] + [place % len(dictionary)], value)
            for value, place in zip(values.tolist(), places.tolist(), strict=True)
        ]
        ended = [one for one in extended if one[0][-1] == dictionary.eos()]
        best = max([best, *ended], key=lambda one: one[1])
        live = [one for one in extended if one[0][-1] != dictionary.eos()][:BEAM_SIZE]
    return [dictionary[token] for token in best[0][1:-1]], best[1]


def golden(name, fairseq):
    """Make a model and its checkpoint; returns its arrays."""
    torch.manual_seed(0)
    directory = HERE / "fairseq" / name
    directory.mkdir(parents=True, exist_ok=True)
    pairs = corpus()
    if name == "flores":
        subwords = split_by_sentencepiece(pairs, directory)
    else:
        subwords = split_by_merges(name, pairs, directory)
    options = options_of(name)
    joined = getattr(options, "share_all_embeddings", False)
    own = dictionaries(fairseq, subwords, joined, directory)
    task = types.SimpleNamespace(source_dictionary=own[0], target_dictionary=own[1])
    model = fairseq.Model.build_model(options, task)
    ids = [
        [[*map(dictionary.index, row), dictionary.eos()] for row in side]
        for dictionary, side in zip(own, subwords, strict=True)
    ]
    rows = list(zip(*ids, strict=True))
    print(name, [len(one) for one in own], "loss", train(model, rows[:LEARNT], own[0].pad()))
    model.eval()
    if name == "old":
        for parameter in model.parameters():
            parameter.data = parameter.data.half().float()
    save(name, fairseq, options, model, directory)
    sources, targets = (padded(side[:LINES], own[0].pad()) for side in ids)
    with torch.no_grad():
        text = {
            "sources": [pair[0] for pair in pairs[:LINES]],
            "targets": [pair[1] for pair in pairs[:LINES]],
            "source_subwords": [[own[0][token] for token in row[:-1]] for row in ids[0][:LINES]],
            "target_subwords": [[own[1][token] for token in row[:-1]] for row in ids[1][:LINES]],
            "greedy": greedy(fairseq, model, own[1], sources),
            "beam": [beam(model, own[1], source) for source in sources],
        }
        model.double()
        logits, _ = model(sources, None, targets.roll(1, 1).index_fill(1, torch.tensor(0), 2))
    return {f"{name}/logits": logits.float().numpy(), f"{name}/text": np.array(json.dumps(text))}


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.path.insert(0, sys.argv[1])
    code = import_fairseq(Path(sys.argv[1]))
    goldens = {}
    for model_name in MODELS:
        goldens |= golden(model_name, code)
    np.savez_compressed(HERE / "fairseq_goldens.npz", **goldens)
