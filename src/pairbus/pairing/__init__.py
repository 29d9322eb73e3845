"""Two namespaces as one: the client that keeps sending when its primary stops answering."""
