"""What a broker means: locks, settlement, sessions, topics, rules, schedules. Pure."""
