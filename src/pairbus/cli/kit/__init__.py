"""What all commands share. Only the command line uses it.

`options`: a command's options and arguments, declared once as a frozen dataclass. `group`: command groups. `errors`: errors
and exit codes. `output`: JSON or text, progress, signals. `namespace` and `pair`: which namespaces a command is about.
`secrets`: connection strings from files.
"""
