"""Bill, what-if and certificate as Spark jobs."""
