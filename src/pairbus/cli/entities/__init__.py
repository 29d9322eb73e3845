"""Commands for the entities and messages of any Service Bus namespace."""
