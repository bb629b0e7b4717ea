/* Mutants and their results. A mutant is derived from one of the program's own transitions, or is a known bug that
 * changes something other than a transition. */
#ifndef CHECK_MUTANTS_H
#define CHECK_MUTANTS_H
#include <stdatomic.h>
#include "base/known_bugs.h"
#include "check/mutation.h"
#include "check/result.h"
#include "plan/repairs.h"

typedef enum ad_killed_by {
  AD_KILLED_BY_NONE,
  AD_KILLED_BY_TYPE,
  AD_KILLED_BY_NUMBER,
  AD_KILLED_BY_PROTOCOL,
  AD_KILLED_BY_BITS, /* bits differ from those of a run without data parallelism (check/bits.h) */
  AD_KILLED_BY_PLAN, /* precision policies or collectives differ from the plan's */
  /* the mutation changed no bit of any judged number, or no type; or it moved gradients of a custom program by less
   * than the program's own roundings do. A known bug of addend's own programs has this outcome only if its record says
   * why it may have no effect */
  AD_KILLED_BY_NO_EFFECT,
  AD_KILLED_BY_NOT_APPLICABLE, /* known bugs only: the bug cannot change a number in this run; `message` says why */
  AD_KILLED_BY_UNTRIED         /* the check fails even without a mutation, so a failing check would not show the
                        * mutant */
} ad_killed_by;
const char *ad_killed_by_name(ad_killed_by killed_by);

/* One mutant and its result, in memory that processes share; so its pointers point only to constants. */
typedef struct ad_mutant {
  char name[256];
  const ad_known_bug *known; /* NULL: the mutant is a derived one, described by `mutation` */
  ad_mutation mutation;
  int catalogue;         /* number in docs/catalogue.md of the published bug that this mutant repeats; 0: none */
  double expected_ratio; /* ratio of the wrong gradient to the reference; NaN if it differs between elements */
  ad_killed_by killed_by;
  char param[AD_PROGRAM_NAME_SIZE];
  double ratio;
  double loss_err; /* relative error of the loss when the mutant was killed; NaN: it was not killed by a number */
  /* for a mutant of a custom program that only rounds: how far it moved gradients, divided by how far the program's own
   * roundings move them; NaN: not measured, or the mutant was killed */
  double moved;
  ad_causes causes;
  char message[512];
} ad_mutant;
static inline int ad_mutant_is_of_dtype(const ad_mutant *mutant) { return mutant->known && mutant->known->of_dtype; }

/* The mutants of one check, in memory that the ranks and the process that starts them share. */
typedef struct ad_mutants {
  size_t bytes;           /* bytes of this shared memory */
  size_t count, next;     /* count: length of the list; next: index of the first mutant that has not been tried */
  size_t places;          /* number of transitions from which mutants were derived */
  size_t derived;         /* number of derived mutants, which come first in the list */
  size_t derived_in_all;  /* number of derived mutants that exist; more than `derived` if only some were drawn */
  uint64_t seed;          /* seed of the draw of mutants */
  int clean;              /* 1: the check passes without a mutation */
  _Atomic ad_needs facts; /* facts about this run that known bugs need (AD_NEED_...), collected on all ranks */
  ad_mutant list[];
} ad_mutants;

/* Records what killed a mutant whose ranks ended with an error: a type, a number or the protocol. Any other error is a
 * failure of the check itself, and is returned. */
ad_status ad_mutant_killed_by_end(const ad_launch_result *launched, ad_status status, ad_mutant *mutant) AD_CHECKED;

/* Lists all derived mutants and known bugs of the recipe's program. If `take` is above 0, lists only this many derived
 * mutants, drawn by `seed`. Mutants whose mutation is in the record on the tape are tried in this call. */
ad_status ad_mutants_create(const ad_recipe *recipe, int64_t take, uint64_t seed, ad_mutants **out) AD_CHECKED;
void ad_mutants_destroy(ad_mutants *mutants);
/* Starts ranks and tries all mutants whose mutation is in the execution. `result` is scratch memory. If ranks end with
 * an error because of a mutant, this is the mutant's result; only a failure of the check itself is returned as an
 * error. */
