/* Training: one rank's share of a run, and *the* step function. Everything that takes a step, proofs included, calls
 * it. */
#ifndef ADDEND_TRAIN_H
#define ADDEND_TRAIN_H
#include "addend/checkpoint.h"
#include "addend/data.h"
#include "addend/optim.h"
#include "addend/recipe.h"
#include "addend/schedule.h"
#include "addend/store.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_run ad_run;

enum { AD_LOSSES_MAX = 16, AD_NORM_GROUPS_MAX = 8 }; /* of a program */

/* What a step tells. */
typedef struct ad_step_report {
  int64_t step;
  double loss;                  /* of all losses together, each times its coefficient, over the step's counts on all
                                 * ranks, before the update */
  double losses[AD_LOSSES_MAX]; /* each, in the program's order, metrics too, without coefficients */
  int64_t count;                /* of the first of the program's counts (tokens); 0: gradient 0 and a warning (law 5) */
  double norm;                  /* of the whole gradient, before clipping; not finite in a skipped step */
  double norms[AD_NORM_GROUPS_MAX]; /* of each norm group, in the order of the first module of each */
  double lr;
  double seconds;
  /* Of reductions of gradients, the mean over ranks: time in which a rank stood waiting for one, and time in which some
   * were under way, from the post to the end of the wait. */
  double wait_seconds, reduction_seconds;
  int loss_scale; /* exponent of the loss scale that this step's gradients carry; 0 where there is none */
  int skipped;    /* 1: a gradient overflowed somewhere: nothing was updated on any rank, the loss scale fell */
} ad_step_report;

typedef struct ad_run_options {
  size_t size;       /* sizeof(ad_run_options) */
  ad_dtype dtype;    /* 0: as in the recipe; AD_F64 for proofs: every dtype of compute and contract becomes f64 */
  const char *trace; /* path of a Chrome trace file for this rank's events, or NULL; written by ad_run_destroy */
  int quiet;         /* 1: steps do not warn; for a run that repeats the steps of another */
  int any_recipe;    /* 1: ad_run_load takes a checkpoint of another recipe, as far as its values fit */
  /* 1: a step takes the states of its phases as they are (ad_phase_trains is 0), for proofs in dtypes that round: what
   * climbs by the sign of a gradient would go apart by rounding alone. */
  int given_states;
  size_t crowd; /* of the tapes, for plans (ad_tape_options) */
  /* The order of steps that another run of this recipe made, for plans: borrowed until the run is destroyed. NULL: it
   * makes its own. */
  const ad_table *table;
  int plans; /* 1: nothing of modules on other ranks is described, for plans, which do not ask for it */
} ad_run_options;

/* Everything a rank needs: the program with its data, those of its modules that lie on this rank, counts and tapes.
 * Collective over all ranks. `recipe` and `comm` are borrowed. */
AD_API AD_CHECKED ad_status ad_run_create(ad_comm *comm, const ad_recipe *recipe, const ad_run_options *options,
                                          ad_run **out);
AD_API void ad_run_destroy(ad_run *run);
/* The step: for each microbatch forward, backward and the reducer; then norm, clip, update. A loss that is not finite
 * is AD_NUMBER on all ranks, naming step and rank. After any error the run can only be destroyed. */
AD_API AD_CHECKED ad_status ad_run_step(ad_run *run, int64_t step, ad_step_report *out);
/* How good the parameters are on the held-out set, evaluate.samples of the recipe: the same samples whatever step,
 * seed, mesh and batch, so the same number but for rounding. Parameters and states stay as they are. */
typedef struct ad_evaluation {
  double loss; /* without auxiliary losses, over all that counts in all samples; NaN: nothing is held out, or nothing of
                  it counts */
  /* Of the loss as an estimate of what another choice of samples would give: with n samples of sum x and count c, and
   * r = sum(x) / sum(c), the root of n / (n - 1) * sum((x - r c)^2) over sum(c) (a ratio's, Cochran 1977, 2.11). NaN:
   * fewer than two samples count, or the program's loss is no cross-entropy that can be told apart by samples. */
  double standard_error;
  int64_t samples;
} ad_evaluation;
AD_API AD_CHECKED ad_status ad_run_evaluate(ad_run *run, ad_evaluation *out);

AD_API ad_comm *ad_run_comm(const ad_run *run);

/* Checkpoints of a run: every parameter's value and optimizer state, how many steps were taken, and the recipe, key
 * by key. Samples follow from the step, so a run that goes on after `steps` takes the same steps, bit for bit
 * on the same mesh, as one that was never stopped. Collective. */
AD_API AD_CHECKED ad_status ad_run_save(ad_run *run, ad_checkpointer *checkpointer, int64_t steps);
/* From the newest usable checkpoint in the folder, whatever mesh or sharding wrote it; *steps: how many were taken. The
 * errors of ad_checkpoint_load; AD_INVALID, with both values, if keys differ that change what the numbers mean (those
 * of model, data, precision, and of train but for steps, microbatches and sync; files count by their contents). After
 * an error the run can only be destroyed. */
