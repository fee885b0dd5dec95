"""The format of compiled programs of `jax.export`: the whole search, and one step of it.

    OUT/search.jax              sources to translations, all in one program
    OUT/encode.jax, step.jax    the beginning and one position of a search of one's own
    OUT/parameters.safetensors  the parameters, which all of the programs take
    OUT/vocabulary.model        the SentencePiece model that splits text into subwords
    OUT/README.md               the lines of Python that translate

The programs run on CPUs, CUDA GPUs and TPUs without this package: JAX alone loads them. Their
arrays have fixed shapes, to which a batch is filled with padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import export
from jaxtyping import Array, Bool, Float, Float32, Int32
from safetensors.numpy import save

from t2t_jax.batch import BOS_ID, PAD_ID, one_a_row
from t2t_jax.config import Config, DecodingConfig
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.decoding.constraints import Constraints
from t2t_jax.decoding.forbidden import constraints_of
from t2t_jax.decoding.scheduler import strategy_of
from t2t_jax.decoding.search import search
from t2t_jax.interchange.carried import ANY, Carried, any_value
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.modules.decoding_model import Cache, DecodingModel, Memory
from t2t_jax.modules.matrices import Parameters
from t2t_jax.modules.models import make_decoding_model, make_model
from t2t_jax.modules.names import parameters_of
from t2t_jax.modules.network import declared_parameters

VOCABULARIES = (SharedVocabulary,)

PLATFORMS = ("cpu", "cuda", "tpu")
"""The platforms that the programs are lowered for."""

_ROWS = 8
_README = """\
# A Transformer of t2t_jax as compiled programs

    import jax.export, numpy, sentencepiece
    from safetensors.numpy import load_file

    processor = sentencepiece.SentencePieceProcessor(model_file="vocabulary.model")
    program = jax.export.deserialize(bytearray(open("search.jax", "rb").read()))
    sources = numpy.zeros(({rows}, {length}), numpy.int32)
    tokens = processor.encode("Hello, world!", add_eos=True)
    sources[0, : len(tokens)] = tokens
    found, log_probs = program.call(load_file("parameters.safetensors"), sources)
    print(processor.decode([int(token) for token in found[0] if token > {last_special}]))

It needs `pip install jax safetensors sentencepiece`, with JAX for CPU, CUDA or TPU: jax {version}
lowered the programs for {platforms}. By JAX's promise, releases of the following six months
load them.

