/* One parameter's sums and addends: what the ranks' sums have in common is one part, judged once. The memory is that of
 * one parameter: values are read from the files as they are needed. */
#ifndef DIFF_PART_H
#define DIFF_PART_H
#include "diff/sampled.h"

/* The addend of a rank and microbatch. */
typedef struct ad_column {
  ad_piece piece;
  double divisor; /* NaN: not said */
} ad_column;

/* Ranks whose addends are to be summed: they differ in position on axes of type R alone. */
typedef struct ad_members {
  int64_t key;
  ad_column *columns; /* those that are there, by rank and microbatch */
  int32_t *ranks;     /* theirs once more, for loops that need nothing else of them */
  size_t count;
  const ad_box *box;     /* of all of them; NULL: they differ, or there are none */
  double unit, smallest; /* of the addends' dtypes the largest unit roundoff and the largest smallest number above 0 */
  double inside;         /* what sums inside of the addends may be off before they are rounded: u times this */
} ad_members;

/* The same elements with the same bits, on one rank or several of the same members. */
typedef struct ad_part {
  ad_box box;
  size_t members; /* index */
  uint64_t bits;  /* checksum of the values */
  size_t count;   /* elements */
  const ad_sampled *sampled;
  const ad_piece *terms; /* that are added; one, but for a sum that is still partial */
  size_t term_count;
  int64_t *holders;
  size_t holder_count;
} ad_part;

/* The first elements of a part's addends, for tests of many counts. */
enum { AD_FIRSTS = 8 };
typedef struct ad_firsts {
  double *values; /* [addend][AD_FIRSTS]; NULL: none were read yet */
  size_t members; /* whose they are, and in which box */
  ad_box box;
} ad_firsts;

typedef struct ad_parts {
  const ad_dump *dump;
  const ad_dump_param *param;
  ad_members *members;
  size_t member_count;
  ad_part *parts;
  size_t count;
  ad_piece *terms; /* of all parts */
  int64_t *holders;
  ad_sampled_lists sampled;
  size_t checked; /* tensors whose values were looked at */
  double *buffer; /* AD_ROWS values */
  double *rows;   /* 4 * AD_ROWS, for one test at a time */
  ad_firsts *firsts;
} ad_parts;

enum { AD_ROWS = 4096 }; /* elements that are looked at at once */

/* AD_INVALID: a sum has elements that an addend of its members lacks; or, of a dump whose values nobody has looked at,
 * that one of the parameter's is not finite. */
ad_status ad_parts_create(const ad_dump *dump, const ad_dump_param *param, ad_parts *out) AD_CHECKED;
void ad_parts_destroy(ad_parts *parts);
/* The first elements of a piece are read soon: brings their bytes nearer. */
void ad_piece_expect(const ad_piece *piece, size_t elements);
/* Elements [begin, end) of a part, from a tensor whose box contains the part's. */
void ad_part_read(const ad_parts *parts, const ad_part *part, const ad_piece *piece, size_t begin, size_t end,
                  double *out);
/* The same elements where they lie as they are read, and are aligned floats; else NULL. */
const float *ad_part_floats(const ad_parts *parts, const ad_part *part, const ad_piece *piece, size_t begin);
/* The same of its sum. At most AD_ROWS elements. */
void ad_part_read_sum(const ad_parts *parts, const ad_part *part, size_t begin, size_t end, double *out);
int64_t ad_part_flat(const ad_parts *parts, const ad_part *part, size_t element); /* its index in the whole */
/* Finds what of the addends' rounding depends on all of them, once they are listed. */
void ad_members_measure(const ad_parts *parts, ad_members *members);
/* The same number for all ranks that differ on axes of type R only. */
int64_t ad_parts_key(const ad_parts *parts, int64_t rank);
const ad_members *ad_part_members(const ad_parts *parts, const ad_part *part);

#endif
