/* Ways from one type to another, found in the transition table: what the repairs of error sentences are made of. */
#ifndef LAYOUT_TRANSITION_H
#define LAYOUT_TRANSITION_H
#include "addend/layout.h"

enum { AD_ROUTE_MAX = 2, AD_ROUTE_TEXT_MAX = 96 };

typedef struct ad_route {
  int count;
  ad_move move[AD_ROUTE_MAX];
  ad_type from[AD_ROUTE_MAX], to[AD_ROUTE_MAX];
} ad_route;

/* The shortest way by the table, the entries higher up preferred. count is 0 if there is none within AD_ROUTE_MAX. */
ad_route ad_route_find(ad_type from, ad_type to);
/* "convert I->R, then once R->P". Returns buffer. */
const char *ad_route_print(const ad_route *route, char *buffer, size_t size);

#endif
