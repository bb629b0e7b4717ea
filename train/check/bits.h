/* The check for bits, of recipes with train.leaves: the recipe runs again without data parallelism, and every leaf's
 * gradient, every sum of leaves, the losses, norms, clip factors and updated values must have the same bits. Ranks at
 * one place beside the data-parallel axes (tp, cp, ep) are compared with the one rank of the second run there. */
#ifndef CHECK_BITS_H
#define CHECK_BITS_H
#include "check/bits_notes.h"
#include "check/mutants.h"

typedef struct ad_bits_finding {
  int equal;
  int64_t steps, leaves;
  int64_t ranks;   /* ranks of the run that is compared with, the reference */
  size_t compared; /* how many hashes and numbers were compared */
  /* The first difference: */
  ad_bits_note first;               /* what differs */
  const char *what;                 /* a word for it: run, leaf, node, loss, norm, clip or update; NULL: equal */
  int64_t rank;                     /* the rank that has it; -1: several together, or none */
  char param[AD_PROGRAM_NAME_SIZE]; /* ""; it belongs to no parameter */
  char difference[768];             /* in words; "": equal */
} ad_bits_finding;

/* Sets *out, all but steps, leaves and ranks, to the first difference of a run's notes from the reference's. The
 * program has the names. */
ad_status ad_bits_compare(const ad_bits_notes *run, const ad_bits_notes *reference, const ad_program *program,
                          ad_bits_finding *out) AD_CHECKED;

/* A run of the recipe and its reference. */
typedef struct ad_bits {
  const ad_recipe *recipe;
  ad_bits_notes *run, *reference;
  ad_bits_finding found;
} ad_bits;
/* Takes so many steps of the recipe, then of its reference, each on ranks of its own, and compares them. The recipe is
 * borrowed. */
ad_status ad_bits_create(const ad_recipe *recipe, int64_t steps, ad_bits **out) AD_CHECKED;
/* The same on ranks that have started already, all of which call this; rank 0 runs the reference alone. *out is NULL on
 * other ranks, and on all if the reference needs several ranks. */
ad_status ad_bits_create_on(ad_comm *comm, const ad_recipe *recipe, int64_t steps, ad_bits **out) AD_CHECKED;
void ad_bits_destroy(ad_bits *bits);
/* bits_mutants.c: tries those known bugs of the list that only this check is sure to see. */
ad_status ad_bits_try(const ad_bits *bits, ad_mutants *mutants) AD_CHECKED;

/* A run for its notes. */
typedef struct ad_bits_job {
  const ad_recipe *recipe;
  int64_t steps;
  const ad_known_bug *bug; /* NULL: none */
  ad_bits_notes *notes;
  _Atomic int *fired; /* set to 1 if the bug changed something; NULL: not asked */
} ad_bits_job;
/* bits_rank.c: starts ranks, which take the steps and note their bits. Status and *launched are those of ad_launch. */
ad_status ad_bits_run(const ad_bits_job *job, ad_launch_result *launched) AD_CHECKED;
/* Takes the steps on this rank and notes their bits. All ranks of the comm call it. */
ad_status ad_bits_take_steps(ad_comm *comm, const ad_bits_job *job) AD_CHECKED;

#endif
