/* Finds the conversion that is missing from a refused program. It is suggested only after it was tried. */
#ifndef PLAN_REPAIRS_H
#define PLAN_REPAIRS_H
#include "addend/status.h"
#include "tensor/repair.h"

/* The words of a message in front of a repair that was tried, and the words if no repair was found. */
#define AD_REPAIRS "; this repairs it: "
#define AD_NO_REPAIR "; no conversion of a single value there repairs it "

/* Takes one step of the program on backend dry. Every call must do the same. */
typedef ad_status (*ad_dry_step)(void *context);

/* How many conversions were tried, and how many there are that could be added to operands of the refused call. */
typedef struct ad_repair_search {
  size_t tried, listed;
} ad_repair_search;

/* Finds a repair of a refused step: a conversion of one operand of the refused call that makes all types of the step
 * right. Of several repairs, *out is the one whose step moves the fewest bytes on tapes, and of equal ones the first in
 * the order of ad_repairs. A conversion that asserts nothing about the values is preferred. Sets *found to 0 if there
 * is no repair. Tries all conversions if that is cheap, otherwise the simplest ones. Checks only types and shapes. */
AD_CHECKED ad_status ad_repair_find(ad_dry_step step, void *context, ad_repair *out, int *found,
                                    ad_repair_search *search);
/* Fails with the message of the failure `refused`, in which a repair that was tried takes the place of the suggested
 * one. Only AD_TYPE (types do not fit) and AD_INVALID (shapes do not fit) are searched. Returns `refused`, or the
 * status of the search if that failed. */
AD_CHECKED ad_status ad_repair_report(ad_status refused, ad_dry_step step, void *context);

#endif
