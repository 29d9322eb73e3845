"""The administration client of the SDK: found through a Service Bus client, without TLS, and over several addresses."""
