/* Training: one rank's share of a run, and the step function. There is only one step function: everything that takes a
 * step, checks included, calls it.
 *
 * For users. Only one thread at a time may use a run and its comm. ad_train_interrupt and ad_train_checkpoint may be
 * called on any thread. */
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

enum { AD_LOSSES_MAX = 16, AD_NORM_GROUPS_MAX = 8 }; /* limits of a program: most losses, most norm groups */

/* The results of one step. */
typedef struct ad_step_report {
  int64_t step;
  /* The loss that is trained on, before the update: the sum of all losses, each multiplied by its coefficient and
   * divided by its count over the step and all ranks. */
  double loss;
  double losses[AD_LOSSES_MAX]; /* Each loss and metric without its coefficient, in the program's order. */
  /* The program's first count (tokens). If the count is 0, the gradient is 0 and a warning is logged (law 5). */
  int64_t count;
  double norm;                      /* norm of the full gradient, before clipping; not finite in a skipped step */
  double norms[AD_NORM_GROUPS_MAX]; /* Norm of each norm group, in the order of each group's first module. */
  /* the learning rate of this step */
  double lr;
  double seconds;
  /* Times of gradient reductions, averaged over ranks: how long a rank waited for reductions, and how long at least one
   * reduction was in flight, from its post to the end of its wait. */
  double wait_seconds, reduction_seconds;
  int loss_scale; /* exponent of the loss scale in this step's gradients; 0 if there is no loss scale */
  int skipped;    /* 1: a gradient overflowed on some rank. No rank updated anything, and the loss scale fell. */
} ad_step_report;

typedef struct ad_run_options {
  size_t size;       /* sizeof(ad_run_options) */
  ad_dtype dtype;    /* 0: the recipe's dtypes; AD_F64, for checks: every dtype becomes f64 */
  const char *trace; /* path of a Chrome trace file for this rank's events, written by ad_run_destroy; NULL: none */
  int quiet;         /* 1: steps log no warnings; for a run that repeats the steps of another run */
  int any_recipe;    /* 1: ad_run_load accepts a checkpoint of another recipe, if names and shapes of its values fit */
  /* 1: a step does not change the states of its phases (ad_phase_trains is 0). For checks in dtypes that round: states
   * that move by the sign of a gradient would drift apart by rounding alone. */
  int given_states;
  size_t crowd; /* `crowd` of the tapes (ad_tape_options), for plans */
  /* The pipeline's table of actions that another run of this recipe made, for plans; borrowed until the run is
   * destroyed. NULL: the run makes its own. */
  const ad_table *table;
  int plans; /* 1: modules on other ranks are not described; for plans, which do not need them */
  /* Patterns of names (fnmatch), borrowed until the run is destroyed. ad_run_load does not read the optimizer states of
   * parameters that match one: these states begin anew, as zeros and with a step number of their own. Keys of optimizers
   * may then differ from those of the checkpoint. */
  const char *const *fresh_states;
  size_t fresh_state_count;
  /* For each parameter of the program, where other ranks' storage divides it (ad_optimizer_setup); borrowed while the
   * run is created. NULL: nowhere. */
  const ad_matrix_cuts *cuts;
  /* 1: the communicator may have more ranks than the recipe, whose ranks are the first ones; the others do not call.
   * For checks. */
  int is_part;
} ad_run_options;

/* Creates everything that a rank needs: the program with its data, those of its modules that lie on this rank, counts
 * and tapes. Collective over all ranks. `recipe` and `comm` are borrowed. */
AD_API AD_CHECKED ad_status ad_run_create(ad_comm *comm, const ad_recipe *recipe, const ad_run_options *options,
                                          ad_run **out);
AD_API void ad_run_destroy(ad_run *run);
/* Takes one step: for each microbatch forward, backward and the reducer; then norm, clip and update. A loss that is not
 * finite is AD_NUMBER on all ranks, naming step and rank. After any error the run can only be destroyed. */
AD_API AD_CHECKED ad_status ad_run_step(ad_run *run, int64_t step, ad_step_report *out);
/* How good the parameters are on the validation set (the recipe's evaluate.samples). The samples are the same for
 * every step, seed, mesh and batch, so the result is the same except for rounding. Evaluation changes no parameter
 * and no state. */
