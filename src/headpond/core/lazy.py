"""Packages whose names are loaded when they are first used, and are listed all the same.

A package that offers `run` from a module which needs Spark says where the name is at home::

    __getattr__, __dir__ = lazy(__name__, {"run": "headpond.api.running"})

`from package import run` and `package.run` then import that module and no other; `dir(package)` and the tab
key list the names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import Any

from headpond.core.errors import MissingRequirement


def lazy(
    package: str, homes: Mapping[str, str], on_spark: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    `homes` says which module defines a name; a sub-package is at home in itself. Names `on_spark` need the
    extra `spark`, which brings all the rest.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name in on_spark:
            needed("pyspark", f"{package}.{name}", "headpond[spark]")
        try:
            module = import_module(homes[name])
        except ModuleNotFoundError as error:
            known = lacking(error, f"{package}.{name}")
            if known is None:
                raise
            raise known from error
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    return find, lambda: sorted([*homes, "__doc__", "__file__", "__name__", "__path__"])


class _KeptOut(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        del path, target
        if fullname == self.package:
            raise ModuleNotFoundError(name=fullname)


def keep_out(package: str) -> None:
    """Have a package seem not to be installed: others import it although they can do without."""
    sys.meta_path.insert(0, _KeptOut(package))


def let_in(package: str) -> None:
    """Let a package that was kept out be imported again."""
    for each in list(sys.meta_path):
        if isinstance(each, _KeptOut) and each.package == package:
            sys.meta_path.remove(each)


EXTRAS = {
    **dict.fromkeys(("pyspark", "py4j", "pandas", "google"), "spark"),
    **dict.fromkeys(("deltalake", "arro3", "obstore", "pyroaring"), "lake"),
    "prometheus_client": "prometheus",
    "opentelemetry": "otel",
    "psycopg": "postgres",
}
"""Package that headpond itself does not require → the extra that brings it."""


def lacking(error: ModuleNotFoundError, purpose: str, extra: str | None = None) -> MissingRequirement | None:
    """Return what is to be installed where an import failed for want of an extra; None where it did not.

    `purpose` begins the sentence; `extra` brings all that is needed, where the package's own does not.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return _lacks(package, purpose, f"headpond[{extra or EXTRAS[package]}]")


def needed(module: str, purpose: str, install: str) -> Any:
    """Import a package that headpond itself does not require; `purpose` begins the sentence if it is absent.

    Raises:
        MissingRequirement: it is not installed; the next step is the line that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise _lacks(module, purpose, install) from error


def _lacks(module: str, purpose: str, install: str) -> MissingRequirement:
    return MissingRequirement(
        f"{purpose} needs {module}, which is not installed.",
        next_step=f"Install it: pip install '{install}'",
        module=module,
    )
