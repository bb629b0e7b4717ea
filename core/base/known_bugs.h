/* Known mistakes of distributed training that are not transitions (dtypes, buffers, protocol, slices). Each is a record
 * in the known_bugs.c of the folder where real systems make that mistake. Tests and the proof's sabotage plant it: a
 * mistake consists of one or a few functions at seams (base/injection.h). */
#ifndef BASE_KNOWN_BUGS_H
#define BASE_KNOWN_BUGS_H
#include <stdint.h>
#include "addend/dtype.h"
#include "base/injection.h"
#include "base/internal.h"

/* What a run must have for a mistake to change its numbers; the sentence says why a run without it does not show the
 * mistake. */
#define AD_NEED_LIST(X)                                                                                   \
  X(TOKENS, "no token of the step counts")                                                                \
  X(RANKS, "there is one rank")                                                                           \
  X(MICROBATCHES, "a step has one microbatch")                                                            \
  X(DIVIDED, "no loss is divided by its count: each takes its microbatch's share of it (per_microbatch)") \
  X(UNEQUAL_MICROBATCHES, "every microbatch counts the same number of tokens")                            \
  X(REDUCED, "no gradient is reduced")                                                                    \
  X(SUMMED, "no gradient is summed over several ranks")                                                   \
  X(FIRST_OVER_MANY, "no bucket's first reduction is over several ranks")                                 \
  X(OVER_ONE, "no reduction is over a group of one rank")                                                 \
  X(UNEVEN, "no gradient is cut into shards of unequal size")                                             \
  X(SCATTERED_FIRST, "no gradient is reduce-scattered and then all-reduced (shard.zero)")                 \
  X(OVER_REPLICAS, "no gradient is reduce-scattered and then summed over several replicas")               \
  X(SHARDS_KEPT, "no microbatch leaves a shard of its sum to be added to (train.sync)")                   \
  X(TURNS, "no buckets take memory in turn (shard.zero, train.sync)")                                     \
  X(F16, "no gradient is f16 on its way (precision)")                                                     \
  X(WIDE_SUMS, "no contract promises more than 16 bits from gradient to sum")                             \
  X(NARROW_GRADIENTS, "no contract brings a gradient to 16 bits before its bucket")                       \
  X(RING, "no keys go around a ring of several ranks")                                                    \
  X(MASKED_RING, "no ring's attention has a mask")                                                        \
  X(SHARDED_SEQUENCE, "no rank's positions begin after 0")                                                \
  X(SPREAD_EXPERTS, "no experts are spread over several ranks (ep)")                                      \
  X(SLICES_ON_CP, "no bridge cuts a batch for several levels of cp")                                      \
  X(SLICES_OUT_OF_ORDER, "no bridge cuts a batch where dp is not the fastest axis")                       \
  X(SLICES_GATHERED, "no bridge brings slices of a gradient together")                                    \
  X(SLICES_GATHERED_ON_CP, "no bridge brings slices together on several levels of cp")                    \
  X(OTHER_REPLICAS, "no gradient would count otherwise on another module's mesh")                         \
  X(OTHER_AVERAGE, "no module's values go to one that cuts the batch otherwise")                          \
  X(VALUES_AWAY, "no parameter that learns goes to other ranks")                                          \
  X(REPLICAS_RETURN, "no gradient comes back from other ranks to several copies")                         \
  X(SHARED_CLAMP, "no clamp's gradient comes back from several modules")                                  \
  X(OWN_SOURCES, "no sources climb that belong to one rank's samples, as many on each")                   \
  X(F16_VALUES, "no value goes to other ranks as f16 (wire)")                                             \
  X(F16_GRADIENTS, "no gradient comes back from other ranks as f16 (wire)")                               \
  X(STAGES, "no stages lie on ranks of their own (pp)")                                                   \
  X(ADDED_FIRST, "no gradient is added to an earlier microbatch's before its reduction")                  \
  X(TIED_STAGES, "no stage computes with the embedding of another")                                       \
  X(NARROW_PRODUCTS, "no product reads bf16 (precision.compute)")                                         \
  X(WIDE_STREAM, "no residual stream is wider than the products (precision.residual)")                    \
  X(FULL_FORMULAS, "formulas are cut (tp, cp, ep), and each cut rounds in its own way")
typedef enum ad_need_number {
#define AD_NEED_NUMBER(code, sentence) AD_NEED_NUMBER_##code,
  AD_NEED_LIST(AD_NEED_NUMBER)
#undef AD_NEED_NUMBER
      AD_NEED_COUNT
} ad_need_number;
/* A set of needs: one bit for each. */
typedef uint64_t ad_needs;
_Static_assert(AD_NEED_COUNT <= 64, "a set has a bit for each need");
enum {
#define AD_NEED_BIT(code, sentence) AD_NEED_##code = (ad_needs)1 << AD_NEED_NUMBER_##code,
  AD_NEED_LIST(AD_NEED_BIT)
#undef AD_NEED_BIT
};
AD_INTERNAL const char *ad_need_sentence(ad_needs needs); /* the sentence of the first need in the set */

/* What the functions of a planted mistake know about the run, and what they report. */
typedef struct ad_known_bug_scene {
  int64_t rank;         /* this rank in the world */
  int64_t microbatch;   /* number of the present microbatch; -1: none has begun */
  int64_t microbatches; /* microbatches of a step; 0: not known */
  int steps;            /* number of steps completed since the mistake was planted */
  int passed;       /* how often the mistake's function was called, for mistakes that treat their calls differently */
  const void *kept; /* what the mistake keeps from one seam for another */
  /* set to 1 by the mistake when it has changed something */
  int fired;
  double ratio; /* wrong gradients divided by right ones; 0: they have no common ratio */
} ad_known_bug_scene;

enum { AD_KNOWN_BUG_POINTS = 4 };
typedef struct ad_known_bug {
  /* words: a description for people */
  const char *name, *words;
  int catalogue;  /* number in docs/catalogue.md of the published bug that this one repeats; 0: none */
  ad_needs needs; /* the mistake changes numbers if the run has all of these */
  int of_dtype;   /* 1: f64 would hide the mistake, so it is planted with the recipe's own dtypes */
  int rounds; /* 1: the mistake only rounds more what ranks compute: where sums are short, by less than the right program
               * rounds */
  /* 1: the mistake is made while buckets are created, so it is planted before a run of its own is created, whose
   * collectives show it */
  int at_creation;
  /* Why the mistake can be made without changing a bit of any judged number; if it does so, it does not count as a
   * survivor. NULL: the mistake must show. */
  const char *no_effect;
  struct {
    ad_injection_point point;
    ad_injection_function function; /* called with the ad_known_bug_scene as context */
  } at[AD_KNOWN_BUG_POINTS];        /* a NULL function ends the list */
} ad_known_bug;

/* Plants the mistake until the seams are cleared. The scene keeps its rank and microbatches, and is otherwise reset. It
 * is borrowed. */
AD_INTERNAL void ad_known_bug_inject(const ad_known_bug *bug, ad_known_bug_scene *scene);

#endif