AD_API AD_CHECKED ad_status ad_run_load(ad_run *run, const char *folder, int64_t *steps);
/* Writes whole parameters, by their names and in their storage dtype, as one safetensors file on the first rank, which
 * needs memory for the largest of them. Collective. A file of that name is replaced when the new one is on disk. */
AD_API AD_CHECKED ad_status ad_run_write_weights(ad_run *run, const char *path);
/* Reads such a file from anywhere into this rank's parts; dtypes are converted. A path that ends in ".json" is that of
 * an index of several files beside it, as Hugging Face shards weights: {"weight_map": {"head.weight":
 * "model-1.safetensors",
 * ...}}. AD_INVALID names tensors that are missing, left over, of another shape or no floats, and what an index and its
 * files say differently; the values are then unchanged. Whether numbers are finite is asked by ad_recipe_read. Local.
 */
AD_API AD_CHECKED ad_status ad_run_read_weights(ad_run *run, const char *path);

/* `addend train`: runs all steps of a recipe on this rank; rank 0 writes FOLDER/metrics.jsonl, trace.json (all ranks'
 * events), run.json (what is run, and where), report.html and weights.safetensors; checkpoints go to
 * FOLDER/checkpoints, if the recipe or a request asks for them, and what follows evaluate.prompts to
 * FOLDER/samples.jsonl. While it runs it holds a lock on the folder
 * (FOLDER/.lock): a second training there is refused with AD_IO. `progress` is called on rank 0 after every step.
 * What the recipe has trained before (ad_recipe_pretraining) is such a run of its own, in a folder inside FOLDER, with
 * the same options; an error or a request to stop in it is one of the whole. */
typedef struct ad_train_options {
  size_t size;        /* sizeof(ad_train_options) */
  const char *folder; /* made if it is not there; NULL: "runs/NAME" */
  void (*progress)(void *context, const ad_step_report *report, int64_t steps, double tokens_per_second,
                   double seconds_left);
  void *context;
  int resume; /* 1: go on from the newest usable checkpoint in FOLDER/checkpoints; begin with the first step where there
               * is none, and where all steps were taken write what is missing */
  int force;  /* 1: `resume` goes on from the checkpoint of another recipe too */
  int overwrite; /* 1: removes what an earlier run left in the folder; else that is AD_INVALID, but for `resume` */
  /* Called on rank 0 before each training that `progress` then tells of: what is trained before, by its name
   * ("target"), and the recipe's own, "train". */
  void (*turns_to)(void *context, const char *what, const char *folder, int64_t steps);
  /* 1: step number `dump_step`, as metrics count, is dumped by every module's reducer (ad_reducer_dump) to
   * FOLDER/dump-N. AD_INVALID where that is there already, but for `overwrite`, and where the step is not taken. Of the
   * recipe's own training, not of one before. */
  int dumps;
  int64_t dump_step;
  /* Called on rank 0: after each evaluation of the held-out set, which follows the `progress` of its step; and now and
   * then in long work that is no step, of which `done` of `of` parts are done: "evaluate", "read lines". */
  void (*evaluated)(void *context, int64_t step, const ad_evaluation *evaluation);
  void (*works)(void *context, const char *what, int64_t done, int64_t of);
  /* Turn the texts of evaluate.prompts into tokens and back, where tokens are no bytes, with the path of the run's
   * tokenizer.json. What they give is freed with free(). They are called where ranks are started and on rank 0.
   * `encode`: AD_INVALID in half a sentence; NULL: prompts must be numbers of tokens. `decode` returns NULL where it
   * cannot, and may be NULL: samples then have no text. */
  ad_status (*encode)(void *context, const char *tokenizer, const char *text, int32_t **tokens, int64_t *count);
  char *(*decode)(void *context, const char *tokenizer, const int32_t *tokens, int64_t count);
} ad_train_options;
/* Makes the folder, as ad_train does: what is wrong with it, that another run writes there or that
 * an earlier one would be overwritten, is known before any rank starts. AD_IO, AD_INVALID. Local. */
AD_API AD_CHECKED ad_status ad_train_make_folder(const ad_recipe *recipe, const ad_train_options *options);
AD_API AD_CHECKED ad_status ad_train(ad_comm *comm, const ad_recipe *recipe, const ad_train_options *options);
/* Asks the training of this process to stop: ad_train ends after the present step, on all ranks, with its files and a
 * checkpoint written, also where the recipe has none, and returns AD_INTERRUPTED. Safe in a signal handler; the library
 * installs none. */
AD_API void ad_train_interrupt(void);
/* Asks for a checkpoint after the present step, also where the recipe has none, and goes on. Safe as the above. */
AD_API void ad_train_checkpoint(void);

#if defined(__cplusplus)
}
#endif
#endif
