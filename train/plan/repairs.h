/* Finds the conversion that is missing from a refused program; it is tried before it is suggested. */
#ifndef PLAN_REPAIRS_H
#define PLAN_REPAIRS_H
#include "addend/status.h"
#include "tensor/repair.h"

/* The words of a message before a repair that was tried, and the words if no repair was found. */
#define AD_REPAIRS "; this repairs it: "
#define AD_NO_REPAIR "; no conversion of a single value there repairs it "

/* Takes one step of the program on backend dry; every call must do the same. */
typedef ad_status (*ad_dry_step)(void *context);

/* How many conversions were tried, and how many there were: those of the operands of the refused call. */
typedef struct ad_repair_search {
  size_t tried, listed;
} ad_repair_search;

/* Finds a repair of a refused step: a conversion of one operand of the refused call that makes all types of the step
 * right. Of several, *out is the conversion whose step moves the fewest bytes on tapes; of equal ones, the first in the
 * order of ad_repairs. A conversion that states nothing is preferred to one that states something about the values.
 * *found is 0 if there is none. All conversions are tried if that is cheap, otherwise the simplest. Only types and
 * shapes are checked. */
AD_CHECKED ad_status ad_repair_find(ad_dry_step step, void *context, ad_repair *out, int *found,
                                    ad_repair_search *search);
/* Fails with the message of the failure `refused`, with the repair that was found, if any, in place of the guess. Only
 * AD_TYPE (types do not fit) and AD_INVALID (shapes) are searched. Returns `refused`, or why the search failed. */
AD_CHECKED ad_status ad_repair_report(ad_status refused, ad_dry_step step, void *context);

#endif
