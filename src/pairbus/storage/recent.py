"""The message bytes that were stored last. Bounded (B62). Owner's thread."""

from __future__ import annotations


class RecentBlobs:
    """Blobs by their location. What is staged and not yet durable is always here, for nothing else has it.

    Args:
        recent_bytes_max: Bound of what is kept beyond that.
    """

    def __init__(self, recent_bytes_max: int) -> None:
        self._recent: dict[int, bytes] = {}
        self._first = 0
        """Nothing before this location is here. Receivers of a backlog ask for such locations only."""
        self.recent_bytes = 0
        self.recent_bytes_max = recent_bytes_max

    def add(self, location: int, blob: bytes, durable: int) -> None:
        """Keep a blob that was just staged; ``durable`` is the location up to which all is durable."""
        self._recent[location] = blob
        self.recent_bytes += len(blob)
        if self.recent_bytes > self.recent_bytes_max:
            self._evict(durable)

    def get(self, location: int) -> bytes | None:
        return self._recent.get(location) if location >= self._first else None

    def forget(self, location: int) -> None:
        """Drop a blob that will not be read again."""
        if location < self._first:
            return
        blob = self._recent.pop(location, None)
        if blob is not None:
            self.recent_bytes -= len(blob)

    def _evict(self, durable: int) -> None:
        # By a quarter at once: taking the first key of a dict again and again would walk over the holes each time.
        surplus = self.recent_bytes - self.recent_bytes_max * 3 // 4
        first = durable
        gone: list[int] = []
        for location, blob in self._recent.items():
            if surplus <= 0 or location >= durable:
                first = location  # they came in the order of their locations
                break
            gone.append(location)
            surplus -= len(blob)
        for location in gone:
            self.forget(location)
        self._first = first
