"""How the compiler is to make a class: ``mypyc_attr``, which it reads and which does nothing at run time.

It is declared by a package that only a build needs. So here is a stand-in for it, and neither form needs that package to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr  # noqa: PLC0414 - others take it from here
else:

    def mypyc_attr(**_):
        """Leave the class as it is."""
        return lambda made: made
