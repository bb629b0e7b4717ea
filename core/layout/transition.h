/* Rows of the table of transitions, and ways: transitions of the table that lead from one type to another, one after
 * the other. Messages suggest them as repairs. */
#ifndef LAYOUT_TRANSITION_H
#define LAYOUT_TRANSITION_H
#include "addend/layout.h"
#include "base/internal.h"

/* Finds the row for a move and two types; the dimension of S(d) is ignored. Returns NULL if law 2's table has no such
 * row. */
AD_INTERNAL const ad_transition *ad_transition_find(ad_move move, ad_type from, ad_type to);

enum { AD_WAY_MAX = 2, AD_WAY_TEXT_MAX = 96 };

/* A way: one or two transitions, one after another. */
typedef struct ad_way {
  int count;
  ad_move move[AD_WAY_MAX];
  ad_type from[AD_WAY_MAX], to[AD_WAY_MAX];
} ad_way;

/* Returns 1 if the transition makes a claim that types cannot check: that each rank's own value is an addend, or a part
 * of a full value, or that replicas differ. (S(d)->V makes no claim: a rank's part of a full value is also a value of
 * its own.) */
AD_INTERNAL int ad_move_states(ad_move move, ad_type from);
/* Returns the way of one transition: the first entry of the table from one type to the other. Its count is 0 if there
 * is none. */
AD_INTERNAL ad_way ad_way_direct(ad_type from, ad_type to);
/* Returns the shortest way in the table that makes no claims (ad_move_states), or if there is none, the shortest way.
 * Its count is 0 if no way has at most AD_WAY_MAX transitions. */
AD_INTERNAL ad_way ad_way_find(ad_type from, ad_type to);
/* Prints a way such as "convert I->R, then once R->P". Returns buffer. */
AD_INTERNAL const char *ad_way_print(const ad_way *way, char *buffer, size_t size);

#endif