typedef struct ad_evaluation {
  /* The loss without auxiliary losses, over everything that counts in all samples. NaN: there is no validation set, or
   * nothing in the set counts. */
  double loss;
  /* The standard error of `loss` as an estimate of the loss on another choice of samples. With n samples whose sums are
   * x and whose counts are c, and r = sum(x) / sum(c), it is that of a ratio (Cochran 1977, 2.11):
   *   sqrt(n / (n - 1) * sum((x - r c)^2)) / sum(c)
   * NaN: fewer than two samples count, or the program's loss is no cross-entropy whose samples can be separated. */
  double standard_error;
  /* number of samples in the validation set */
  int64_t samples;
} ad_evaluation;
/* The change of the validation loss since an earlier evaluation. All evaluations read the same samples, so the
 * change is judged by the differences of single samples: their noise is far smaller than that of either loss. */
typedef struct ad_validation_change {
  int64_t since; /* the step after which the earlier evaluation was; -1: before the first step */
  double change; /* this loss minus the earlier one; NaN: there was no earlier one, or samples cannot be separated */
  double standard_error; /* standard error of `change`, from the differences of single samples */
  /* -1: the loss is lower, 1: the loss is higher, significantly at the level of 95 % (Student's t); 0: the change is
   * not significant, or fewer than five samples count */
  int verdict;
} ad_validation_change;
/* Evaluates the validation set. Collective. */
AD_API AD_CHECKED ad_status ad_run_evaluate(ad_run *run, ad_evaluation *out);

AD_API ad_comm *ad_run_comm(const ad_run *run);

/* Saves a checkpoint of a run: every parameter's value and optimizer state, the number of steps taken, and the
 * recipe, key by key. Samples depend on the step, so a resumed run takes the same steps as one that was never
 * stopped, bit for bit on the same mesh. Collective. */
AD_API AD_CHECKED ad_status ad_run_save(ad_run *run, ad_checkpointer *checkpointer, int64_t steps);
/* Loads the newest usable checkpoint in the folder, written on any mesh with any sharding; *steps is the number of
 * steps taken. The errors of ad_checkpoint_load. AD_INVALID, with both values, if a recipe key differs that changes
 * the meaning of the numbers: keys of model, data, precision, and of train except steps, microbatches and sync;
 * files are compared by their contents. AD_INVALID, with their names, if parameters have another optimizer than in the
 * checkpoint and their states do not begin anew. After an error the run can only be destroyed. */
AD_API AD_CHECKED ad_status ad_run_load(ad_run *run, const char *folder, int64_t *steps);
/* Writes full parameters, under their names and in their storage dtype, as one safetensors file on the first rank,
 * which needs memory for the largest one. An existing file is replaced when the new one is on disk. Collective. */
AD_API AD_CHECKED ad_status ad_run_write_weights(ad_run *run, const char *path);
/* Reads weights from any such file into this rank's parts, converting dtypes. A path that ends in ".json" is an index
 * of several files beside it, as Hugging Face shards weights:
 *   {"weight_map": {"head.weight": "model-1.safetensors", ...}}
 * AD_INVALID names tensors that are missing, left over, of another shape or not of floats, and differences between an
 * index and its files; the run's values are then unchanged. Does not check that numbers are finite: ad_recipe_read
 * does. Local. */
AD_API AD_CHECKED ad_status ad_run_read_weights(ad_run *run, const char *path);

/* Options of ad_train, which is `addend train`: it runs all steps of a recipe on this rank, and rank 0 writes files
 * into FOLDER:
 *   metrics.jsonl         results of the steps
 *   trace.json            events of all ranks
 *   run.json              what ran, and where
 *   report.html           the page about the run
 *   weights.safetensors   the trained weights
 *   checkpoints/          checkpoints, if the recipe or a request asks for them
 *   samples.jsonl         continuations of evaluate.prompts, if there are any
 *   validation.jsonl      the summed loss and the counted positions of each validation sample, a line per evaluation
 * While ad_train runs it holds a lock on the folder (FOLDER/.lock): a second training there is refused with AD_IO. If
 * the recipe has a training before its own (ad_recipe_pretraining), that training is a run with the same options, in a
 * folder inside FOLDER; an error in that run, or a request to stop, ends the whole training. */
