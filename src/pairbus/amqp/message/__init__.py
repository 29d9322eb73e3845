"""One message as bytes: its sections are found when it comes, kept as the sender wrote them, and delivered around the stored bytes."""
