"""A matrix of checks: models by layouts by microbatches, one verdict for each cell (python/docs/torch-matrix.md)."""

from addend.torch._matrix._matrix import MatrixCell, MatrixReport, matrix, matrix_cells

__all__ = ["MatrixCell", "MatrixReport", "matrix", "matrix_cells"]
