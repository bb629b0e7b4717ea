/* Ways from one type to another, found in the transition table: what the repairs of error sentences are made of. */
#ifndef LAYOUT_TRANSITION_H
#define LAYOUT_TRANSITION_H
#include "addend/layout.h"
#include "base/internal.h"

enum { AD_WAY_MAX = 2, AD_WAY_TEXT_MAX = 96 };

typedef struct ad_way {
  int count;
  ad_move move[AD_WAY_MAX];
  ad_type from[AD_WAY_MAX], to[AD_WAY_MAX];
} ad_way;

/* 1 where a step states what types cannot see: that the ranks' own values are addends or parts of a whole, or that
 * copies are not the same. To forget that parts are those of a whole is always true. */
AD_INTERNAL int ad_move_states(ad_move move, ad_type from);
/* One entry, the first in the table; count 0: there is none. */
AD_INTERNAL ad_way ad_way_direct(ad_type from, ad_type to);
/* The shortest way by the table, the entries higher up preferred, one that states nothing before one that does. count
 * is 0 if there is none within AD_WAY_MAX. */
AD_INTERNAL ad_way ad_way_find(ad_type from, ad_type to);
/* "convert I->R, then once R->P". Returns buffer. */
AD_INTERNAL const char *ad_way_print(const ad_way *way, char *buffer, size_t size);

#endif
