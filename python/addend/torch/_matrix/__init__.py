"""A matrix of checks: models by layouts by numbers of microbatches, one verdict for each cell (docs/matrix.md)."""
