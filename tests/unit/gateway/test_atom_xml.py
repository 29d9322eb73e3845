from __future__ import annotations

import contextlib
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.errors import ArgumentError
from pairbus.gateway.atom.xml import (
    ATTRIBUTES_MAX,
    BODY_BYTES_MAX,
    DEPTH_MAX,
    ELEMENTS_MAX,
    SCHEMA_INSTANCE,
    SERVICE_BUS,
    element,
    parse,
)


def test_names_are_read_by_namespace_whatever_the_prefix() -> None:
    for text in (
        f'<a xmlns="{SERVICE_BUS}"><b>x</b></a>',
        f'<p:a xmlns:p="{SERVICE_BUS}"><p:b>x</p:b></p:a>',
        f'<a xmlns="{SERVICE_BUS}"><q:b xmlns:q="{SERVICE_BUS}">x</q:b><b xmlns="other">y</b></a>',
    ):
        root = parse(text.encode())

        assert (root.namespace, root.name) == (SERVICE_BUS, "a")
        assert root.value("b") == "x"


@pytest.mark.parametrize("prefix", ["i", "xsi", "p4"])
def test_types_are_read_whatever_their_prefixes(prefix: str) -> None:
    text = f'<a xmlns:{prefix}="{SCHEMA_INSTANCE}" {prefix}:type="d6p1:string"/>'

    assert parse(text.encode()).type_name == "string"


def test_nil_is_no_value() -> None:
    text = f'<a xmlns="{SERVICE_BUS}" xmlns:i="{SCHEMA_INSTANCE}"><b i:nil="true">x</b><c/><d>  </d></a>'

    root = parse(text.encode())

    assert [root.value(name) for name in "bcde"] == [None, None, None, None]


def test_an_element_given_twice_is_refused_when_it_is_read() -> None:
    root = parse(f'<a xmlns="{SERVICE_BUS}"><b>1</b><b>2</b></a>'.encode())

    with pytest.raises(ArgumentError, match="b is given twice in a"):
        root.value("b")


@pytest.mark.promise("M12")
@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE a><a/>",
        b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        b'<!DOCTYPE a SYSTEM "http://127.0.0.1/a.dtd"><a/>',
        b'<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]><l>&c;</l>',
    ],
)
def test_document_types_are_refused_before_any_entity_exists(body: bytes) -> None:
    with pytest.raises(ArgumentError, match="document type declaration"):
        parse(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no xml",
        b"<a>",
        b"<a></b>",
        b"<a/><b/>",
        b"<a>&unknown;</a>",
        b"<a x='1' x='2'/>",
        b"<p:a/>",
        b"<a>\x00</a>",
        b"<a>\xff</a>",
        b'<?xml version="1.0" encoding="no-such-encoding"?><a/>',
        b'<?xml version="1.0" encoding="utf-16"?><a/>',
    ],
)
def test_malformed_documents_are_refused(body: bytes) -> None:
    with pytest.raises(ArgumentError, match="not well-formed"):
        parse(body)


@pytest.mark.promise("M12")
def test_size_depth_elements_and_attributes_are_bounded() -> None:
    deep = "<a>" * (DEPTH_MAX + 1) + "</a>" * (DEPTH_MAX + 1)
    attributes = " ".join(f'x{number}=""' for number in range(ATTRIBUTES_MAX + 1))
    for body, match in (
        (b"<a>" + b" " * BODY_BYTES_MAX + b"</a>", "bytes"),
        (deep.encode(), "nested deeper"),
        (b"<a>" + b"<b/>" * ELEMENTS_MAX + b"</a>", "elements"),
        (f"<a {attributes}/>".encode(), "attributes"),
    ):
        with pytest.raises(ArgumentError, match=match):
            parse(body)


def test_a_document_at_its_bounds_is_read() -> None:
    deep = "<a>" * DEPTH_MAX + "</a>" * DEPTH_MAX

    assert parse(deep.encode()).name == "a"
    assert len(parse(b"<a>" + b"<b/>" * (ELEMENTS_MAX - 1) + b"</a>").children) == ELEMENTS_MAX - 1


@pytest.mark.promise("M8")
@given(st.text())
def test_any_text_is_written_as_text(text: str) -> None:
    written = element("a", text)

    kept = "".join(character if _is_xml(character) else "\ufffd" for character in text)
    assert parse(written.encode("utf-8", "replace")).text == kept
    assert ElementTree.fromstring(written.encode("utf-8", "replace")).text in (kept, None)


def _is_xml(character: str) -> bool:
    code = ord(character)
    return character in "\t\n\r" or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    # Any other error would fail the test.
    with contextlib.suppress(ArgumentError):
        assert parse(body).name
