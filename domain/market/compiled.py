"""How the numeric kernels are compiled.

What must stay true: no fast-math and no contraction, so that a kernel's arithmetic is binary64 in written order, the same
whether it is reached by the batch fold or by the stream; division by zero gives an infinity or NaN, never an exception; the
interpreter's lock is released while a kernel runs.

Compiled code is cached beside the module, or in the user's cache folder where the installation is read-only (numba's own order;
`NUMBA_CACHE_DIR` overrides both). Where neither can be written, kernels are compiled anew in each process rather than refused.
A crash while the cache is written leaves a temporary file, never a half-written entry. A cached kernel is compiled anew when its
own module's file changes, and only then: whoever changes the options below touches the kernels' modules too.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, cast

import numpy as np
from numba import njit, uint64

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

slot: Final = uint64
"""Marks an index as not negative: the compiled access then needs no test for counting from the end."""

_OPTIONS: Final[dict[str, Any]] = {
    "nogil": True,
    "fastmath": False,
    "error_model": "numpy",
    "boundscheck": False,
    # Kernels allocate nothing, their callers hold the arrays: without reference counts a windowed step takes half the time.
    "_nrt": False,
}


def compiled(function: FunctionT) -> FunctionT:
    """The function, compiled at its first call for the types it is called with; cached on disk where a folder can be written."""
    return _compiled(function, "never")


def compiled_step(function: FunctionT) -> FunctionT:
    """A step: as `compiled`, and written into the loops that call it, which keeps its scalars in registers."""
    return _compiled(function, "always")


def _compiled(function: FunctionT, inline: Literal["never", "always"]) -> FunctionT:
    try:
        return cast(FunctionT, njit(cache=True, inline=inline, **_OPTIONS)(function))
    except RuntimeError:  # no folder for the cache can be written; numba says so when decorating
        return cast(FunctionT, njit(cache=False, inline=inline, **_OPTIONS)(function))
