"""The files of the format of ONNX: two graphs, which another program's search calls.

    OUT/encoder.onnx        sources to keys and values, which every step attends to
    OUT/decoder.onnx        a token and the cache to the logits of the next token and a new cache
    OUT/model.json          the ids, the names of the arrays, the languages and the settings
    OUT/vocabulary.model    the SentencePiece model that splits text into subwords
    OUT/README.md           the lines of Python that translate
    OUT/index.html          the page that translates in a browser, if there is to be one

A cache grows by one position in each step, and is empty before the first.
"""

import json
import logging
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import export
from jaxtyping import Array, Int32

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, one_a_row
from t2t_jax.config import Config
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.errors import needs_extra
from t2t_jax.interchange.carried import Carried, any_value, common_search
from t2t_jax.interchange.onnx.page import check_splits, page_files, runtime_files
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.kernels.choice import XLA_KERNELS
from t2t_jax.modules.matrices import Parameters
from t2t_jax.modules.models import make_decoding_model
from t2t_jax.modules.names import parameters_of
from t2t_jax.modules.network import declared_parameters
from t2t_jax.modules.transformer import TransformerDecoding

VOCABULARIES = (SharedVocabulary,)

_LONGEST = 1024
"""The most subwords of a source, and of a translation: beyond it attention is computed in blocks,
which the graphs do not have."""

_README = """\
# A Transformer of t2t_jax as graphs of ONNX

    import json
    import numpy, onnxruntime, sentencepiece

    about = json.load(open("model.json"))
    split = sentencepiece.SentencePieceProcessor(model_file="vocabulary.model")
    encoder, decoder = (
        onnxruntime.InferenceSession(about[name], providers=["CPUExecutionProvider"])
        for name in ("encoder", "decoder")
    )
    sources = numpy.array([split.encode("Hello, world!", add_eos=True)], numpy.int32)
    memory = dict(zip(about["memory"], encoder.run(about["memory"], {{"sources": sources}})))
    cache = {{
        f"past.{{name}}": numpy.zeros([1, *shape], numpy.float32)
        for name, shape in about["cache"].items()
    }}
    results = ["logits", *(f"present.{{name}}" for name in about["cache"])]
    tokens, found = numpy.zeros(1, numpy.int32), []
    for _ in range(sources.size + about["search"]["max_extra_length"]):
        logits, *arrays = decoder.run(results, {{"tokens": tokens, **memory, **cache}})
        tokens, cache = logits.argmax(-1).astype(numpy.int32), dict(zip(cache, arrays))
        if tokens[0] == about["ids"]["end"]:
            break
        found.append(int(tokens[0]))
    print(split.decode(found))

It needs `pip install numpy onnxruntime sentencepiece`. This is greedy search, which finds what
t2t_jax finds with `--beam-size 1`{agreement}.

Rows are independent, and all of them are at one position. A search of k hypotheses of a source
repeats the arrays of the memory k times, and picks the rows of the cache that the chosen hypotheses
continue. At position 0, with an empty cache, the decoder takes its own start: any token will do.
`cross_attention` says, as `[batch, layer, head, source]`, from where the decoder has read.

Sources have {longest} subwords at most, with the end of sentence; the padding behind it is id
{padding}.
"""


def carried(config: Config) -> Carried:
    """Return the fields of a config that the format can hold: any encoder-decoder without window.

    The graphs are made of what the network computes, so that no option of it can be left out.
    """
    return {
        **any_value("model", *(field.name for field in fields(config.model))),
        "model.architecture": ("encoder_decoder",),
        "model.attention_window": (None,),
        **common_search(),
    }


