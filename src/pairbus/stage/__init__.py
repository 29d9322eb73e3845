"""Scripted outages on a real pair: the demo (kills a primary of its own) and the drill (a fault on the user's pair).

Both share threads that send and receive, a book of every message, a timeline and a screen. The command line alone uses
this room: `demo.story`, `demo.view`, `drill.plan`, `drill.run` and `drill.view`.
"""
