"""What a paired client does with its spool: takes sends, replays them, and stays behind what others replay."""
