/* The check for bits, for recipes with train.leaves: the recipe runs a second time without data parallelism (the
 * reference). Every leaf's gradient, every sum of leaves, the losses, norms, clip factors and updated values must have
 * the same bits in both runs. A rank is compared with the rank of the reference that has the same position on the other
 * axes (tp, cp, ep). */
#ifndef CHECK_BITS_H
#define CHECK_BITS_H
#include "check/bits_notes.h"
#include "check/mutants.h"

typedef struct ad_bits_finding {
  int equal;
  int64_t steps, leaves;
  int64_t ranks;   /* number of ranks of the reference */
  size_t compared; /* number of hashes and numbers that were compared */
  /* The members below describe the first difference: */
  ad_bits_note first; /* the note that differs */
  const char *what;   /* word for the kind of note: run, leaf, node, loss, norm, clip or update; NULL: no difference */
  int64_t rank;       /* rank whose note differs; -1: the difference belongs to no single rank, or there is none */
  char param[AD_PROGRAM_NAME_SIZE]; /* name of the parameter; "": the note is of no parameter */
  char difference[768];             /* the difference in words; "": there is none */
} ad_bits_finding;

/* Compares a run's notes with those of the reference. Sets all members of *out except steps, leaves and ranks, which
 * the caller has set: `equal`, `compared` and the first difference. `program` has the names for the message. */
ad_status ad_bits_compare(const ad_bits_notes *run, const ad_bits_notes *reference, const ad_program *program,
                          ad_bits_finding *out) AD_CHECKED;

/* A check for bits: the notes of the recipe's run and of its reference, and what the comparison found. */
typedef struct ad_bits {
  const ad_recipe *recipe;
  ad_bits_notes *run, *reference;
  ad_bits_finding found;
} ad_bits;
/* Starts ranks and takes `steps` steps of the recipe, starts other ranks and takes the same steps of the reference, and
 * compares the two runs. Borrows the recipe. */
ad_status ad_bits_create(const ad_recipe *recipe, int64_t steps, ad_bits **out) AD_CHECKED;
/* Like ad_bits_create, on the ranks of an open comm, all of which call this; the first of them run the reference, too.
 * *out is set on rank 0 only, and NULL on the others. */
ad_status ad_bits_create_on(ad_comm *comm, const ad_recipe *recipe, int64_t steps, ad_bits **out) AD_CHECKED;
void ad_bits_destroy(ad_bits *bits);
/* In bits_mutants.c: tries the known bugs that have `of_bits`: the ones that only a comparison of bits is sure to
 * notice. */
ad_status ad_bits_try(const ad_bits *bits, ad_mutants *mutants) AD_CHECKED;

/* One run of a recipe whose ranks note hashes and numbers. */
typedef struct ad_bits_job {
  const ad_recipe *recipe;
  int64_t steps;
  const ad_known_bug *bug; /* the known bug with which the run is made; NULL: none */
  ad_bits_notes *notes;
  _Atomic int *fired; /* set to 1 if the bug changed something; may be NULL */
  int64_t shards;     /* number of shards on dp_shard of which a reference makes notes, too; 0: none */
  int is_part;        /* 1: the comm may have more ranks than the recipe, whose ranks are the first ones */
} ad_bits_job;
/* In bits_rank.c: starts ranks, which take the steps of the job and write their notes. The status and *launched are
 * those of ad_launch. */
ad_status ad_bits_run(const ad_bits_job *job, ad_launch_result *launched) AD_CHECKED;
/* Takes the steps of the job on this rank and writes this rank's notes. All ranks of the comm call it. */
ad_status ad_bits_take_steps(ad_comm *comm, const ad_bits_job *job) AD_CHECKED;

#endif
