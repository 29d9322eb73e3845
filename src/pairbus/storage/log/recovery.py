"""Where the log ends, and every complete batch up to there. Reads only; changes nothing (B9).

The end is found from the newest segment backwards: the highest segment with any frame is the tail, and the tail's last intact frame
names which segment is the oldest that matters. Between those two everything must be there and undamaged (B10). The end must
not lie before the mark (``mark``), and no segment from the tail on may be shorter than it was made.

Where the end is lost, the last intact frame may name segments that the lost commits had let go, and that were used again since. So a
lost end is reported before a missing segment, and where the loss is accepted the log begins behind the missing ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from pairbus.errors import StoreCorrupt
from pairbus.storage.codec import decode
from pairbus.storage.files import UNFINISHED_SUFFIX
from pairbus.storage.log.frame import FRAME, HEADER_BYTES, MORE, find_later, read_frame, read_header
from pairbus.storage.log.mark import WAY_OUT, Mark, missing_mark, read_mark
from pairbus.storage.log.segment import (
    FIRST_SEGMENT,
    OFFSET_BITS,
    SEGMENT_HEADER_BYTES,
    SegmentImage,
    load_segment,
    segment_name,
    segment_number,
)

if TYPE_CHECKING:
    from pairbus.engine.records import Record
    from pairbus.storage.files import FileSystem

SEGMENTS_AHEAD: Final = 2
"""Segments held in memory ahead of the one that is looked through."""

WITHOUT_IT: Final = (
    "`pairbus store repair` says whether acknowledged data was in it, and with --accept-loss goes on without it; "
    "or restore the data directory from a copy"
)
"""The way out for a segment that is behind the end of the log."""

Span: TypeAlias = tuple[SegmentImage, int, int]
"""The records between two offsets of a segment."""


@dataclass(slots=True)
class Found:
    """What a data directory holds."""

    tail: SegmentImage
    """The newest segment with a frame."""
    end: int = SEGMENT_HEADER_BYTES
    """Where the next frame goes, in the tail."""
    frame_number: int = 0
    """The last frame's number."""
    last_frame: int = 0
    """The last frame's offset in the tail; 0: there is none."""
    oldest: int = FIRST_SEGMENT
    is_torn: bool = False
    """A frame was being written when everything stopped; it is dropped, because it was never acknowledged."""
    spares: list[tuple[int, bytes, int]] = field(default_factory=list)
    """(number, marker, capacity) of prepared segments behind the tail."""
    leftovers: list[str] = field(default_factory=list)
    """Files that matter no more."""
    ends: dict[int, int] = field(default_factory=dict)
    """Segment number to where its data ends; filled by ``batches``."""
    void: set[tuple[int, int]] = field(default_factory=set)
    """(segment number, offset) of frames of batches that were never completed; filled by ``batches``."""
    batches: int = 0
    """Complete batches; counted by ``decoded``."""


@dataclass(slots=True)
class Loss:
    """What stands in the way of opening a log whose end was lost. Filled where the loss is accepted instead of refused."""

    unreadable: list[str] = field(default_factory=list)
    """Files behind the tail whose header is damaged."""
    short: list[tuple[str, int, int]] = field(default_factory=list)
    """(name, length, the length it was made with)."""
    unused: list[str] = field(default_factory=list)
    """Prepared segments behind a missing one."""
    gone: list[str] = field(default_factory=list)
    """Old segments that the last intact frame still names and that are missing: the lost commits let them go."""


def find(files: FileSystem, *, expects_mark: bool) -> Found | None:
    """What is there; None if there is no segment at all.

    ``expects_mark``: the data's format has a mark, so that a missing one is damage. StoreCorrupt on damage in or behind the tail,
    and if the log ends before the mark.
    """
    mark = read_mark(files)
    if mark is None and expects_mark:
        raise missing_mark()
    found = look(files, mark, None)
    if found is None and mark is not None:
        raise StoreCorrupt(
            "the data directory has lost all its segments; restore it from a copy",
            file=segment_name(mark.segment),
            offset=0,
        )
    return found


def look(files: FileSystem, mark: Mark | None, loss: Loss | None) -> Found | None:
    """What is there; None if there is no segment at all.

    ``mark``: how far the log was acknowledged; None: not known. ``loss``: takes what is missing or damaged behind the last intact
    frame, and the old segments that lost commits let go; without it such damage raises StoreCorrupt.
    """
    names = files.names()
    numbers = sorted(number for name in names if (number := segment_number(name)) is not None)
    if not numbers:
        return None
    found = _find_tail(files, numbers, loss)
    if loss is None:
        if mark is not None and found.frame_number < mark.number:
            raise _lost(files, found, mark)
        _forbid_gaps(numbers, found.oldest, found.tail.number, numbers[-1])
    else:
        if mark is None or found.frame_number < mark.number:
            _begin_behind_gaps(found, numbers, loss)
        _forbid_gaps(numbers, found.oldest, found.tail.number, found.tail.number)
        _leave_out_unused(found, loss)
    found.leftovers.extend(segment_name(number) for number in numbers if number < found.oldest)
    found.leftovers.extend(sorted(name for name in names if name.endswith(UNFINISHED_SUFFIX)))
    return found


