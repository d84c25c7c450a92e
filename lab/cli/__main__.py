"""`python -m lab.cli`: the command line, also from an uninstalled checkout."""

from lab.cli.main import main

if __name__ == "__main__":
    main()
