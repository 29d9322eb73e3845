"""Usage × prices: what a namespace and a pairing cost. Pure arithmetic on integers and ``Decimal``."""