def _forbid_gaps(numbers: list[int], oldest: int, tail: int, last: int) -> None:
    for number in range(oldest, last + 1):
        if number not in numbers:
            name = segment_name(number)
            way_out = WITHOUT_IT if number > tail else "restore the data directory from a copy"
            raise StoreCorrupt(f"{name}: the file is missing; {way_out}", file=name, offset=0)


def _begin_behind_gaps(found: Found, numbers: list[int], loss: Loss) -> None:
    # Segments go oldest first, so what is still there without a gap up to the tail is all that can be used.
    for number in range(found.tail.number, found.oldest - 1, -1):
        if number not in numbers:
            loss.gone = [segment_name(one) for one in range(found.oldest, number + 1) if one not in numbers]
            found.oldest = number + 1
            return


def _leave_out_unused(found: Found, loss: Loss) -> None:
    expected = found.tail.number + 1
    for index, (number, _, _) in enumerate(found.spares):
        if number != expected:
            loss.unused.extend(segment_name(spare[0]) for spare in found.spares[index:])
            del found.spares[index:]
            return
        expected += 1


def _lost(files: FileSystem, found: Found, mark: Mark) -> StoreCorrupt:
    """The error for a log that ends before its mark, with the place where the first lost frame was."""
    if mark.segment == found.tail.number:
        name, offset = found.tail.name, found.end
    else:
        name, offset = segment_name(found.tail.number + 1), SEGMENT_HEADER_BYTES
    place = f"{name}: damage at offset {offset}"
    if name not in files.names():
        place, offset = f"{name}: the file is missing", 0
    return StoreCorrupt(
        f"{place}: the log ends with frame {found.frame_number}, and frame {mark.number} was acknowledged "
        f"({segment_name(mark.segment)} up to offset {mark.offset}). Acknowledged data is lost, so nothing was changed; {WAY_OUT}",
        file=name,
        offset=offset,
    )


def _find_tail(files: FileSystem, numbers: list[int], loss: Loss | None) -> Found:
    spares: list[tuple[int, bytes, int]] = []
    is_torn = False
    image: SegmentImage | None = None
    for number in reversed(numbers):
        try:
            image = load_segment(files, number)
        except StoreCorrupt as error:
            if loss is None:
                raise StoreCorrupt(
                    f"{str(error).partition(';')[0]}. It is the newest file or a prepared one: {WITHOUT_IT}",
                    file=error.file,
                    offset=error.offset,
                ) from None
            loss.unreadable.append(segment_name(number))
            continue
        if len(image.buffer) < image.made_bytes:
            if loss is None:
                raise _shortened(image)
            loss.short.append((image.name, len(image.buffer), image.made_bytes))
        if read_frame(image.buffer, SEGMENT_HEADER_BYTES, image.marker) is not None:
            found = Found(image)
            _scan_tail(found)
            break
        _forbid_later(image, SEGMENT_HEADER_BYTES, 0)
        is_torn = is_torn or _is_torn(image, SEGMENT_HEADER_BYTES)
        spares.append((number, image.marker, len(image.buffer)))
    else:
        # Not a single frame anywhere: only right if nothing was ever committed.
        if image is None or image.number != FIRST_SEGMENT:
            raise _nothing_left(numbers[0])
        found = Found(image)
        spares.pop()
    found.spares = spares[::-1]
    found.is_torn = found.is_torn or is_torn
    return found


def _scan_tail(found: Found) -> None:
    image = found.tail
    offset = SEGMENT_HEADER_BYTES
    while (header := read_frame(image.buffer, offset, image.marker)) is not None:
        if found.frame_number and header.number != found.frame_number + 1:
            raise _damaged(image, offset, f"frame {header.number} follows frame {found.frame_number}")
        found.frame_number = header.number
        found.oldest = header.oldest
        found.last_frame = offset
        offset += HEADER_BYTES + header.length
    _forbid_later(image, offset, found.frame_number)
    found.end = offset
    found.is_torn = _is_torn(image, offset)


def _is_torn(image: SegmentImage, offset: int) -> bool:
    # A SEAL is the ordinary end, and so is the past of a recycled file; the marker without a SEAL is a torn frame.
    header = read_header(image.buffer, offset, image.marker)
    return image.buffer.startswith(image.marker, offset) and (header is None or header.kind == FRAME)


