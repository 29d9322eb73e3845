"""One queue: ``queue`` has the commands, ``state`` the folds, ``due`` what time brings, ``browse`` reading out of turn."""
