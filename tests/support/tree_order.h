/* The order of additions of law 10, written once more for tests, in the plainest way: the sum of the lower half of the
 * indices plus the sum of the upper half, each formed in the same way. */
#ifndef SUPPORT_TREE_ORDER_H
#define SUPPORT_TREE_ORDER_H
#include <stddef.h>

/* Returns the index at which the summation tree cuts [first, end): the middle, or the even one of the two beside it. */
static inline size_t tree_cut(size_t first, size_t end) {
  size_t below = (first + end) / 2, above = (first + end + 1) / 2;
  return below % 2 == 0 || below == above ? below : above;
}

/* Joins the terms [first, end) pairwise in the order of the tree. */
static inline double in_tree_order(const void *context, double (*term)(const void *, size_t),
                                   double (*join)(const void *, double, double), size_t first, size_t end) {
  if (end - first == 1) return term(context, first);
  size_t cut = tree_cut(first, end);
  double lower = in_tree_order(context, term, join, first, cut);
  return join(context, lower, in_tree_order(context, term, join, cut, end));
}

/* Joins the terms [first, end), which are the leaves of one node of the aligned tree over leaves, pairwise in its order:
 * the largest power of two of them below their number is one half. */
static inline double in_node_order(const void *context, double (*term)(const void *, size_t),
                                   double (*join)(const void *, double, double), size_t first, size_t end) {
  size_t lower = 1;
  if (end - first == 1) return term(context, first);
  while (2 * lower < end - first) lower *= 2;
  double sum = in_node_order(context, term, join, first, first + lower);
  return join(context, sum, in_node_order(context, term, join, first + lower, end));
}

#endif
