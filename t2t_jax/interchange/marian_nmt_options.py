"""The options of a model of marian-nmt, with the check that this package has such models.

The options are those of the command line of marian-nmt, with its defaults for those not given.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from t2t_jax.errors import UserError

Value = TypeVar("Value", bool, int, str)
"""The type of an option."""

_MOST = 10_000_000
_MOST_LAYERS = 10_000
_EXACT_GELU_SINCE = (1, 12, 3)
_PRE_NORM_SINCE = (1, 11, 0)
_ORDERS: Mapping[tuple[str, str, str], str] = {("", "an", ""): "post", ("n", "a", "n"): "pre"}
"""The order of norms, by the operations before and after a sub-layer and after a stack: "n" is a
norm, and "a" adds the residual. Dropout, "d", is left out, as it changes no order."""

_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-ffn-activation": ("swish", "relu", "gelu"),
    "transformer-no-projection": (False,),
    "transformer-pool": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-attention-mask": ("default",),
    "lemma-dim-emb": (0,),
    "lemma-dependency": ("",),
    "factors-combine": ("sum",),
    "ulr": (False,),
    "right-left": (False,),
}
"""The options that change the model, each with the values that this package can have; the first
value is the default of marian-nmt."""


class MarianOptions(NamedTuple):
    """The options in the file of a model."""

    file: Path
    values: Mapping[str, Any]

    def get(self, name: str, default: Value) -> Value:
        """Return an option, or the default of marian-nmt if the option is not given."""
        value = self.values.get(name)
        if value is None:
            return default
        if type(value) is not type(default) or (isinstance(value, int) and abs(value) > _MOST):
            raise UserError(
                f"the option {name} in {self.file} is {value!r:.60}, which is no "
                f"{type(default).__name__} that a model has"
            )
        return value

    @property
    def version(self) -> tuple[int, ...]:
        """Return the version of marian-nmt that trained the model; () if unknown."""
        found = re.match(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})", str(self.values.get("version")))
        return tuple(map(int, found.groups())) if found else ()

    @property
    def has_old_gelu(self) -> bool:
        """Return whether the model has the older gelu, x sigmoid(1.702 x)."""
        chosen = self.get("transformer-ffn-activation", "swish")
        return chosen == "gelu" and self.version < _EXACT_GELU_SINCE

    @property
    def decoder_layers(self) -> Sequence[int]:
        """Return the number, from 1, that each decoder layer has in the names of its arrays."""
        depth = self.get("dec-depth", 1)
        tied = self.values.get("transformer-tied-layers") or range(1, depth + 1)
        if isinstance(tied, range):
            return tied
        layers = range(1, _MOST_LAYERS + 1)
        are_layers = isinstance(tied, list) and all(type(n) is int and n in layers for n in tied)
        if not are_layers or len(tied) != depth:
            raise UserError(
                f"the option transformer-tied-layers in {self.file} has no number for each of the "
                f"{depth} layers"
            )
        return tied

    def check(self) -> None:
        """Refuse a model with options that no model of this package can have.

        Raises:
          UserError: an option is one of those; the message names the option.
        """
        kind = self.get("type", "")
        if kind != "transformer":
            raise UserError(
                f"{self.file} has a model of type {kind!r}; only the type 'transformer' is imported"
            )
        for name, values in _SUPPORTED.items():
            found = self.get(name, values[0])
            if found not in values:
                raise UserError(
                    f"{self.file} has {name}: {found!r}, and only "
                    f"{' or '.join(map(repr, values))} is imported"
                )
        if self.get("transformer-decoder-dim-ffn", 0) not in (0, self.d_ff):
            raise UserError(
                f"{self.file} has feed-forward networks of another width in its decoder than in "
                "its encoder, and only equal widths are imported"
            )

    @property
    def tied_inputs(self) -> bool:
        """Return whether the embeddings of sources and targets are one matrix."""
        return self.get("tied-embeddings-all", False) or self.get("tied-embeddings-src", False)

    @property
    def tied_output(self) -> bool:
        """Return whether the target embedding and the output projection are one matrix."""
        return self.get("tied-embeddings-all", False) or self.get("tied-embeddings", False)

    @property
    def d_ff(self) -> int:
        """Return the inner width of the feed-forward networks."""
        return self.get("transformer-dim-ffn", 2048)

    def norms(self) -> dict[str, Any]:
        """Return the fields of a config with the norms that the options ask for.

        Raises:
          UserError: no model of this package can have norms in these places.
        """
        usual = {
            "preprocess": "",
            "postprocess": "dan",
            "postprocess-top": "",
            "postprocess-emb": "d",
        }
        asked = {place: self.get(f"transformer-{place}", value) for place, value in usual.items()}
        operations = [letters.replace("d", "") for letters in asked.values()]
        is_rms = "r" in "".join(operations)
        if is_rms and "n" not in "".join(operations):
            operations = [letters.replace("r", "n") for letters in operations]
        before, after, top, embedding = operations
        order = _ORDERS.get((before, after, top))
        if order is None or embedding not in ("", "n"):
            given = ", ".join(f"transformer-{place}: {x!r}" for place, x in asked.items())
            raise UserError(
                f"{self.file} has {given}; what is imported is post-norm, '' and 'dan' and '', or "
                "pre-norm, 'n' and 'da' and 'n'"
            )
        if order == "pre" and self.version < _PRE_NORM_SINCE:
            raise UserError(
                f"{self.file} is a pre-norm model of a marian-nmt before 1.11, which did not "
                "normalise keys and values; such models are not imported"
            )
        return {
            "model.norm_order": order,
            "model.norm": "rms" if is_rms else "layer",
            "model.embedding_norm": embedding == "n",
        }
