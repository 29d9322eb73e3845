"""What a server is started with: options, declared entities, addresses and certificates."""