`search.jax` takes the parameters and sources, and gives the best translation of each, with its
log-probability. For a search of one's own, `encode.jax` takes the same and gives a state, a list of
arrays; `step.jax` takes the parameters, the state, the last token of each row (at position 0 the
id {bos}) and the position, and gives the logits of the next token and the state that follows.
Sources have {length} subwords at most, with the end of sentence, and translations {room}.
"""


def carried(config: Config) -> Carried:
    """Return the fields of a config that the format can hold: any model, and most of a search."""
    del config  # every model can be compiled
    names = "beam_size", "length_penalty", "max_extra_length", "min_length"
    constraints = "no_repeat_ngram_size", "forbidden", "forbidden_ids"
    return {
        "model": ANY,
        **any_value("decoding", *names, *constraints),
        "decoding.beam_rule": ("paper", "transformers"),
    }


def write(model: PortableModel, directory: Path) -> None:
    """Write a model as compiled programs."""
    network = make_model(model.config, len(model.vocabulary), None)
    params = parameters_of(model.arrays, nn.unbox(declared_parameters(network)))
    flat = {name: np.asarray(x, order="C") for name, x in flatten_dict(params, sep=".").items()}
    programs = _Programs.of(model)
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in flat.items()}
    sources = jax.ShapeDtypeStruct((_ROWS, programs.length), jnp.int32)
    tokens, position = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((_ROWS,), ()))
    state = jax.eval_shape(programs.encode, shapes, sources)
    for name, arguments in (
        ("search", (shapes, sources)),
        ("encode", (shapes, sources)),
        ("step", (shapes, state, tokens, position)),
    ):
        program = export.export(jax.jit(getattr(programs, name)), platforms=PLATFORMS)(*arguments)
        (directory / f"{name}.jax").write_bytes(program.serialize())
    (directory / "parameters.safetensors").write_bytes(save(flat))
    (directory / "vocabulary.model").write_bytes(model.vocabulary.serialized)
    text = _README.format(
        rows=_ROWS,
        length=programs.length,
        room=programs.room,
        bos=BOS_ID,
        last_special=max(PAD_ID, BOS_ID),
        platforms=", ".join(PLATFORMS),
        version=jax.__version__,
    )
    (directory / "README.md").write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class _Programs:
    """The exported functions, which take arrays in plain dictionaries, lists and tuples."""

    model: DecodingModel
    decoding: DecodingConfig
    length: int
    """The number of subwords of a source, including padding."""
    constraints: Constraints | None = field(compare=False)
    """The tokens that the search may choose; None is all."""

    @staticmethod
    def of(model: PortableModel) -> "_Programs":
        config: Config = model.config
        network = make_decoding_model(config.model, len(model.vocabulary), None)
        constraints = constraints_of(config.decoding, model.vocabulary)
        return _Programs(network, config.decoding, config.data.max_length, constraints)

    @property
    def room(self) -> int:
        """Return the most subwords of a translation, including the end of sentence."""
        return self.length + self.decoding.max_extra_length

    def search(
        self, parameters: Mapping[str, Array], sources: Int32[Array, "b s"]
    ) -> tuple[Int32[Array, "b t"], Float32[Array, " b"]]:
        """Return the best translation of each source, and its log-probability."""
        params, strategy = self._prepared(parameters), strategy_of(self.decoding)
        memory = self.model.memory(params, one_a_row(sources))
        lengths = jnp.sum(sources != PAD_ID, axis=1)
        limits = jnp.where(lengths > 0, lengths + self.decoding.max_extra_length, 0)

        def step(
            tokens: Int32[Array, "b k"],
            positions: Int32[Array, " b"],
            clock: Int32[Array, ""],
            ancestry_mask: Bool[Array, "b k t k"],
            cache: Cache,
        ) -> tuple[Float[Array, "b k v"], Cache]:
            return self.model.step(params, tokens, positions, clock, ancestry_mask, cache, memory)

        cache = self.model.empty_cache(len(sources), strategy.beam_size, self.room)
        found = search(
            strategy,
            step,
            cache,
            limits,
            room=self.room,
            bos_id=BOS_ID,
            pad_id=PAD_ID,
            constraints=self.constraints,
        )
        return found.tokens[:, 0], found.log_probs[:, 0]

    def encode(self, parameters: Mapping[str, Array], sources: Int32[Array, "b s"]) -> list[Array]:
        """Return the state before the first step: an empty cache, and the memory of the sources."""
        return jax.tree.leaves(self._state(parameters, sources))

    def step(
        self,
        parameters: Mapping[str, Array],
        state: Sequence[Array],
        tokens: Int32[Array, " b"],
        position: Int32[Array, ""],
    ) -> tuple[Float[Array, "b v"], list[Array]]:
        """Return the logits of the next token of each row, and the state that follows."""
        sources = jax.ShapeDtypeStruct((len(tokens), self.length), jnp.int32)
        structure = jax.tree.structure(jax.eval_shape(self._state, parameters, sources))
        cache, memory = jax.tree.unflatten(structure, list(state))
        places = jnp.arange(self.room) <= position
        logits, cache = self.model.step(
            self._prepared(parameters),
            tokens[:, None],
            jnp.broadcast_to(position, tokens.shape),
            position,
            jnp.broadcast_to(places[None, None, :, None], (len(tokens), 1, self.room, 1)),
            cache,
            memory,
        )
        return logits[:, 0], jax.tree.leaves((cache, memory))

    def _prepared(self, parameters: Mapping[str, Array]) -> Parameters:
        nested = unflatten_dict(dict(parameters), sep=".")
        return self.model.prepare(nested, self.decoding.quantize)

    def _state(
        self, parameters: Mapping[str, Array], sources: Int32[Array, "b s"]
    ) -> tuple[Cache, Memory]:
        memory = self.model.memory(self._prepared(parameters), one_a_row(sources))
        return self.model.empty_cache(len(sources), 1, self.room), memory
