"""What a server is started with: options, declared entities, addresses and certificates. ``options`` is the one listing."""
