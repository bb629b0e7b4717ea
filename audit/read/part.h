/* The sums and addends of one parameter. Ranks whose sums are identical form one part, which is judged once. Values are
 * read from the files when needed, so the memory does not depend on the size of the dump. */
#ifndef DIFF_PART_H
#define DIFF_PART_H
#include "read/sampled.h"

/* The addend of one rank and microbatch. */
typedef struct ad_column {
  ad_piece piece;
  double divisor; /* the number by which the rank divided this microbatch's loss; NaN: not given */
} ad_column;

/* Ranks whose addends should be summed together: their positions differ on axes of type R only. */
typedef struct ad_members {
  /* the value of ad_parts_key, which is the same for all of these ranks */
  int64_t key;
  ad_column *columns; /* the addends that exist, sorted by rank, then by microbatch */
  int32_t *ranks;     /* [count]: the rank of each column, so that some loops need only this array */
  size_t count;
  const ad_box *box; /* the box that all columns have; NULL: boxes differ, or there are no columns */
  /* The addends may have several dtypes: the largest of their unit roundoffs, and the largest of their smallest
   * positive numbers. */
  double unit, smallest;
  double inside; /* bound on the error of sums inside the addends (addend.inside), as a multiple of the unit roundoff */
} ad_members;

/* A part of a sum: elements that have the same bits on one or several ranks. These ranks have the same members. */
typedef struct ad_part {
  ad_box box;
  size_t members; /* index in the array `members` of ad_parts */
  uint64_t bits;  /* checksum of the values */
  size_t count;   /* number of elements */
  /* the samples in the box; NULL: the parameter is not sampled */
  const ad_sampled *sampled;
  const ad_piece *terms; /* tensors that add up to the sum; more than one if the sum is partial */
  size_t term_count;
  /* the ranks that hold this part */
  int64_t *holders;
  size_t holder_count;
} ad_part;

/* The first AD_FIRSTS elements of a part's addends, kept for a quick test that rejects most wrong lists of counts. */
enum { AD_FIRSTS = 8 };
typedef struct ad_firsts {
  double *values; /* [addend][AD_FIRSTS]; NULL: no elements were read yet */
  size_t members; /* identify the part to which the values belong, as its `members` and `box` do */
  ad_box box;
} ad_firsts;

/* One parameter with its members (the sets of ranks that are summed together) and the parts of its sums. */
typedef struct ad_parts {
  const ad_dump *dump;
  const ad_dump_param *param;
  ad_members *members;
  size_t member_count;
  ad_part *parts;
  size_t count;
  ad_piece *terms; /* the terms of all parts; each part points into this array */
  /* the holders of all parts; each part points into this array */
  int64_t *holders;
  ad_sampled_lists sampled;
  size_t checked; /* number of tensors whose values were checked */
  double *buffer; /* scratch memory: AD_ROWS values */
  double *rows;   /* scratch memory: 4 * AD_ROWS values, for one test at a time */
  ad_firsts *firsts;
} ad_parts;

enum { AD_ROWS = 4096 }; /* elements that are processed at a time */

/* Splits a parameter's ranks into members (sets of ranks that are summed together) and its sums into parts. Returns
 * AD_INVALID if a sum has elements that an addend of its members does not have; also, in a dump that is `unchecked`, if
 * a value of this parameter is not finite. */
ad_status ad_parts_create(const ad_dump *dump, const ad_dump_param *param, ad_parts *out) AD_CHECKED;
void ad_parts_destroy(ad_parts *parts);
/* Prefetches the first elements of a piece, which will be read soon. */
void ad_piece_expect(const ad_piece *piece, size_t elements);
/* Reads elements [begin, end) of a part, as f64, from a tensor whose box contains the box of the part. */
void ad_part_read(const ad_parts *parts, const ad_part *part, const ad_piece *piece, size_t begin, size_t end,
                  double *out);
/* Returns the address, in the mapped file, of the part's elements from `begin` on, if they are contiguous aligned
 * floats that can be used without a copy; else NULL. */
const float *ad_part_floats(const ad_parts *parts, const ad_part *part, const ad_piece *piece, size_t begin);
/* Reads elements [begin, end) of a part's sum: adds up its terms. At most AD_ROWS elements. */
void ad_part_read_sum(const ad_parts *parts, const ad_part *part, size_t begin, size_t end, double *out);
/* Returns the flat index, in the full parameter, of element `element` of the part. */
int64_t ad_part_flat(const ad_parts *parts, const ad_part *part, size_t element);
/* Computes the fields of *members that depend on all addends: box, unit, smallest, inside. */
void ad_members_measure(const ad_parts *parts, ad_members *members);
/* Returns a key of the rank's position: the same for ranks whose positions differ on axes of type R only. */
int64_t ad_parts_key(const ad_parts *parts, int64_t rank);
const ad_members *ad_part_members(const ad_parts *parts, const ad_part *part);
/* Returns 1 if no part before part number `index` has the same box. Of several replicas of a sum only the first is
 * measured or compared. */
int ad_part_is_first_of_its_box(const ad_parts *parts, size_t index);

#endif
