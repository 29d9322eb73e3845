"""The live page: what a namespace, or a pair of them, looks like to a person with a browser."""
