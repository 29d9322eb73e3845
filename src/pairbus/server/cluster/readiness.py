"""What a node that relays announces once its clients are served."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pairbus.server.config.addresses import format_address
from pairbus.server.ready import ReadyInfo, connection_string

if TYPE_CHECKING:
    from pairbus.server.config.options import Options


def relay_ready(
    options: Options, node: str, amqp: tuple[str, int], http: tuple[str, int], key: str
) -> ReadyInfo:
    """``key``: of the root rule, as the database has it."""
    authority = options.data / "tls" / "ca.pem"
    has_authority = options.tls and options.tls_cert is None
    return ReadyInfo(
        namespace=options.namespace,
        pid=os.getpid(),
        amqp=format_address(*amqp),
        http=format_address(*http),
        connection_string=connection_string(*amqp, options.namespace, key),
        ca_file=str(authority.absolute()) if has_authority else None,
        node=node,
    )