typedef struct ad_train_options {
  size_t size;        /* sizeof(ad_train_options) */
  const char *folder; /* FOLDER, which is made if it does not exist; NULL: "runs/NAME" */
  /* Called on rank 0 after every step. */
  void (*progress)(void *context, const ad_step_report *report, int64_t steps, double tokens_per_second,
                   double seconds_left);
  void *context;
  /* 1: continues from the newest usable checkpoint in FOLDER/checkpoints. Starts with the first step if there is none;
   * if all steps were taken, writes the files that are missing. */
  int resume;
  int force; /* 1: `resume` also accepts the checkpoint of another recipe */
  /* 1: removes an earlier run's files from the folder; 0: such files are AD_INVALID, except with `resume` */
  int overwrite;
  /* Called on rank 0 before each training whose steps `progress` then reports: "train" for the recipe's own, or the
   * name ("target") of the training before it. */
  void (*turns_to)(void *context, const char *what, const char *folder, int64_t steps);
  /* 1: the reducer of every module dumps step number `dump_step` (as metrics count steps) to FOLDER/dump-N
   * (ad_reducer_dump). Applies to the recipe's own training only. AD_INVALID if the dump exists already, except with
   * `overwrite`, and if the training does not take that step. */
  int dumps;
  int64_t dump_step;
  /* Called on rank 0. evaluated: after each evaluation of the validation set, which follows the `progress` of its step;
   * step -1: before the first step.
   * works: now and then during long work other than steps ("evaluate", "read lines"), of which `done` of `of` parts are
   * done. */
  void (*evaluated)(void *context, int64_t step, const ad_evaluation *evaluation);
  void (*works)(void *context, const char *what, int64_t done, int64_t of);
  /* Convert the texts of evaluate.prompts to tokens, and tokens to text, if tokens are not bytes, given the path of the
   * run's tokenizer.json. Their results are freed with free(). They are called in the process that starts the ranks,
   * and on rank 0. `encode` fails with AD_INVALID and half a sentence; NULL: prompts must be numbers of tokens.
   * `decode` returns NULL if it cannot convert; it may be NULL: samples then have no text. */
  ad_status (*encode)(void *context, const char *tokenizer, const char *text, int32_t **tokens, int64_t *count);
  char *(*decode)(void *context, const char *tokenizer, const int32_t *tokens, int64_t count);
  /* Called on rank 0. counts: before the first step, with the name of what step reports count, such as "tokens".
   * compared: after `evaluated`, with the change of the loss since the run's first evaluation and since its best
   * earlier one, if it can be judged; the pointers are borrowed. */
  void (*counts)(void *context, const char *what);
  void (*compared)(void *context, int64_t step, const ad_validation_change *since_first,
                   const ad_validation_change *since_best);
  /* With `resume`: patterns of names of parameters whose optimizer states begin anew, as in ad_run_options. Applies to the
   * recipe's own training only. */
  const char *const *fresh_states;
  size_t fresh_state_count;
} ad_train_options;
/* Makes the folder as ad_train does, before any rank starts, so that problems are found early: the folder is wrong,
 * another run is writing there, or an earlier run would be overwritten. AD_IO, AD_INVALID. Local. */
AD_API AD_CHECKED ad_status ad_train_make_folder(const ad_recipe *recipe, const ad_train_options *options);
/* Trains: see ad_train_options. Collective over the ranks of the recipe. */
AD_API AD_CHECKED ad_status ad_train(ad_comm *comm, const ad_recipe *recipe, const ad_train_options *options);
/* Requests that this process's training stops. ad_train ends after the present step, on all ranks, with its files
 * and a checkpoint written (even if the recipe has no checkpoints), and returns AD_INTERRUPTED. Safe in a signal
 * handler; the library installs none. */
AD_API void ad_train_interrupt(void);
/* Requests a checkpoint after the present step, even if the recipe has none; training continues. Safe in a signal
 * handler. */
AD_API void ad_train_checkpoint(void);

#if defined(__cplusplus)
}
#endif
#endif
