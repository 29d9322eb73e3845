"""Capture: an entity's messages as Parquet files (`stream`), and joining small files (`compaction`)."""
