"""The official Azure SDK: everything that needs more of it than its public surface.

This is the only room that may import ``azure.*._*`` or reach into private attributes of the SDK's objects. Others use:

- ``addresses``: the official client for a connection string, which may list several addresses of the namespace
- ``connection_string``, ``credentials``: a connection string taken apart, keys and signatures
- ``trust``: certificate authorities, and options that reach a namespace on another port than the usual one
- ``client_settings``: what an SDK client knows about its namespace
- ``async_client``: an asynchronous client made from a synchronous one
- ``failures``: the SDK's exceptions sorted into kinds of failure
- ``messages``: messages and batches as bytes
- ``links``: retries, attempts, sharing and ending of senders and receivers (``handlers``, ``receivers``, ``opening``), those that
  open at once (``quick``), entities browsed as bytes, many deliveries settled with few frames
- ``management``: the administration client of the namespace that a client reaches
"""
