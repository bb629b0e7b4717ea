/* Reads and writes arrays of any float dtype as f64, in pieces small enough for the first-level cache. */
#ifndef DECOMPOSE_PIECES_H
#define DECOMPOSE_PIECES_H
#include "addend/array.h"

enum { PIECE = 256 }; /* the most elements that a piece has */

/* Returns the size of the piece that begins at element `first` of n. */
static inline size_t ad_piece_size(size_t first, size_t n) { return n - first < PIECE ? n - first : PIECE; }

static inline char *ad_piece_at(const ad_array *array, size_t first) {
  return (char *)array->data + first * ad_dtype_size(array->dtype);
}

/* Reads elements [first, first + n) of this rank's part. */
static inline void ad_piece_take(const ad_array *from, size_t first, size_t n, double *piece) {
  ad_cast(piece, AD_F64, ad_piece_at(from, first), from->dtype, n);
}

/* Writes elements [first, first + n) of this rank's part, each rounded once. */
static inline void ad_piece_put(const ad_array *to, size_t first, size_t n, const double *piece) {
  ad_cast(ad_piece_at(to, first), to->dtype, piece, AD_F64, n);
}

#endif
