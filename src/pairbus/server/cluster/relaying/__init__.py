"""How the connections of a node reach the owner."""