ad_status ad_mutants_try(const ad_recipe *recipe, const ad_check_options *options, ad_check_result *result,
                         ad_mutants *mutants) AD_CHECKED;
size_t ad_mutants_survivors(const ad_mutants *mutants);
/* Counts mutants that were not tried: with of_dtype 1 those of the recipe's own dtypes, with 0 all others. */
size_t ad_mutants_untried(const ad_mutants *mutants, int of_dtype);
/* Counts the mutants in the execution that changed something: killed by number, protocol or plan, or survived. */
size_t ad_mutants_effective(const ad_mutants *mutants);

/* derived.c */
/* Appends the mutants at each place to `list` and returns their number; only counts them if `list` is NULL. */
size_t ad_derived_list(const ad_places *places, ad_mutant *list);
/* Lists the transitions of one step of the recipe. */
ad_status ad_derived_places(const ad_recipe *recipe, ad_places *out) AD_CHECKED;
/* Takes a step on backend dry with the mutation recorded on the tape, so that types show it. */
ad_status ad_derived_try_record(const ad_recipe *recipe, ad_mutant *mutant) AD_CHECKED;
/* For a mutant that a type refuses: finds a conversion with which all types of the step are right. Sets *found to 0 if
 * there is none. */
ad_status ad_derived_repair(const ad_recipe *recipe, ad_mutant *mutant, ad_repair *out, int *found) AD_CHECKED;
/* Writes to the mutant's message why the mutation changed nothing. */
void ad_derived_report_no_effect(ad_mutant *mutant);

/* known.c */
/* appends the known bugs and returns their number; only counts them if `list` is NULL */
size_t ad_known_list(ad_mutant *list);
size_t ad_known_list_of_leaves(ad_mutant *list); /* like ad_known_list, for recipes with train.leaves */
/* Returns the AD_NEED_... bits of the run without mutation: what known bugs need to have an effect. `shards_formulas`
 * is the result of ad_formulas_sharded. */
struct ad_run;
ad_needs ad_known_facts(const struct ad_run *run, int shards_formulas);
/* Until the injection points are cleared, adds to *facts the AD_NEED_... bits that show only while a step runs
 * (AD_NEED_RING, AD_NEED_MASKED_RING, AD_NEED_SHARDED_SEQUENCE, and those of bridges, pools and states). */
void ad_known_watch(ad_needs *facts);
/* Returns 1 if the mutant can have an effect in a run with these AD_NEED_... bits. Otherwise marks it as not applicable
 * and writes why. */
int ad_known_shows(ad_mutant *mutant, ad_needs facts);

/* killed.c */
/* Marks the mutant as killed by number. Writes which parameter of the failed check shows the mutation best, with the
 * parameter's ratio and causes or, if all gradients are right, which other number is wrong. No result may have been
 * written to the mutant before. */
void ad_mutant_killed_by_number(const ad_check_result *result, ad_mutant *mutant);
/* For a mutant that only rounds and passes the check of a custom program: records how far it moves gradients. If the
 * program's own roundings move them further, marks the mutant as without effect. `moved` has one norm of a move for
 * each parameter. `shards_formulas` is the result of ad_formulas_sharded. */
struct ad_computing;
void ad_mutant_moved_by_rounding(const ad_check_result *result, const struct ad_computing *computing,
                                 const double *moved, int shards_formulas, ad_mutant *mutant);

/* In trial.c: the job of the ranks that try mutants. */
typedef struct ad_trial_job {
  ad_check_job result;
  ad_mutants *mutants;
  int of_dtype; /* 1: tries the mutants of the recipe's own dtypes; 0: all others */
} ad_trial_job;
ad_status ad_trials(ad_comm *comm, const ad_trial_job *job) AD_CHECKED;

#endif
