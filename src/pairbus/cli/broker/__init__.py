"""Commands that run a namespace on this machine or look after its data."""
