"""addend's trainer: the library and the whole program, in the folder `_native`. `addend` finds and loads them."""
