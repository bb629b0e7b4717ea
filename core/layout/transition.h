/* Ways from one type to another in the transition table, from which the repairs in messages are made. */
#ifndef LAYOUT_TRANSITION_H
#define LAYOUT_TRANSITION_H
#include "addend/layout.h"
#include "base/internal.h"

enum { AD_WAY_MAX = 2, AD_WAY_TEXT_MAX = 96 };

/* A way: one or two transitions, one after another. */
typedef struct ad_way {
  int count;
  ad_move move[AD_WAY_MAX];
  ad_type from[AD_WAY_MAX], to[AD_WAY_MAX];
} ad_way;

/* 1: the transition makes a claim that types cannot check: that the ranks' own values are addends or parts of a whole,
 * or that copies are not the same. (That parts of a whole are each rank's own values is always true.) */
AD_INTERNAL int ad_move_states(ad_move move, ad_type from);
/* The way from one type to the other by a single entry of the table, the first that fits; count 0: none does. */
AD_INTERNAL ad_way ad_way_direct(ad_type from, ad_type to);
/* The shortest way in the table; earlier entries are preferred, and ways without claims (ad_move_states) come before
 * ways with claims. count is 0 if no way has at most AD_WAY_MAX transitions. */
AD_INTERNAL ad_way ad_way_find(ad_type from, ad_type to);
/* Prints "convert I->R, then once R->P". Returns buffer. */
AD_INTERNAL const char *ad_way_print(const ad_way *way, char *buffer, size_t size);

#endif
