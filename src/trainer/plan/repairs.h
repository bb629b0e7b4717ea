/* The conversion that a refused program lacks, tried before it is said. */
#ifndef PLAN_REPAIRS_H
#define PLAN_REPAIRS_H
#include "addend/status.h"
#include "tensor/repair.h"

/* A step of the program on engine dry; called again it is the same. */
typedef ad_status (*ad_dry_step)(void *context);

/* Conversions that were tried, and how many were to be: those that the refused call itself would take. */
typedef struct ad_repair_search {
  size_t tried, listed;
} ad_repair_search;

/* For a step that is refused. Of the conversions of one operand of the refused call with which every type of a step
 * holds, *out is the one that moves the fewest bytes on tapes, of several the first in the order of ad_repairs; *found
 * is 0 if there is none. One that states nothing is taken before any that states something. All are tried where that
 * is cheap, otherwise the simplest. Types and shapes alone are asked. */
AD_CHECKED ad_status ad_repair_find(ad_dry_step step, void *context, ad_repair *out, int *found,
                                    ad_repair_search *search);
/* The same, said in place of what the message of the failure guesses; types that do not fit are AD_TYPE, shapes
 * AD_INVALID, and of other failures nothing is said. Returns `refused`, or why it could not be tried. */
AD_CHECKED ad_status ad_repair_say(ad_status refused, ad_dry_step step, void *context);

#endif
