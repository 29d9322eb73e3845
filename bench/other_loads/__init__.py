"""The loads that `bench/loads.py` measures, and what they share."""
