"""Work on a namespace's data while no broker serves it: verify, export, import."""
