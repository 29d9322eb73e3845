"""The way of one send through a paired client, and of its cancellation."""
