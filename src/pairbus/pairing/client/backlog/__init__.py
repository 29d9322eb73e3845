"""The backlog queues of a paired client: found or created, checked, and looked into for fences."""
