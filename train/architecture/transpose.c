/* Copies blocks of matrices transposed: transposes a tile in a buffer that stays in the first-level cache, then
 * converts and writes each of its rows. */
#include "architecture/transpose.h"

#include <stdint.h>
#include <string.h>

/* Rows of the buffer are a little longer than those of a tile: with a power of two, all elements of a column would
 * compete for few lines of the cache. */
enum { TILE = 64, ROW = TILE + 4 };

#define DEFINE_TILE(bits)                                                                                      \
  static void transpose_tile_##bits(const char *from, int64_t from_row, int rows, int columns, void *tile) {   \
    uint##bits##_t dense[TILE * ROW], *out = tile;                                                             \
    for (int i = 0; i < rows; i++)                                                                             \
      memcpy(&dense[i * ROW], from + (size_t)(i * from_row) * sizeof *dense, (size_t)columns * sizeof *dense); \
    for (int j = 0; j < columns; j++)                                                                          \
      for (int i = 0; i < rows; i++) out[j * TILE + i] = dense[i * ROW + j];                                   \
  }
DEFINE_TILE(16)
DEFINE_TILE(32)
DEFINE_TILE(64)

static void transpose_tile(const ad_transposed_block *block, int64_t i, int64_t j, int rows, int columns,
                           ad_dtype dtype, void *tile) {
  size_t size = ad_dtype_size(dtype);
  const char *from = block->from + (size_t)(i * block->from_row + j) * size;
  if (size == sizeof(uint16_t))
    transpose_tile_16(from, block->from_row, rows, columns, tile);
  else if (size == sizeof(uint32_t))
    transpose_tile_32(from, block->from_row, rows, columns, tile);
  else
    transpose_tile_64(from, block->from_row, rows, columns, tile);
}

static int at_most(int64_t left) { return left < TILE ? (int)left : TILE; }

void ad_transpose_block(const ad_transposed_block *block, ad_dtype from, ad_dtype to) {
  uint64_t tile[TILE * TILE];
  size_t to_size = ad_dtype_size(to), from_size = ad_dtype_size(from);
  for (int64_t i = 0; i < block->rows; i += TILE) {
    for (int64_t j = 0; j < block->columns; j += TILE) {
      int rows = at_most(block->rows - i), columns = at_most(block->columns - j);
      transpose_tile(block, i, j, rows, columns, from, tile);
      for (int k = 0; k < columns; k++)
        ad_cast(block->to + (size_t)((j + k) * block->to_row + i) * to_size, to,
                (const char *)tile + (size_t)(k * TILE) * from_size, from, (size_t)rows);
    }
  }
}
