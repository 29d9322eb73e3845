"""Commands for a pair: drain the backlog, look after it, explain a client's decisions."""
