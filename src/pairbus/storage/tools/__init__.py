"""Tools for operators on a store that is not in use: inspect and repair."""
