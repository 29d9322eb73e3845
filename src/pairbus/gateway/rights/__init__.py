"""Who may do what: tokens, access rules and what they grant."""
