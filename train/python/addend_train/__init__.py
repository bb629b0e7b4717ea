"""addend's trainer library and the program `addend` with all commands, in the folder `_native`. The package `addend`
finds and loads them."""
