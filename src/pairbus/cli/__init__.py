"""The command line: one module per command group, each a thin face of one function."""

from __future__ import annotations

from pairbus.cli.root import main

__all__ = ["main"]
