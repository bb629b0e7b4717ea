/* Known mistakes that are no transition (dtypes, buffers, protocol, slices): one record each, in the mistakes.c of the
 * folder where real systems make it. Tests and sabotage plant them; a mistake is a function, or a few, at seams. */
#ifndef BASE_MISTAKES_H
#define BASE_MISTAKES_H
#include <stdint.h>
#include "addend/dtype.h"
#include "base/seams.h"
#include "base/internal.h"

/* What a run must have for a mistake to show in its numbers; the sentence says why it does not. */
#define AD_NEED_LIST(X)                                                                     \
  X(TOKENS, "no token of the step counts")                                                  \
  X(RANKS, "there is one rank")                                                             \
  X(MICROBATCHES, "a step has one microbatch")                                              \
  X(UNEQUAL_MICROBATCHES, "every microbatch counts the same number of tokens")              \
  X(REDUCED, "no gradient is reduced")                                                      \
  X(SUMMED, "no gradient is summed over several ranks")                                     \
  X(FIRST_OVER_MANY, "no bucket's first reduction is over several ranks")                   \
  X(OVER_ONE, "no reduction is over a group of one rank")                                   \
  X(UNEVEN, "no gradient is cut into shards of unequal size")                               \
  X(SCATTERED_FIRST, "no gradient is reduce-scattered and then all-reduced (shard.zero)")   \
  X(OVER_REPLICAS, "no gradient is reduce-scattered and then summed over several replicas") \
  X(SHARDS_KEPT, "no microbatch leaves a shard of its sum to be added to (train.sync)")     \
  X(TURNS, "no buckets take memory in turn (shard.zero, train.sync)")                       \
  X(F16, "no gradient is f16 on its way (precision)")                                       \
  X(WIDE_SUMS, "no contract promises more than 16 bits from gradient to sum")               \
  X(NARROW_GRADIENTS, "no contract brings a gradient to 16 bits before its bucket")         \
  X(RING, "no keys go around a ring of several ranks")                                      \
  X(MASKED_RING, "no ring's attention has a mask")                                          \
  X(CUT_SEQUENCE, "no rank's positions begin after 0")                                      \
  X(SPREAD_EXPERTS, "no experts are spread over several ranks (ep)")                        \
  X(SLICES_ON_CP, "no bridge cuts a batch for several levels of cp")                        \
  X(SLICES_OUT_OF_ORDER, "no bridge cuts a batch where dp is not the fastest axis")         \
  X(SLICES_GATHERED, "no bridge brings slices of a gradient together")                      \
  X(SLICES_GATHERED_ON_CP, "no bridge brings slices together on several levels of cp")      \
  X(OTHER_COPIES, "no gradient would count otherwise on another module's mesh")             \
  X(OTHER_AVERAGE, "no module's values go to one that cuts the batch otherwise")            \
  X(VALUES_AWAY, "no parameter that learns goes to other ranks")                            \
  X(COPIES_RETURN, "no gradient comes back from other ranks to several copies")             \
  X(SHARED_CLAMP, "no clamp's gradient comes back from several modules")                    \
  X(OWN_SOURCES, "no sources climb that belong to one rank's samples, as many on each")     \
  X(F16_VALUES, "no value goes to other ranks as f16 (wire)")                               \
  X(F16_GRADIENTS, "no gradient comes back from other ranks as f16 (wire)")                 \
  X(STAGES, "no stages lie on ranks of their own (pp)")                                     \
  X(ADDED_FIRST, "no gradient is added to an earlier microbatch's before its reduction")    \
  X(TIED_STAGES, "no stage computes with the embedding of another")                         \
  X(NARROW_PRODUCTS, "no product reads bf16 (precision.compute)")                           \
  X(WIDE_STREAM, "no residual stream is wider than the products (precision.residual)")      \
  X(WHOLE_FORMULAS, "formulas are cut (tp, cp, ep), and each cut rounds in its own way")
typedef enum ad_need_number {
#define AD_NEED_NUMBER(code, sentence) AD_NEED_NUMBER_##code,
  AD_NEED_LIST(AD_NEED_NUMBER)
#undef AD_NEED_NUMBER
      AD_NEED_COUNT
} ad_need_number;
/* A set of needs. */
typedef uint64_t ad_needs;
_Static_assert(AD_NEED_COUNT <= 64, "a set has a bit for each need");
enum {
#define AD_NEED_BIT(code, sentence) AD_NEED_##code = (ad_needs)1 << AD_NEED_NUMBER_##code,
  AD_NEED_LIST(AD_NEED_BIT)
#undef AD_NEED_BIT
};
AD_INTERNAL const char *ad_need_sentence(ad_needs needs); /* of the first of them */

/* Where a mistake is at work: what its functions know of the run, and whether one of them changed something. */
typedef struct ad_mistake_scene {
  int64_t rank;         /* of the world */
  int64_t microbatch;   /* of the step that is under way; -1: none has begun */
  int64_t microbatches; /* of a step; 0: not known */
  int steps;            /* that are complete since it was planted */
  int passed;           /* how often it was called: for those that tell their calls apart */
  const void *kept;     /* what passed one seam and is used at another */
  int fired;
  double ratio; /* of the gradients that it changes to the right ones; 0: no single number */
} ad_mistake_scene;

enum { AD_MISTAKE_SEAMS = 4 };
typedef struct ad_mistake {
  const char *name, *words;
  int catalogue;   /* number of the published mistake that it repeats; 0: none */
  ad_needs needs;  /* it shows where all of them are there */
  int of_dtype;    /* 1: f64 would hide it, so it is planted in the recipe's own dtypes */
  int at_creation; /* 1: of buckets, before a run has any: it is judged by the collectives of a run of its own */
  /* What it means if it is made and no judged number has other bits, which is then no survivor. NULL: it must show. */
  const char *no_effect;
  struct {
    ad_seam seam;
    ad_seam_function function; /* its context is the ad_mistake_scene */
  } at[AD_MISTAKE_SEAMS];      /* ended by a function that is NULL */
} ad_mistake;

/* From now on it is made, until the seams are lifted. The scene keeps its rank and microbatches and begins anew
 * otherwise; it is borrowed. */
AD_INTERNAL void ad_mistake_plant(const ad_mistake *mistake, ad_mistake_scene *scene);

#endif
