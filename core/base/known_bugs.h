/* Known bugs of distributed training (in dtypes, buffers, protocol, slices), except wrong transitions. Each bug is a
 * record in a known_bugs.c, in the folder that does the work in which real systems had the bug. Tests and `addend check
 * --mutate` install a known bug, which is one or a few functions at injection points (base/injection.h). */
#ifndef BASE_KNOWN_BUGS_H
#define BASE_KNOWN_BUGS_H
#include <stdint.h>
#include "addend/dtype.h"
#include "base/injection.h"
#include "base/internal.h"

/* Needs: the conditions under which a known bug changes the numbers of a run, X(code, sentence). The sentence
 * explains why a run in which the condition is not met does not show the bug. */
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
  X(UNEVEN, "no gradient is sharded into parts of unequal size")                                          \
  X(SCATTERED_FIRST, "no gradient is reduce-scattered and then all-reduced (shard.zero)")                 \
  X(OVER_REPLICAS, "no gradient is reduce-scattered and then summed over several replicas")               \
  X(PARTLY_UPDATED, "no shard is updated in parts by its replicas (shard.outer_zero)")                    \
  X(SHARDS_KEPT, "no shard of an earlier sum waits for the last microbatch (train.sync)")                 \
  X(TURNS, "no buckets take memory in turn (shard.zero, train.sync)")                                     \
  X(F16, "no gradient is f16 on its way (precision)")                                                     \
  X(WIDE_SUMS, "no precision policy keeps more than 16 bits from gradient to sum")                        \
  X(NARROW_GRADIENTS, "no precision policy converts a gradient to 16 bits before its bucket")             \
  X(RING, "no keys go around a ring of several ranks")                                                    \
  X(RING_GRADIENTS, "no gradient of keys goes around a ring")                                             \
  X(MASKED_RING, "no ring's attention has a mask")                                                        \
  X(SHARDED_SEQUENCE, "no rank's positions begin after 0")                                                \
  X(SPREAD_EXPERTS, "no experts are spread over several ranks (ep)")                                      \
  X(SLICES_ON_CP, "no bridge shards a batch for several levels of cp")                                    \
  X(SLICES_OUT_OF_ORDER, "no bridge shards a batch where dp is not the fastest axis")                     \
  X(SLICES_GATHERED, "no bridge brings slices of a gradient together")                                    \
  X(SLICES_GATHERED_ON_CP, "no bridge brings slices together on several levels of cp")                    \
  X(OTHER_REPLICAS, "no gradient would count otherwise on another module's mesh")                         \
  X(OTHER_AVERAGE, "no module's values go to one that shards the batch differently")                      \
  X(VALUES_AWAY, "no parameter that learns goes to other ranks")                                          \
  X(REPLICAS_RETURN, "no gradient comes back from other ranks to several replicas")                       \
  X(SHARED_CLAMP, "no clamp's gradient comes back from several modules")                                  \
  X(OWN_SOURCES, "no sources climb that belong to one rank's samples, as many on each")                   \
  X(F16_VALUES, "no value goes to other ranks as f16 (comm_dtype)")                                       \
  X(F16_GRADIENTS, "no gradient comes back from other ranks as f16 (comm_dtype)")                         \
  X(STAGES, "no stages are on separate ranks (pp)")                                                       \
  X(STAGES_RETURN, "no gradient comes back to a stage from the next one")                                 \
  X(ADDED_FIRST, "no gradient is added to an earlier microbatch's before its reduction")                  \
  X(TIED_STAGES, "no stage computes with the embedding of another")                                       \
  X(NARROW_PRODUCTS, "no product reads bf16 (precision.compute)")                                         \
  X(WIDE_STREAM, "no residual stream is wider than the products (precision.residual)")                    \
  X(STATES, "the optimizer keeps no state from step to step")                                             \
  X(DECAY, "no parameter decays (train.weight_decay)")                                                    \
  X(ROUNDS, "each rank computes one part of the batch in a step")                                         \
  X(TWO_LEAVES, "no rank has two leaves")                                                                 \
  X(FOUR_LEAVES, "no rank has four leaves")                                                               \
  X(UNDECAYED, "every parameter decays, or none does")                                                    \
  X(STEP_NUMBER, "no optimizer uses the number of the step")                                              \
  X(GROUP_RATES, "no group has another learning rate than the next one (groups)")                         \
  X(MATRICES, "no parameter is updated as a whole matrix (optimizer.kind)")                               \
  X(SHARDED_MATRICES, "no matrix that is updated as a whole is sharded")                                  \
  X(TP_MATRICES, "no matrix that is updated as a whole is sharded over tp or etp")                        \
  X(FUSED, "no parameter that is updated as whole matrices is several of them beside each other")         \
  X(FROZEN, "no parameter is frozen (groups)")                                                            \
  X(GROUP_SYNC, "no group has another sync than the others (shard.groups)")                               \
  X(GROUP_SUMS, "no group's sums are complete before the last microbatch where another's are not (sync)") \
  X(GROUP_LEVELS, "no copies stay while those of another group are released (shard.groups)")              \
  X(DROPOUT_AGAIN, "no layer with dropout runs again (train.recompute)")                                  \
  X(CHOICES_AGAIN, "no layer that chooses between experts of two tokens runs again (train.recompute)")    \
  X(BALANCE_AGAIN, "no layer with a balancing loss runs again (train.recompute)")                         \
  X(BIAS_AGAIN, "no layer with a balancing bias runs again (train.recompute)")                            \
  X(FULL_FORMULAS, "formulas are sharded (tp, cp, ep), and each sharding rounds differently")
