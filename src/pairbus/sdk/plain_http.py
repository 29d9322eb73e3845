"""Plain HTTP for the administration client, which only knows HTTPS: for namespaces that are reached without TLS."""

from __future__ import annotations

from typing import Any

from azure.core.pipeline.transport import RequestsTransport


class PlainHttpTransport(RequestsTransport):  # type: ignore[misc]  # azure-core gives it lazily, as Any
    """The SDK's own transport, with the scheme changed."""

    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **options)
