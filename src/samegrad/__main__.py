"""`python -m samegrad`, the same as the command `samegrad`."""

from samegrad.cli import main

if __name__ == "__main__":
    main()
