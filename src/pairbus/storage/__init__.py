"""Keeps records durably and gives them back in order; understands nothing more."""