def write(model: PortableModel, directory: Path, dtype: str, page: Path | None = None) -> None:
    """Write a model as graphs of ONNX.

    Args:
      page: the file of npm's package onnxruntime-web, for a page beside the graphs; None is none.

    Raises:
      UserError: onnx, or for int8 onnxruntime, is not installed; `page` is another file, or the
        page cannot split text as the model does.
    """
    with needs_extra("onnx", "the format onnx"):
        import onnx

        from t2t_jax.interchange.onnx.graph import graph_of
        from t2t_jax.interchange.onnx.operations import OPERATIONS
    beside = dict(model.vocabulary.files)
    if page is not None:
        check_splits(model.vocabulary)
        beside |= runtime_files(page)
    functions = _Functions.of(model)
    about = _about(model, functions, dtype)
    if page is not None:
        beside |= page_files(about)
    for name, inputs, outputs in (
        ("encoder", {"sources": functions.sources}, [f"memory.{x}" for x in functions.memory]),
        ("decoder", functions.step_inputs, functions.step_outputs),
    ):
        graph = graph_of(getattr(functions, name), inputs, outputs, OPERATIONS)
        path = directory / f"{name}.onnx"
        onnx.save(graph, path)
        if dtype == "int8":
            _quantize(path)
    for name, content in beside.items():
        (directory / name).write_bytes(content)
    (directory / "model.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    agreement = ", but for what 8 bits round" if dtype == "int8" else ""
    text = _README.format(agreement=agreement, longest=about["longest_source"], padding=PAD_ID)
    (directory / "README.md").write_text(text, encoding="utf-8")


def _quantize(path: Path) -> None:
    """Replace the matrices of a graph by integers of 8 bits, each column with a scale of its own.

    onnxruntime rounds what they multiply as it comes.
    """
    with needs_extra("onnx", "the dtype int8 of the format onnx"):
        from onnxruntime.quantization import QuantType, quantize_dynamic
    logging.getLogger().addFilter(_is_no_advice)
    try:
        quantize_dynamic(path, path, per_channel=True, weight_type=QuantType.QUInt8)
    finally:
        logging.getLogger().removeFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return "pre-processing" not in record.getMessage()  # the graphs need none


def _about(model: PortableModel, functions: "_Functions", dtype: str) -> dict[str, Any]:
    """Return what a program has to know of the graphs."""
    config, vocabulary = model.config, model.vocabulary
    decoding, data = config.decoding, config.data
    longest = min(_LONGEST, config.model.longest_sentence, decoding.max_source_length)
    paths = (path.partition(".")[::2] for path in common_search())
    return {
        "encoder": "encoder.onnx",
        "decoder": "decoder.onnx",
        "weights": dtype,
        "languages": [data.source_language, data.target_language],
        "ids": {"padding": PAD_ID, "end": EOS_ID, "begin": BOS_ID, "unknown": vocabulary.unk_id},
        "longest_source": int(longest),
        "longest_target": int(min(_LONGEST, config.model.longest_sentence)),
        "search": {name: getattr(decoding, name) for _, name in sorted(paths)},
        "memory": [f"memory.{name}" for name in functions.memory],
        "cache": {
            name: [size if isinstance(size, int) else 0 for size in aval.shape[1:]]
            for name, aval in functions.cache.items()
        },
    }


@dataclass(frozen=True)
class _Functions:
    """The functions that become graphs, which take and return lists of arrays."""

    model: TransformerDecoding
    params: Parameters
    batch: Any
    """The number of rows, a symbol, as are the next two."""
    source: Any
    past: Any

    @staticmethod
    def of(model: PortableModel) -> "_Functions":
        """Prepare the parameters of a model, all in float32."""
        config = replace(model.config.model, compute_dtype="float32")
        made: Any = make_decoding_model(config, len(model.vocabulary), None)
        # Products with the matrix on the right, as other engines have them.
        kernels = replace(XLA_KERNELS, products="fused")
        decoding = replace(made, network=made.network.clone(kernels=kernels))
        params = parameters_of(model.arrays, nn.unbox(declared_parameters(made.network)))
        bound = f"source <= {_LONGEST}"
        sizes = export.symbolic_shape("batch, source, past", constraints=[bound])
        return _Functions(decoding, decoding.prepare(jax.tree.map(jnp.asarray, params)), *sizes)

    @property
    def sources(self) -> Any:
        """Return the shape of sources."""
        return jax.ShapeDtypeStruct((self.batch, self.source), jnp.int32)

    @cached_property
    def cache(self) -> dict[str, Any]:
        """Return the shapes of the keys and values that a step takes, by their names."""
        empty = jax.eval_shape(lambda: self.model.empty_cache(self.batch, 1, self.past))
        return dict(zip(_names(empty), jax.tree.leaves(empty), strict=True))

    @cached_property
    def memory(self) -> dict[str, Any]:
        """Return the shapes of what a step needs of the sources, by their names."""
        *keys_values, mask = jax.eval_shape(self.encoder, self.sources)
        return {**dict(zip(_names(keys_values), keys_values, strict=True)), "mask": mask}

    @property
    def step_inputs(self) -> dict[str, Any]:
        """Return the shapes of all that a step takes."""
        tokens = jax.ShapeDtypeStruct((self.batch,), jnp.int32)
        past = {f"past.{name}": aval for name, aval in self.cache.items()}
        return {"tokens": tokens, **past, **{f"memory.{k}": v for k, v in self.memory.items()}}

    @property
    def step_outputs(self) -> list[str]:
        """Return the names of all that a step returns."""
        return ["logits", "cross_attention", *(f"present.{name}" for name in self.cache)]

    def encoder(self, sources: Int32[Array, "b s"]) -> list[Array]:
        """Return the keys and values of each layer, and which positions are no padding."""
        return jax.tree.leaves(self.model.memory(self.params, one_a_row(sources)))

    def decoder(self, tokens: Int32[Array, " b"], **state: Array) -> list[Array]:
        """Return the logits of the next token, the weights of cross-attention and the new cache."""
        axes = self.model.axes()
        old = [state[f"past.{name}"] for name in self.cache]
        memory = [state[f"memory.{name}"] for name in self.memory]
        cache = jax.tree.unflatten(
            jax.tree.structure(axes.slots),
            [
                jnp.pad(x, [(0, int(each == axis)) for each in range(x.ndim)])
                for x, axis in zip(old, jax.tree.leaves(axes.slots), strict=True)
            ],
        )
        position = jnp.asarray(self.past, jnp.int32)
        positions = jnp.broadcast_to(position, tokens.shape)
        seen = jnp.ones((self.batch, 1, self.past + 1, 1), bool)
        (logits, cache), sown = self.model.network.clone(is_cached=True).apply(
            {"params": self.params},
            *(tokens[:, None], positions, position, seen, cache),
            jax.tree.unflatten(jax.tree.structure(axes.sources), memory),
            method="step",
            mutable=["intermediates"],
        )
        layers = sown["intermediates"]["decoder"]
        weights = [
            layers[f"layers_{number}"]["cross_attention"]["weights"][0][:, :, 0]
            for number in range(len(layers))
        ]
        return [logits[:, 0], jnp.stack(weights, axis=1), *jax.tree.leaves(cache)]


def _names(layers: Any) -> list[str]:
    """Return the names of the keys and values of layers."""
    count = len(jax.tree.leaves(layers)) // 2
    return [f"{number}.{kind}" for number in range(count) for kind in ("key", "value")]
