"""Values that every room shares: names, settings of entities, access rules, a message's state. It knows no other room but errors."""