typedef enum ad_need_number {
#define AD_NEED_NUMBER(code, sentence) AD_NEED_NUMBER_##code,
  AD_NEED_LIST(AD_NEED_NUMBER)
#undef AD_NEED_NUMBER
      AD_NEED_COUNT
} ad_need_number;
/* A set of needs: bit n stands for the need with number n. */
typedef uint64_t ad_needs;
_Static_assert(AD_NEED_COUNT <= 64, "a set has a bit for each need");
enum {
#define AD_NEED_BIT(code, sentence) AD_NEED_##code = (ad_needs)1 << AD_NEED_NUMBER_##code,
  AD_NEED_LIST(AD_NEED_BIT)
#undef AD_NEED_BIT
};
AD_INTERNAL const char *ad_need_sentence(ad_needs needs); /* the sentence of the first need in the set */

/* The facts that the functions of an installed known bug know of the run, and those that they report about
 * themselves. */
typedef struct ad_known_bug_scene {
  int64_t rank;         /* this rank in the world */
  int64_t microbatch;   /* number of the present microbatch; -1: none has begun */
  int64_t microbatches; /* microbatches of a step; 0: not known */
  int steps;            /* number of steps completed since the bug was installed */
  int passed;           /* how often the bug's function was called, for bugs that do something else in later calls */
  const void *kept;     /* a value that the bug stores at one injection point for another one */
  /* set to 1 by the bug as soon as it has changed something */
  int fired;
  double ratio; /* ratio of the wrong gradients to the right ones; 0: they have no common ratio */
} ad_known_bug_scene;

enum { AD_KNOWN_BUG_POINTS = 4 };
typedef struct ad_known_bug {
  /* words: a description for people */
  const char *name, *words;
  int catalogue;  /* number, in docs/catalogue.md, of the published bug that this bug repeats; 0: none */
  ad_needs needs; /* the bug changes numbers only in a run that meets all these needs */
  int of_dtype;   /* 1: f64 would hide the bug, so the run with the bug has the recipe's own dtypes */
  /* 1: the bug only adds rounding. In short sums its rounding may be less than that of the right program, so that it
   * does not show */
  int rounds;
  /* 1: the bug acts while buckets are created. It is therefore installed before a separate run begins, and it shows
   * in the run's collectives */
  int at_creation;
  int of_bits; /* 1: the comparison of bits must notice the bug, in runs with train.leaves; other checks may miss it */
  /* The reason why the bug may change no checked number; if it changes none, it does not count as survived. NULL:
   * checks must notice the bug. */
  const char *no_effect;
  struct {
    ad_injection_point point;
    ad_injection_function function; /* called with the ad_known_bug_scene as context */
  } at[AD_KNOWN_BUG_POINTS];        /* a NULL function ends the list */
} ad_known_bug;

/* Installs the bug, until the injection points are cleared. Keeps the scene's rank and microbatches, and resets all
 * its other fields. The scene is borrowed. */
AD_INTERNAL void ad_known_bug_inject(const ad_known_bug *bug, ad_known_bug_scene *scene);

#endif
