"""`python -m rowferry` is the `rowferry` command."""

from rowferry.face.cli.main import main

main()