def _forbid_later(image: SegmentImage, offset: int, frame_number: int) -> None:
    later = find_later(image.buffer, offset, image.marker, frame_number)
    if later >= 0:
        raise _damaged(image, offset, f"an intact frame or seal follows at offset {later}")


def decoded(
    files: FileSystem, found: Found, *, reads_ahead: bool = False
) -> Iterator[tuple[SegmentImage, list[Record]]]:
    """The records of every complete batch, in order, messages without their bytes; frame by frame with the frame's segment.

    Raises StoreCorrupt at the first damage; what was given before that is intact.
    """
    for batch in batches(files, found, reads_ahead=reads_ahead):
        found.batches += 1
        for image, start, end in batch:
            yield image, decode(image.buffer, start, end, image.number << OFFSET_BITS)


def batches(files: FileSystem, found: Found, *, reads_ahead: bool = False) -> Iterator[list[Span]]:
    """Every complete batch from the oldest segment that matters to the end, in order.

    ``reads_ahead``: a thread reads the next segments while this one is looked through. Raises StoreCorrupt at the first
    damage; what was given before that is intact.
    """
    images = _images(files, found.oldest, found.tail.number, SEGMENTS_AHEAD if reads_ahead else 0)
    try:
        yield from _walk(images, found)
    finally:
        images.close()


def _images(files: FileSystem, first: int, last: int, ahead: int) -> Generator[SegmentImage, None, None]:
    if not ahead or first == last:
        for number in range(first, last + 1):
            yield load_segment(files, number)
        return
    with ThreadPoolExecutor(1, "pairbus-read-ahead") as reader:
        waiting: deque[Future[SegmentImage]] = deque()
        for number in range(first, last + 1):
            waiting.append(reader.submit(load_segment, files, number))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _walk(images: Iterator[SegmentImage], found: Found) -> Iterator[list[Span]]:
    parts: list[Span] = []
    parts_first = 0
    number = 0
    tail = found.tail.number
    image = next(images)
    for current in range(found.oldest, tail + 1):
        following = next(images) if current < tail else None
        end = found.end if following is None else _previous_end(following)
        offset = SEGMENT_HEADER_BYTES
        buffer = image.buffer
        while offset < end:
            header = read_frame(buffer, offset, image.marker)
            if header is None:
                raise _damaged(
                    image, offset, f"frame {number + 1} is damaged" if number else "the frame is damaged"
                )
            if number and header.number != number + 1:
                raise _damaged(image, offset, f"frame {header.number} follows frame {number}")
            number = header.number
            if parts and parts_first != header.first_number:
                _avoid(found, parts)
                parts = []
            start = offset + HEADER_BYTES
            offset = start + header.length
            parts.append((image, start, offset))
            if header.flags & MORE:
                parts_first = header.first_number
            else:
                yield parts
                parts = []
        if offset != end:
            raise _damaged(image, offset, f"the frame runs past the segment's end at {end}")
        found.ends[current] = end
        if following is not None:
            image = following
    _avoid(found, parts)


def _avoid(found: Found, parts: list[Span]) -> None:
    # The last part was never written, so no client received an answer (rule 4 in storage/log/frame.py).
    found.void.update((image.number, start - HEADER_BYTES) for image, start, _ in parts)


def _previous_end(image: SegmentImage) -> int:
    header = read_frame(image.buffer, SEGMENT_HEADER_BYTES, image.marker)
    if header is None:
        raise _damaged(image, SEGMENT_HEADER_BYTES, "the first frame is damaged")
    return header.previous_end


def _nothing_left(first: int) -> StoreCorrupt:
    """The error for segments that hold nothing, of which the first is this one."""
    name = segment_name(first)
    why = "no segment holds anything"
    if first > FIRST_SEGMENT:
        name, why = segment_name(first - 1), "the file is missing, and no segment after it holds anything"
    return StoreCorrupt(f"{name}: {why}; restore the data directory from a copy", file=name, offset=0)


def _shortened(image: SegmentImage) -> StoreCorrupt:
    return StoreCorrupt(
        f"{image.name}: damage at offset {len(image.buffer)}: the file ends here, it was made {image.made_bytes} bytes long. "
        f"Acknowledged data may be lost, so nothing was changed; {WAY_OUT}",
        file=image.name,
        offset=len(image.buffer),
    )


def _damaged(image: SegmentImage, offset: int, why: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{image.name}: damage at offset {offset}: {why}. Acknowledged data is affected, so nothing was changed; "
        "restore the data directory from a copy",
        file=image.name,
        offset=offset,
    )
