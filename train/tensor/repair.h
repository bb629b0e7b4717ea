/* Repairs of a program that the type rules refuse: finds the conversions with which a refused operation would be
 * accepted, and records a program with one of them. */
#ifndef TENSOR_REPAIR_H
#define TENSOR_REPAIR_H
#include "layout/transition.h"
#include "tensor/operation.h"

enum { AD_REPAIR_SITE_SIZE = 160 };

/* A repair: an operand of a call is converted on some axes. The call is the refused one, or an earlier call whose
 * result the refused one used. All calls at the same FILE:LINE are repaired in the same way. */
typedef struct ad_repair {
  char site[AD_REPAIR_SITE_SIZE]; /* FILE:LINE of the call; if it is too long, "..." and its end */
  const char *op;
  /* 1: the repaired call made an operand of the refused one, through calls with one operand; 0: it is the refused
   * call */
  int is_before;
  int operand;  /* index of the operand, from 0 */
  ad_axes axes; /* axes on which the operand has one type, and is converted */
  ad_way way;
  int stays; /* 1: later uses of the operand use the converted value, too; 0: only the repaired call uses it */
} ad_repair;

/* Prints "convert operand 2 I->S(0) on `tp`, and use the result from there on". Returns buffer. */
const char *ad_repair_print(const ad_repair *repair, char *buffer, size_t size);
/* Returns 1 if a step of the conversion states a fact that types cannot check: that the ranks' own values are
 * addends, or are parts of a full value. */
int ad_repair_states(const ad_repair *repair);

/* The repairs of the first refused call. */
typedef struct ad_repairs {
  ad_repair *list; /* sorted: repairs that state no unchecked fact first, then repairs of fewer steps */
  size_t count, capacity;
  int refused;      /* 1: a call was refused */
  ad_status status; /* AD_MEMORY if the list is incomplete */
} ad_repairs;
/* Collects the repairs of the first call that is refused on backend dry, until ad_repairs_end. */
void ad_repairs_watch(ad_repairs *repairs);
void ad_repairs_end(void);
void ad_repairs_release(ad_repairs *repairs);

/* The state of a repair that is applied while a program runs, until ad_repair_end. Borrows the repair. */
typedef struct ad_mending {
  const ad_repair *repair;
  const ad_tensor *before; /* the operand before and after the conversion */
  ad_tensor *after;
  /* number of transitions on the tape at the conversion; a smaller number later means that the tape was reset */
  int transitions;
  size_t calls; /* number of calls that were recorded since the conversion */
  ad_tensor *operands[AD_OPERANDS_MAX];
  /* fired: the repair was applied at least once */
  int fired, is_inside;
} ad_mending;
void ad_repair_begin(ad_mending *mending);
void ad_repair_end(void);

#endif
