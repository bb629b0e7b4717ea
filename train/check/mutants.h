/* Mutants and what became of each: mutants derived from the program's own transitions, and known bugs
 * that are no transition. */
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
  AD_KILLED_BY_PLAN,      /* precision policies or collectives differ from the plan's */
  AD_KILLED_BY_NO_EFFECT, /* the mutation changed no bit of any judged number, or no type, or it moved gradients of a
                        * custom program by less than its own roundings do. A known bug of addend's own programs gets
                        * this outcome only if its record says why it may have no effect */
  AD_KILLED_BY_NOT_APPLICABLE, /* known bugs only: it cannot change a number in this run; `message` says why */
  AD_KILLED_BY_UNTRIED         /* the check fails even without a mutation, so a failing check would not show the
                        * mutant */
} ad_killed_by;
const char *ad_killed_by_name(ad_killed_by killed_by);

/* One mutant and what became of it. Lives in memory that processes share, so its pointers point to constants only. */
typedef struct ad_mutant {
  char name[256];
  const ad_known_bug *known; /* NULL: a derived mutant, described by `mutation` */
  ad_mutation mutation;
  int catalogue;         /* number in docs/catalogue.md of the published bug that this one repeats; 0: none */
  double expected_ratio; /* ratio of the wrong gradient to the reference; NaN: it is not one number */
  ad_killed_by killed_by;
  char param[AD_PROGRAM_NAME_SIZE];
  double ratio;
  double loss_err; /* relative error of the loss when the mutant was killed; NaN: no number killed it */
  double moved;    /* of a mutant that only rounds, in a custom program: how far it moved gradients, over how far the
                      program's own roundings move them; NaN: not measured, or killed */
  ad_causes causes;
  char message[512];
} ad_mutant;
static inline int ad_mutant_is_of_dtype(const ad_mutant *mutant) { return mutant->known && mutant->known->of_dtype; }

/* The mutants of one check, in memory that the ranks and the process that starts them share. */
typedef struct ad_mutants {
  size_t bytes;           /* size of this mapping */
  size_t count, next;     /* length of the list; number of the first mutant that has not been tried */
  size_t places;          /* transitions from which mutants were derived */
  size_t derived;         /* number of derived mutants, which come first in the list */
  size_t derived_in_all;  /* derived mutants that exist; more than `derived` if only some were drawn */
  uint64_t seed;          /* seed of the draw of mutants */
  int clean;              /* 1: the check passes without a mutation */
  _Atomic ad_needs facts; /* what this run has, on any of its ranks (AD_NEED_...) */
  ad_mutant list[];
} ad_mutants;

/* Lists all derived mutants and known bugs of the recipe's program. `take` above 0: lists only this many derived
 * mutants, drawn by `seed`. Mutants of the record are tried immediately. */
ad_status ad_mutants_create(const ad_recipe *recipe, int64_t take, uint64_t seed, ad_mutants **out) AD_CHECKED;
void ad_mutants_destroy(ad_mutants *mutants);
/* Starts ranks and tries all mutants of the execution. `result` is scratch memory. A failure of the check
 * itself is an error; the end of a world is a finding. */
ad_status ad_mutants_try(const ad_recipe *recipe, const ad_check_options *options, ad_check_result *result,
                         ad_mutants *mutants) AD_CHECKED;
size_t ad_mutants_survivors(const ad_mutants *mutants);
/* Counts mutants that were not tried: those of the recipe's own dtypes, or all others. */
size_t ad_mutants_untried(const ad_mutants *mutants, int of_dtype);
/* Counts the mutants of the execution that changed something: killed by number, protocol or plan, or survived. */
size_t ad_mutants_effective(const ad_mutants *mutants);

/* derived.c */
/* Appends the mutants at each place to `list`; list NULL: only counts them. */
size_t ad_derived_list(const ad_places *places, ad_mutant *list);
/* Lists the transitions of one step of the recipe. */
ad_status ad_derived_places(const ad_recipe *recipe, ad_places *out) AD_CHECKED;
/* Takes a step on backend dry with the mutation in the record. */
ad_status ad_derived_try_record(const ad_recipe *recipe, ad_mutant *mutant) AD_CHECKED;
/* For a mutant that a type refuses: finds a conversion that makes all types of the step right; *found 0: there is
 * none. */
ad_status ad_derived_repair(const ad_recipe *recipe, ad_mutant *mutant, ad_repair *out, int *found) AD_CHECKED;
/* Writes into the mutant's message why it changed nothing. */
void ad_derived_report_no_effect(ad_mutant *mutant);

/* known.c */
size_t ad_known_list(ad_mutant *list); /* appends the known bugs; NULL: only counts them */
/* The facts of the clean run as AD_NEED_... bits: what it has that known bugs need to show. `shards_formulas`: as
 * ad_formulas_sharded found. */
struct ad_run;
ad_needs ad_known_facts(const struct ad_run *run, int shards_formulas);
/* Until the injection points are cleared, adds to *facts those that only show while a step runs (AD_NEED_RING,
 * AD_NEED_MASKED_RING, AD_NEED_SHARDED_SEQUENCE, and those of bridges, pools and states). */
void ad_known_watch(ad_needs *facts);
/* Returns 1 if the mutant can show under these facts. Otherwise marks it as not tried and writes why. */
int ad_known_shows(ad_mutant *mutant, ad_needs facts);

/* killed.c */
/* Marks the mutant as killed by number, and writes which parameter of the failed check shows it best, its ratio and
 * causes; or, if all gradients are right, what else is not. The mutant's fields must be as they were listed. */
void ad_mutant_killed_by_number(const ad_check_result *result, ad_mutant *mutant);
/* For a mutant that only rounds and passes the check of a custom program: notes how far it moves gradients. If the
 * program's own roundings move them further, marks the mutant as without effect. moved: [parameters], norms;
 * `shards_formulas`: as ad_formulas_sharded found. */
struct ad_computing;
void ad_mutant_moved_by_rounding(const ad_check_result *result, const struct ad_computing *computing,
                                 const double *moved, int shards_formulas, ad_mutant *mutant);

/* trial.c: what each rank runs to try mutants. */
typedef struct ad_trial_job {
  ad_check_job result;
  ad_mutants *mutants;
  int of_dtype; /* 1: tries the mutants of the recipe's own dtypes; 0: all others */
} ad_trial_job;
ad_status ad_trials(ad_comm *comm, const ad_trial_job *job) AD_CHECKED;

#endif
