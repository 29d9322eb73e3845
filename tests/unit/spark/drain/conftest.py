from tests.unit.drain.conftest import loop

__all__ = ["loop"]
