"""The vocabulary of the models that the tests of examples make."""

from tests.decoding.conftest import vocabulary as vocabulary  # (a fixture)
