"""Sources, readers and writers on their way to an executor, whose Python may lack the package or have another version of it.

Spark's pickler writes them on the driver, and what it wrote is read from front to back. In front of everything of the package stands a call of a
function that is carried as code, not by name: it can say what is missing, where, and what to do about it.
"""

from __future__ import annotations

from typing import Any

from gantrymq import __version__


def checked(wanted: str, module: str) -> None:
    """Raises ImportError where the package, of this version and with this module, is not there. Uses nothing of this module."""
    import importlib
    import socket
    import sys

    where = f"the executor on {socket.gethostname()} (Python {sys.executable})"
    fix = f"install the driver's there: pip install 'gantrymq[spark]=={wanted}', or name a Python that has it, with PYSPARK_PYTHON and, if it is set, PYSPARK_DRIVER_PYTHON"
    try:
        from gantrymq import __version__ as found
    except ImportError as error:
        raise ImportError(f"{where} does not have the package gantrymq: {error}; {fix}") from None
    if found != wanted:
        raise ImportError(f"{where} has gantrymq {found}, the driver {wanted}; {fix}")
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{where} lacks what gantrymq {wanted} needs for Spark: {error}; {fix}") from None


def made(_checked: None, kind: Any, state: Any) -> Any:
    """The object, as it was on the driver."""
    found = kind.__new__(kind)
    found.__dict__.update(state)
    return found


for _carried in (checked, made):
    _carried.__module__ = "__main__"  # Spark's pickler carries what is of __main__ as code


class _Check:
    """Where it is unpickled, `checked` is called."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return checked, (__version__, self._module)


class Carried:
    """An object that is pickled for executors. `__getstate__` may leave out what stays on the driver."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return made, (_Check(type(self).__module__), type(self), self.__getstate__())
