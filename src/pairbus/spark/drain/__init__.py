"""The Spark drain: the driver plans slices, tasks drain backlog queues, a ledger says what became of each message.

Others use ``driver.run_syphon`` with ``driver.SyphonOptions``; ``task`` is the share of one task.
"""
