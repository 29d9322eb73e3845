"""Only ``pairbus.sdk`` may use what the official SDK keeps private: a new SDK version is then checked in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pairbus

SOURCE = Path(pairbus.__file__).parent
PRIVATE = {
    "_amqp_transport",
    "_config",
    "_connection_verify",
    "_create_handler",
    "_credential",
    "_custom_endpoint_address",
    "_delivery_tag",
    "_do_retryable_operation",
    "_error_policy",
    "_handle_exception",
    "_handler",
    "_incoming_transfer",
    "_keep_alive_interval",
    "_max_batch_size_on_link",
    "_max_message_size_on_link",
    "_mgmt_request_response",
    "_mgmt_request_response_with_retry",
    "_open_with_retry",
    "_outgoing_disposition",
    "_pending_dispositions",
    "_populate_message_properties",
    "_raw_amqp_message",
    "_receiver",
    "_running",
    "_settle_message_via_mgmt_link",
    "_shutdown_handler",
    "_ssl_context",
}
"""Private attributes of the SDK's clients, senders, receivers, messages and errors that PairBus knows."""


def uses(tree: ast.AST) -> list[str]:
    """What a module uses of the SDK's private parts."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("azure."):
            if any(part.startswith("_") for part in (node.module or "").split(".")):
                found.append(f"line {node.lineno}: {node.module}")
        elif isinstance(node, ast.Attribute) and node.attr in PRIVATE:
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls")):
                found.append(f"line {node.lineno}: {node.attr}")
    return found


def test_only_the_sdk_room_touches_the_private_parts_of_the_official_sdk() -> None:
    found = {
        str(path.relative_to(SOURCE)): uses(ast.parse(path.read_text()))
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] != "sdk"
    }

    assert {name: lines for name, lines in found.items() if lines} == {}
