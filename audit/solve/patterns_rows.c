/* Finds sums of sparse gradients whose rows were added to wrong rows, since values were summed without their
 * indices. */
#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "solve/patterns.h"

/* The rows of a full parameter, and which of them are not zero. */
typedef struct ad_row_marks {
  size_t count, width;
  unsigned char *own, *others; /* [count]: 1 if the row is nonzero in the holder's addends; in other ranks' addends */
} ad_row_marks;

static ad_status mark_rows(const ad_parts *parts, const ad_part *part, ad_row_marks *out) {
  const ad_members *members = ad_part_members(parts, part);
  double *row;
  AD_TRY(ad_new(out->width, &row));
  for (size_t c = 0; c < members->count; c++)
    for (size_t r = 0; r < out->count; r++) {
      int is_own = members->columns[c].piece.rank == part->holders[0], full = 0;
      ad_part_read(parts, part, &members->columns[c].piece, r * out->width, (r + 1) * out->width, row);
      for (size_t i = 0; i < out->width; i++) full |= row[i] != 0;
      if (full) (is_own ? out->own : out->others)[r] = 1;
    }
  ad_release(row);
  return AD_OK;
}

/* Returns 1 if only rows of the holder's own addends are nonzero in the sum, other ranks' addends have other nonzero
 * rows, and yet the total over all rows is right in every column. */
static int are_other_rows(const ad_part_values *values, const ad_row_marks *rows) {
  size_t elsewhere = 0, full = 0;
  for (size_t r = 0; r < rows->count; r++) {
    elsewhere += rows->others[r] && !rows->own[r];
    for (size_t i = 0; i < rows->width && !rows->own[r]; i++)
      if (values->sum[r * rows->width + i] != 0) return 0;
  }
  for (size_t i = 0; i < rows->width; i++) {
    double sum = 0, right = 0, size = 0;
    for (size_t r = 0; r < rows->count; r++) {
      sum += values->sum[r * rows->width + i];
      right += values->right[r * rows->width + i];
      size += values->size[r * rows->width + i];
    }
    if (!ad_values_agree(values, sum, right, 4 * size)) return 0;
    full += sum != 0;
  }
  return elsewhere && full >= values->enough;
}

/* The sum of one rank's own addends, [count * width], and the indices of its rows that are not zero. */
typedef struct ad_rank_rows {
  double *total, *size;
  size_t *row, count;
} ad_rank_rows;

static ad_status rank_rows_of(const ad_parts *parts, const ad_part *part, const double *expected, int64_t rank,
                              const ad_row_marks *rows, ad_rank_rows *out) {
  const ad_members *members = ad_part_members(parts, part);
  size_t n = rows->count * rows->width;
  double *addend;
  AD_TRY(ad_new(n, &addend));
  memset(out->total, 0, n * sizeof *out->total);
  memset(out->size, 0, n * sizeof *out->size);
  for (size_t c = 0; c < members->count; c++) {
    if (members->columns[c].piece.rank != rank) continue;
    ad_part_read(parts, part, &members->columns[c].piece, 0, n, addend);
    for (size_t i = 0; i < n; i++) {
      double value = parts->param->expect * expected[c] * addend[i];
      out->total[i] += value;
      out->size[i] += fabs(value);
    }
  }
  out->count = 0;
  for (size_t r = 0; r < rows->count; r++) {
    int full = 0;
    for (size_t i = 0; i < rows->width; i++) full |= out->size[r * rows->width + i] != 0;
    if (full) out->row[out->count++] = r;
  }
  ad_release(addend);
  return AD_OK;
}

static int has_addends(const ad_members *members, int64_t rank) {
  for (size_t c = 0; c < members->count; c++)
    if (members->columns[c].piece.rank == rank) return 1;
  return 0;
}

/* Subtracts from `left` the sum that results if each rank's k-th nonzero row is added to the holder's k-th nonzero
 * row. This is done for the first *numbered rows, as many as the rank with the fewest nonzero rows has. *moved is
 * increased by the number of rows that are added to a row of another index. */
static ad_status take_numbered(const ad_parts *parts, const ad_part *part, const double *expected,
                               const ad_row_marks *rows, ad_rank_rows *one, size_t *own, double *left, double *bound,
                               size_t *numbered, size_t *moved) {
  const ad_members *members = ad_part_members(parts, part);
  int64_t world = parts->dump->mesh.world;
  AD_TRY(rank_rows_of(parts, part, expected, part->holders[0], rows, one));
  *numbered = one->count;
  memcpy(own, one->row, one->count * sizeof *own);
  for (int64_t rank = 0; rank < world; rank++) {
    if (!has_addends(members, rank)) continue;
    AD_TRY(rank_rows_of(parts, part, expected, rank, rows, one));
    if (one->count < *numbered) *numbered = one->count;
  }
  for (int64_t rank = 0; rank < world; rank++) {
    if (!has_addends(members, rank)) continue;
    AD_TRY(rank_rows_of(parts, part, expected, rank, rows, one));
    for (size_t k = 0; k < *numbered; k++) {
      *moved += one->row[k] != own[k];
      for (size_t i = 0; i < rows->width; i++) {
        left[own[k] * rows->width + i] -= one->total[one->row[k] * rows->width + i];
        bound[own[k] * rows->width + i] += one->size[one->row[k] * rows->width + i];
      }
    }
  }
  return AD_OK;
}

static ad_status find_numbered_rows(const ad_parts *parts, const ad_part *part, const ad_part_values *values,
                                    const double *expected, const ad_row_marks *rows, ad_found_patterns *found) {
  size_t n = values->n, numbered = 0, moved = 0, full = 0;
  double *memory;
  size_t *numbers;
  AD_TRY(ad_new(4 * n, &memory));
  ad_status status = ad_new(2 * rows->count, &numbers);
  if (!status) {
    ad_rank_rows one = {.total = memory, .size = memory + n, .row = numbers};
    double *left = memory + 2 * n, *bound = memory + 3 * n;
    memcpy(left, values->sum, n * sizeof *left);
    status = take_numbered(parts, part, expected, rows, &one, numbers + rows->count, left, bound, &numbered, &moved);
    int agrees = !status && moved > 0;
    for (size_t i = 0; i < n && agrees; i++) {
      agrees = ad_values_agree(values, left[i], 0, bound[i]);
      full += values->sum[i] != 0;
    }
    if (agrees && full >= values->enough)
      ad_pattern_add(found, (ad_pattern){.kind = AD_PATTERN_NUMBERED_ROWS, .more = numbered, .rank = -1});
    ad_release(numbers);
  }
  ad_release(memory);
  return status;
}

ad_status ad_patterns_find_rows(const ad_parts *parts, const ad_part *part, const ad_part_values *values,
                                const double *expected, ad_found_patterns *found) {
  const ad_shape *shape = &parts->param->shape;
  ad_box entire = ad_box_full(shape);
  if (shape->ndim < 2 || part->sampled || part->holder_count != 1 || !ad_box_equal(shape, &part->box, &entire))
    return AD_OK;
  ad_row_marks rows = {.count = (size_t)shape->dim[0], .width = values->n / (size_t)shape->dim[0]};
  AD_TRY(ad_new(2 * rows.count, &rows.own));
  rows.others = rows.own + rows.count;
  ad_status status = mark_rows(parts, part, &rows);
  if (!status && are_other_rows(values, &rows))
    ad_pattern_add(found, (ad_pattern){.kind = AD_PATTERN_OTHER_ROWS, .rank = -1});
  else if (!status)
    status = find_numbered_rows(parts, part, values, expected, &rows, found);
  ad_release(rows.own);
  return status;
}
