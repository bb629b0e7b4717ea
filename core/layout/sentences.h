/* The messages of law 1: why the types of operands do not fit together, and a repair. */
#ifndef LAYOUT_SENTENCES_H
#define LAYOUT_SENTENCES_H
#include "addend/layout.h"

/* All conflicts: X(code, reason). The reason is "" if naming the two types explains the error. */
#define AD_CONFLICT_LIST(X)                                                                                        \
  X(AD_INVARIANT_MIXED, "")                                                                                        \
  X(AD_PARTIAL_WITH_SHARDED, "")                                                                                   \
  X(AD_PARTIAL_WITH_VARYING, "")                                                                                   \
  X(AD_VARYING_WITH_SHARDED, "")                                                                                   \
  X(AD_PARTIAL_PLUS_FULL,                                                                                          \
    "every rank would add the full value to its addend, and the sum would count it once per rank")                 \
  X(AD_SUM_PLUS_FULL, "the sum along that dimension is Partial (P), and the full value would count once per rank") \
  X(AD_PARTIAL_TIMES_PARTIAL, "a product of sums is not the sum of the products")                                  \
  X(AD_PARTIAL_NONLINEAR, "the operation is not linear, so the sum must be complete before the operation")         \
  X(AD_SHARDED_AND_FULL, "one operand has this dimension sharded, the other full")                                 \
  X(AD_TWO_DIMENSIONS, "one axis would shard two dimensions of the result")                                        \
  X(AD_SHARDED_DIFFERENTLY, "zigzag shards fit only zigzag shards")                                                \
  X(AD_SHARDED_ALONG_FULL, "the operation is not local along that dimension")                                      \
  X(AD_SHARDING_ORDER, "several axes shard that dimension, and the operands nest them differently")

typedef enum ad_conflict_kind {
#define AD_CONFLICT_CODE(code, why) code,
  AD_CONFLICT_LIST(AD_CONFLICT_CODE)
#undef AD_CONFLICT_CODE
      AD_CONFLICT_COUNT
} ad_conflict_kind;

/* One operand of a conflict. */
typedef struct ad_side {
  size_t operand; /* number of the operand, counted from 0; messages count from 1 */
  ad_type type;
  /* the sharding with which this operand would fit the other operand; R if the other operand is not sharded, or if this
   * operand does not have the sharded dimension */
  ad_type like_other;
} ad_side;

typedef struct ad_conflict {
  ad_conflict_kind kind;
  ad_axis axis;
  ad_linearity linearity;
  int sides; /* number of operands in the conflict, 1 or 2 */
  ad_side side[2];
} ad_conflict;

/* Text before a repair in messages. Types do not show what a program is meant to do, so a repair is only a
 * suggestion. */
#define AD_MAY_REPAIR "; possible repair: "

/* Records the message "site: in `name`, operand 1 is I on `tp`, operand 2 is S(0), but why; possible repair: convert operand
 * 1 I->S(0)"; returns AD_TYPE. */
ad_status ad_conflict_fail(const ad_conflict *conflict, const char *name, const char *site);

#endif
