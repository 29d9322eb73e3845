"""Senders and receivers of the SDK beneath their surface, and what is done over them: browsing and settling."""
