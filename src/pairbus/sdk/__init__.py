"""The official Azure SDK: everything that needs more of it than its public surface.

This is the only room that may import ``azure.*._*`` or reach into private attributes of the SDK's objects. Others use:

- ``addresses``: the official client for a connection string, which may list several addresses of the namespace
- ``connection_string``, ``credentials``: a connection string taken apart, keys and signatures
- ``trust``: certificate authorities, and options that reach a namespace on another port than the usual one
- ``client_settings``: what an SDK client knows about its namespace
- ``message_bytes``, ``sections``: messages and batches as bytes
- ``browsing``, ``settling``: entities browsed as bytes; many deliveries settled with few frames
- ``links``: senders and receivers that open at once
- ``async_client``: an asynchronous client made from a synchronous one
- ``handlers``, ``receivers``: retries, attempts, sharing and ending of senders and receivers
- ``failures``: the SDK's exceptions sorted into kinds of failure
- ``admin``: the administration client of the namespace that a client reaches; ``plain_http``, ``plain_http_aio``: without TLS, and over several addresses
"""
