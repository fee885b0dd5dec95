"""The sizes of the position-wise feed-forward network."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FeedForwardConfig:
    """A position-wise feed-forward network (section 3.3), from which its costs follow."""

    d_model: int
    """Width of the vectors that the network takes and returns."""
    d_ff: int
    """Inner width."""
    is_gated: bool
    """Whether the network has a gate: a third matrix, and no biases (Shazeer 2020)."""

    @property
    def matrices(self) -> int:
        """Return the number of matrices, each of d_model by d_ff weights."""
        return 3 if self.is_gated else 2

    @property
    def products(self) -> int:
        """Count the weights in the matrices that a position meets, each a multiply-add."""
        return self.matrices * self.d_model * self.d_ff

    @property
    def num_parameters(self) -> int:
        """Count all parameters of the network."""
        return self.products + (0 if self.is_gated else self.d_ff + self.d_model)

    @property
    def hidden(self) -> int:
        """Count the hidden numbers of a position that the network's derivative needs."""
        return (2 if self.is_gated else 1) * self.d_ff
