"""Joins the wire to the engine, still without I/O."""
