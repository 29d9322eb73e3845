"""Values every room shares."""
