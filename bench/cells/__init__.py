"""The model behind `bench.scale`: measured costs, a discrete-event model of one cell, and the arithmetic of many cells."""
