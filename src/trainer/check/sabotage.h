/* Planted mistakes and what became of each: those derived from the program's own transitions, and the known ones that
 * are no transition. */
#ifndef CHECK_SABOTAGE_H
#define CHECK_SABOTAGE_H
#include <stdatomic.h>
#include "base/mistakes.h"
#include "check/planting.h"
#include "check/proof.h"
#include "plan/repairs.h"

typedef enum ad_caught {
  AD_CAUGHT_NONE,
  AD_CAUGHT_TYPE,
  AD_CAUGHT_NUMBER,
  AD_CAUGHT_PROTOCOL,
  AD_CAUGHT_PLAN,      /* contracts or collectives are not those of the plan */
  AD_CAUGHT_NO_EFFECT, /* every judged number had the clean run's bits, or the types were the same; of known ones only
                          those that say what that means */
  AD_CAUGHT_UNPLANTED, /* a known one: it changes no number here; `message` says why */
  AD_CAUGHT_UNTRIED    /* with nothing planted the proof does not hold where it would be: what fails says nothing */
} ad_caught;
const char *ad_caught_name(ad_caught caught);

/* One mistake, and what became of it. Lives in memory that processes share: no pointers but to constants. */
typedef struct ad_sabotage {
  char name[256];
  const ad_mistake *known; /* NULL: derived, as `planting` says */
  ad_planting planting;
  int catalogue;         /* number of the published mistake, 0: none */
  double expected_ratio; /* NaN: no single number */
  ad_caught caught;
  char param[2 * AD_PARAM_NAME_SIZE];
  double ratio;
  double loss_err; /* relative, of the loss beside that gradient; NaN: no number caught it */
  ad_causes causes;
  char message[512];
} ad_sabotage;
static inline int ad_sabotage_is_of_dtype(const ad_sabotage *sabotage) {
  return sabotage->known && sabotage->known->of_dtype;
}

/* The mistakes of one check: shared by the process that starts ranks and the ranks that try them. */
typedef struct ad_sabotages {
  size_t bytes;           /* of the mapping */
  size_t count, next;     /* of the list; the first that has not been tried */
  size_t places;          /* from which mistakes were derived */
  size_t derived;         /* of the list: they come first */
  size_t derived_in_all;  /* as many there are; more than `derived` where those were drawn */
  uint64_t seed;          /* of the draw */
  int clean;              /* the clean proof holds where they are planted */
  _Atomic ad_needs facts; /* what this run has, on any of its ranks */
  ad_sabotage list[];
} ad_sabotages;

/* Everything that the program's transitions and the lists of known mistakes give; with `take` above 0 so many of the
 * derived ones, drawn by `seed`. Those that are planted in the record are tried at once. */
ad_status ad_sabotages_create(const ad_recipe *recipe, int64_t take, uint64_t seed, ad_sabotages **out) AD_CHECKED;
void ad_sabotages_destroy(ad_sabotages *sabotages);
/* Starts ranks and tries all that are planted in execution. `proof` is scratch. A failure of the check itself is an
 * error; what ended a world is a finding. */
ad_status ad_sabotages_try(const ad_recipe *recipe, const ad_check_options *options, ad_proof *proof,
                           ad_sabotages *sabotages) AD_CHECKED;
size_t ad_sabotages_survivors(const ad_sabotages *sabotages);
/* Of those in the recipe's own dtypes, or of all others. */
size_t ad_sabotages_untried(const ad_sabotages *sabotages, int of_dtype);
/* How many were planted in execution and changed something: caught by number or protocol, or survived. */
size_t ad_sabotages_effective(const ad_sabotages *sabotages);

/* derived.c */
/* Appends the mistakes of every place to `list`, or, NULL, only counts them. */
size_t ad_derived_list(const ad_places *places, ad_sabotage *list);
/* The transitions of one step of the recipe, on every axis under its name. */
ad_status ad_derived_places(const ad_recipe *recipe, ad_places *out) AD_CHECKED;
/* Takes a step on engine dry with the mistake in the record. */
ad_status ad_derived_try_record(const ad_recipe *recipe, ad_sabotage *sabotage) AD_CHECKED;
/* Of one that a type refuses, the conversion with which every type of a step holds; *found is 0 if there is none. */
ad_status ad_derived_repair(const ad_recipe *recipe, ad_sabotage *sabotage, ad_repair *out, int *found) AD_CHECKED;
/* Why nothing changed. */
void ad_derived_say_no_effect(ad_sabotage *sabotage);

/* known.c */
size_t ad_known_list(ad_sabotage *list); /* as ad_derived_list */
/* What the clean run showed, as AD_NEED_... bits; on the first rank. */
struct ad_run;
ad_needs ad_known_facts(const struct ad_run *run);
/* From now on AD_NEED_RING, AD_NEED_MASKED_RING, AD_NEED_CUT_SEQUENCE and what a bridge's mistakes need are put into
 * *facts where this rank's steps show them, until the seams are lifted. */
void ad_known_watch(ad_needs *facts);
/* 1 if it shows here; otherwise it is marked as not planted, with the reason. */
int ad_known_shows(ad_sabotage *sabotage, ad_needs facts);

/* trial.c: what a rank of the world runs in which mistakes are tried. */
typedef struct ad_trial_job {
  ad_proof_job proof;
  ad_sabotages *sabotages;
  int of_dtype; /* those that are planted in the recipe's own dtypes; else all others */
} ad_trial_job;
ad_status ad_trials(ad_comm *comm, const ad_trial_job *job) AD_CHECKED;

#endif
