"""The Spark connector: ``format("servicebus")`` for reading, streaming and writing.

`source` is what Spark calls; it makes the readers (`reader`) and writers (`sink`). `schema` holds the columns.
"""
