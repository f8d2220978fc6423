"""`python -m unstuck`, and the `unstuck` command."""

import sys

try:
    from unstuck.cli import main
except KeyboardInterrupt:  # so soon that there is nothing to say
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
