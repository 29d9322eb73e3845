"""The live page: sign-in, a JSON API and static files.

`page.Page` is the page of one namespace and plugs into the broker's own HTTP server. `pair_page.PairPageServer` is the page of a pair; it
asks both namespaces on the person's behalf and adds the pairing from `pairing_view.PairingView`. The command line alone uses them.
"""
