/* Patterns in sums that no counts of their addends explain: another operation than a sum, the right sum at another
 * offset, other parameters' addends, values of other rows. A pattern is reported only if it explains every element that
 * it covers, within rounding, and covers so many elements that this is no coincidence. */
#ifndef DIFF_PATTERNS_H
#define DIFF_PATTERNS_H
#include "read/part.h"

typedef enum ad_pattern_kind {
  AD_PATTERN_MAXIMUM, /* the maximum over ranks of the values that they should add, times `factor` */
  AD_PATTERN_MINIMUM,
  AD_PATTERN_PRODUCT,
  AD_PATTERN_SHIFTED,       /* element i holds the sum that belongs at element i + `shift` */
  AD_PATTERN_MOVED,         /* segments were shifted: `shift` is the most frequent shift, and there are `more` others */
  AD_PATTERN_OTHER_SUM,     /* the sum of parameter `name`, and of `more` other parameters */
  AD_PATTERN_OTHER_ADDENDS, /* rank `rank` added addends of parameter `name` here, and of `more` other parameters */
  AD_PATTERN_OTHER_ROWS,    /* the ranks' nonzero rows were added in order, although they are different rows */
  AD_PATTERN_NUMBERED_ROWS  /* as OTHER_ROWS, but only the first `more` nonzero rows of each rank were added */
} ad_pattern_kind;

typedef struct ad_pattern {
  ad_pattern_kind kind;
  uint32_t axes; /* bit set of the axes of a maximum, minimum or product */
  double factor; /* factor of a maximum, minimum or product, relative to the sum's expected factor */
  int64_t shift, rank;
  const char *name; /* owned by the dump */
  size_t more;
} ad_pattern;
/* A part is compared with at most AD_PATTERN_VALUES values of at most AD_PATTERN_PARAMS parameters; AD_PATTERNS is the
 * most patterns that are kept. */
enum { AD_PATTERNS = 8, AD_PATTERN_VALUES = 1 << 16, AD_PATTERN_PARAMS = 256 };

typedef struct ad_found_patterns {
  ad_pattern list[AD_PATTERNS]; /* patterns beyond this many are dropped */
  size_t count;
} ad_found_patterns;

/* Values of one part of a sum, as f64: `sum` is the dumped sum, `right` the right sum, and `size` the expected
 * factor times the sum of the addends' absolute values. at[i] is the element's flat index in the full parameter,
 * ascending. */
typedef struct ad_part_values {
  size_t n;
  double *sum, *right, *size;
  int64_t *at;
  double share, least; /* the error of an element may be share * size + least */
  size_t enough;       /* if this many elements match, that is no coincidence */
} ad_part_values;

/* Reads a part's values. `expected` has the counts that its addends should have. ad_part_values_clear frees the
 * values. */
ad_status ad_part_values_create(const ad_parts *parts, const ad_part *part, const double *expected,
                                ad_part_values *out) AD_CHECKED;
void ad_part_values_clear(ad_part_values *values);
/* Returns 1 if the two numbers are equal within the rounding of a sum whose absolute sum is `size`. */
int ad_values_agree(const ad_part_values *values, double a, double b, double size);
/* A value and its index in an unsorted list. A list of such pairs is sorted, and then searched by value. */
typedef struct ad_placed {
  double value;
  size_t index;
} ad_placed;
void ad_placed_sort(ad_placed *list, size_t n);
/* Returns the index of the first entry of the sorted list whose value is not below `value`, or n if there is none. */
size_t ad_placed_from(const ad_placed *sorted, size_t n, double value);

/* Appends a pattern unless the list is full. */
void ad_pattern_add(ad_found_patterns *found, ad_pattern pattern);
/* Appends the patterns that give the part. `expected` has the counts that its addends should have. `others` is 1 if
 * other parameters' values may be read and compared. */
ad_status ad_patterns_find(const ad_parts *parts, const ad_part *part, const double *expected, int others,
                           ad_found_patterns *found) AD_CHECKED;
/* Appends the pattern of rows that were added to other rows, if the part has it (patterns_rows.c). */
ad_status ad_patterns_find_rows(const ad_parts *parts, const ad_part *part, const ad_part_values *values,
                                const double *expected, ad_found_patterns *found) AD_CHECKED;
/* Appends those patterns that need other parameters' values, if the part has them (patterns_others.c). */
ad_status ad_patterns_find_others(const ad_parts *parts, const ad_part *part, const ad_part_values *values,
                                  const double *expected, ad_found_patterns *found) AD_CHECKED;

#endif
