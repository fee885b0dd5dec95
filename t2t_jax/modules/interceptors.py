"""Support Flax method interceptors in compiled programs and in other threads.

`flax.linen.intercept_methods` keeps a stack of interceptors per thread. `jax.jit` ignores this
stack, and would reuse a program that was compiled with other interceptors.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import lru_cache, partial, update_wrapper
from typing import Any, TypeAlias, TypeVar

import jax
from flax.linen.module import _global_interceptor_stack as _stack  # it has no public name

_T = TypeVar("_T")

Interceptors: TypeAlias = tuple[Callable[..., Any], ...]
"""Interceptors, outermost first."""


def current_interceptors() -> Interceptors:
    """Return the interceptors of the calling thread."""
    return tuple(_stack)[::-1]


@contextlib.contextmanager
def only_interceptors(interceptors: Interceptors) -> Iterator[None]:
    """Replace the interceptors of the calling thread within the context."""
    previous = current_interceptors()
    _set(interceptors)
    try:
        yield
    finally:
        _set(previous)


def in_other_thread(function: Callable[..., _T]) -> Callable[..., _T]:
    """Wrap a function to run with the tracing context of the current thread in another thread.

    The context is the interceptors and `jax.default_matmul_precision`, which are per thread.
    """
    config: Any = jax.config
    interceptors, precision = current_interceptors(), config.jax_default_matmul_precision

    def call(*args: object) -> _T:
        with only_interceptors(interceptors), jax.default_matmul_precision(precision):
            return function(*args)

    return call


class InterceptedJit:
    """A function compiled by `jax.jit`, with a separate program per stack of interceptors.

    Other attributes, such as `lower`, belong to the program for the current interceptors.
    """

    def __init__(self, function: Callable[..., object], **options: Any) -> None:
        """Wrap a function without compiling it.

        Args:
          function: a function that may call methods of Flax modules.
          options: the options of `jax.jit`.
        """
        update_wrapper(self, function)

        @lru_cache(maxsize=32)  # stacks, each of which keeps its programs in memory
        def program(interceptors: Interceptors) -> jax.stages.Wrapped:
            # JAX finds programs by the function object, so each stack needs another object.
            return jax.jit(partial(function) if interceptors else function, **options)

        self._program = program

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the function, compiled for the Flax interceptors that are now active."""
        return self._program(current_interceptors())(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the `jax.jit` function for the active Flax interceptors."""
        if name.startswith("__"):  # `copy` and `pickle` ask before there are programs
            raise AttributeError(name)
        return getattr(self._program(current_interceptors()), name)


def _set(interceptors: Interceptors) -> None:
    while _stack:
        _stack.pop()
    for interceptor in interceptors:
        _stack.push(interceptor)
