"""What the actors of the simulated pairs ask of their world: to sleep, or to ask a namespace something."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from tests.simulation.pair.model import NamespaceModel

Work = Generator[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait this long."""

    ms: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a namespace to do something; the answer, or an error, comes back."""

    namespace: NamespaceModel
    action: Callable[[], Any]
    timeout_ms: int


@dataclass(slots=True)
class Running:
    """A generator on its way; a dead one is never resumed."""

    work: Work
    owner: object
    is_dead: bool = False
