"""What the commands share: command groups, errors and exit codes, connection targets, output. Only the command line uses it."""
