"""`python -m flexc`: the command line."""

import sys

from flexc.cli import main

if __name__ == "__main__":
    sys.exit(main())
