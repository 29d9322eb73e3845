"""Scripted outages on a real pair: the demo and the drill. The command line alone uses this room."""
