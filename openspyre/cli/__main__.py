"""`python -m openspyre.cli`: the `openspyre` command, also where its script is not on the path."""

from openspyre.cli import main

if __name__ == "__main__":
    main(prog_name="openspyre")
