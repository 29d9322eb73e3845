"""``python -m pairbus``."""

from pairbus.cli import main

if __name__ == "__main__":
    main()
