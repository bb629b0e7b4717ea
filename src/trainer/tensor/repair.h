/* Conversions that a program lacks: found where an operation refuses its operands, and put there. */
#ifndef TENSOR_REPAIR_H
#define TENSOR_REPAIR_H
#include "layout/transition.h"
#include "tensor/operation.h"

enum { AD_REPAIR_SITE_SIZE = 160 };

/* Of every call like this one, which was refused or led to one that was, an operand goes a way to another type on some
 * axes. */
typedef struct ad_repair {
  char site[AD_REPAIR_SITE_SIZE];
  const char *op;
  int is_before; /* 1: the call led to the refused one, by calls of one operand; 0: it is that */
  int operand;   /* 0 is the first */
  ad_axes axes;  /* on which it has one type */
  ad_way way;
  int stays; /* 1: whoever uses the operand after that call uses what it became; 0: that call alone does */
} ad_repair;

/* "convert operand 2 I->S(0) on `tp`, and use that from there on". Returns buffer. */
const char *ad_repair_print(const ad_repair *repair, char *buffer, size_t size);
/* 1 where a step of the way states what types cannot see: that ranks' own values are addends, or parts of a whole. */
int ad_repair_states(const ad_repair *repair);

/* What the first refused call would take. */
typedef struct ad_repairs {
  ad_repair *list; /* those that state nothing first, then the shorter ways */
  size_t count, capacity;
  int refused;      /* there was such a call */
  ad_status status; /* AD_MEMORY if the list is not whole */
} ad_repairs;
/* From now on, on engine dry, until the end. */
void ad_repairs_watch(ad_repairs *repairs);
void ad_repairs_end(void);
void ad_repairs_release(ad_repairs *repairs);

/* A repair at work, until the end. Borrows it. */
typedef struct ad_mending {
  const ad_repair *repair;
  const ad_tensor *before; /* the operand, and what became of it */
  ad_tensor *after;
  int transitions; /* on the tape then; fewer: it was reset */
  size_t calls;    /* that were recorded meanwhile */
  ad_tensor *operands[AD_OPERANDS_MAX];
  int fired, is_inside;
} ad_mending;
void ad_repair_begin(ad_mending *mending);
void ad_repair_end(void);

#endif
