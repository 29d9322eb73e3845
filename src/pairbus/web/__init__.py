"""The live page: sign-in, a JSON API and static files.

`page.Page` is the page of one namespace and plugs into the broker's own HTTP server. `hub.Hub` is the page of a pair; it
asks both namespaces on the person's behalf and adds the pairing from `board.Board`. The command line alone uses them.
"""
