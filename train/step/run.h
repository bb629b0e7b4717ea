/* One rank's share of a run, for the files of this folder. Each part of ad_run is written by one file, which is named
 * at the part; other files call the functions of that file. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H
#include "addend/train.h"
#include "base/exact.h"
#include "module/module.h"
#include "program/program.h"
#include "recipe/sharding.h"
#include "tensor/tape.h"
#include "step/absent.h"
#include "step/transfers.h"
#include "step/order.h"
#include "step/transfer_overflow.h"
#include "step/trace.h"

/* Modules whose gradients have one common norm and are clipped by it together. */
typedef struct ad_norm_group {
  const char *name;        /* NULL for the group of modules that name no group */
  const ad_array **arrays; /* the gradients of the group that this rank has */
  char **names;            /* the names of the parameters of these gradients */
  size_t *places;          /* for each of these gradients, its index in `sums` */
  size_t count;            /* the number of these gradients */
  /* sums of squares in the program's order, one for each parameter of the group, also for those on other ranks */
  double *sums;
  ad_exact *exact; /* the same sums before rounding; NULL without train.leaves */
  size_t sum_count;
} ad_norm_group;

/* The losses and values that phases have submitted for one microbatch in flight. */
typedef struct ad_microbatch_run {
  int32_t number;            /* index of the microbatch; -1 if there is none yet in this pass */
  ad_submitted_loss *losses; /* [phases of this rank][losses of the program] */
  ad_passed_value *values;   /* one for each value of the program */
  ad_tensor **taken;         /* the memory of `inputs` and `needed` of all values */
} ad_microbatch_run;

/* The tapes of a phase on this rank. */
typedef struct ad_phase_share {
  size_t place;      /* the phase's index among those of this rank; SIZE_MAX if its module is on other ranks */
  ad_tape **tapes;   /* microbatch m has tapes[m % tape_count]; NULL if the phase's module is on other ranks */
  size_t tape_count; /* at least 1; a microbatch needs its tape from its forward pass until all its gradients are
                      * computed */
} ad_phase_share;

/* The microbatches that are in flight on this rank: their first action has begun, and their last one has not ended.
 * Written by microbatches.c. */
typedef struct ad_in_flight {
  size_t count; /* length of `list`; microbatch m has list[m % count] */
  ad_microbatch_run *list;
  ad_phase_share *phases; /* one for each phase of the program */
  size_t own_phases;      /* number of the program's phases that run on this rank */
  ad_tape_pool *pool;     /* the memory of all tapes; NULL if each tape has its own */
} ad_in_flight;

/* Which microbatch's gradients the reducer of a module takes. */
typedef struct ad_module_run {
  size_t phases;      /* number of the program's phases that run on the module */
  int64_t open;       /* the microbatch whose gradients the reducer takes now; -1 if there is none */
  size_t phases_left; /* number of phases that have not submitted that microbatch's gradients yet */
  size_t ended;       /* number of microbatches of this pass that are done */
} ad_module_run;

/* Which gradients of a phase are still to be computed or reduced. */
typedef struct ad_phase_progress {
  int64_t back; /* the latest microbatch whose addend is computed and not reduced; -1 if there is none */
  /* For each tape, the microbatch whose gradients of inputs (I) are computed and whose gradients of weights (W) are
   * not; -1 if there is none. */
  int64_t *deferred;
} ad_phase_progress;

/* How far this rank has come in the present pass. Written by progress.c. */
typedef struct ad_progress {
  ad_module_run *modules;    /* one for each module of the program */
  ad_phase_progress *phases; /* one for each phase of the program */
} ad_progress;

/* The modules of the program as this rank has them, one entry for each. Written by modules.c. */
typedef struct ad_run_modules {
  ad_module **here;                 /* NULL if the module is on other ranks */
  ad_absent_module *absent;         /* what this rank knows about modules on other ranks */
  const ad_parameters **parameters; /* for each module, the parameters that its tapes use at present */
  size_t param_count;               /* number of parameters of all modules together */
} ad_run_modules;

/* The norm groups of the program. Written by norms.c. */
typedef struct ad_norms {
  ad_norm_group groups[AD_NORM_GROUPS_MAX];
  size_t count;
  size_t *group_of; /* for each module, the index of its norm group */
} ad_norms;

/* The counts of the program, one entry for each. Written by counts.c. */
typedef struct ad_run_counts {
  ad_count **sums; /* the sum of each count over ranks; NULL if this rank has no share of the count */
  int64_t **own;   /* this rank's count in each microbatch of the program */
} ad_run_counts;

/* The transfers of values and gradients between modules on different ranks. Written by transfers.c. */
typedef struct ad_value_transfers {
  ad_value_transfer *list; /* the transfers that this rank sends or receives */
  size_t count;
  int rounds; /* 1: transferred values are rounded to their communication dtype; 0 if the run has one dtype for
               * everything */
  int scale;  /* exponent of an additional scale of transferred gradients, for a reference that has no loss scale */
} ad_value_transfers;

/* Overflows of transfers in the present step. Written by transfer_overflow.c. */
typedef struct ad_transfer_overflows {
  double *noted; /* two for each transfer: this rank's largest overflow in the transfer's value, and in its gradient */
  ad_transfer_overflow found; /* the overflow on which all ranks agreed; set if a step's numbers are not finite */
} ad_transfer_overflows;

/* A function that receives the progress of long work (see `works` in ad_train_options). If it is NULL, progress is not
 * reported. */
typedef struct ad_listener {
  void (*report_progress)(void *context, const char *what, int64_t done, int64_t of);
  void *context;
} ad_listener;

struct ad_run {
  ad_comm *comm;
  const ad_recipe *recipe;
  ad_run_options options;
  ad_program *program;
  ad_mesh *world;    /* a mesh of all ranks; NULL if the first module's mesh has all ranks */
  ad_group everyone; /* all ranks */
  ad_run_modules modules;
  ad_norms norms;
  ad_run_counts counts;
  ad_order order;  /* the actions of a step on this rank; its microbatches are rounds (ad_recipe_rounds) */
  int64_t *leaves; /* with train.leaves, the leaf that this rank computes in each round, -1: none; else NULL */
  int64_t *passes; /* like `leaves`, with leaves run only to gather parameters, too (ad_recipe_list_passes) */
  ad_in_flight in_flight;
  ad_progress progress;
  ad_value_transfers transfers;
  ad_transfer_overflows overflows;
  int trains; /* 1: the present pass belongs to a training step */
  int drops;  /* 1: the results of the present microbatch are discarded (ad_run_pass_of) */
  ad_loss_scale loss_scale;
  /* For each parameter, the number of optimizer steps after which its states began anew (--fresh-states); NULL if all
   * began with the first step. Written by resumed_states.c. */
  int64_t *began;
  int64_t uncounted;         /* number of steps in which no token counted */
  ad_sample_losses *samples; /* where tapes write the losses of samples; NULL if they are not wanted */
  ad_listener listener;
  ad_trace trace;
  double *sums; /* memory from ad_comm_alloc for AD_RUN_SUMS doubles, which are summed over ranks */
  /* interrupted: some rank was asked to stop; asked_to_save: some rank was asked to write a checkpoint. After a step
   * both are the same on all ranks. */
  int interrupted, asked_to_save;
};
enum { AD_RUN_SUMS = AD_LOSSES_MAX + 4 }; /* losses, requests, two times, and a count */

/* Returns AD_INVALID if the comm and the recipe's mesh have different numbers of ranks. */
ad_status ad_run_check_world(const ad_comm *comm, const ad_recipe *recipe) AD_CHECKED;
/* Replaces the program's own order of actions by a table; must be called before the first step. From then on the run
 * owns the table, even on an error. The table has only compute actions, of the program's phases on the ranks of
 * ad_order_create. Tapes then share memory. Sums are the same, bit for bit, as with the program's own order. After an
 * error the run can only be destroyed. */
ad_status ad_run_take_table(ad_run *run, ad_table *table) AD_CHECKED;
/* Does the same as ad_run_take_table, but with a table that has its transfers and reductions already, and without
 * checks: for tests of wrong tables. */
ad_status ad_run_take_unchecked(ad_run *run, ad_table *table) AD_CHECKED;

/* In group.c: makes the group of all ranks, and memory for sums over it. */
ad_status ad_run_group_create(ad_run *run) AD_CHECKED;
void ad_run_group_destroy(ad_run *run);

/* In modules.c: creates the modules with initial values. After an error of this function or of those below, the run can
 * still be destroyed. */
ad_status ad_run_modules_create(ad_run *run) AD_CHECKED;
void ad_run_modules_destroy(ad_run *run);
/* Returns the parameters of a module on this rank that its tapes use at present. */
const ad_parameters *ad_run_parameters(const ad_run *run, size_t module);
/* Makes the module's tapes use these parameters from now on, or the module's own if `parameters` is NULL. Does nothing
 * if the module is on other ranks. */
void ad_run_show_parameters(ad_run *run, size_t module, const ad_parameters *parameters);

/* In norms.c. */
ad_status ad_norms_create(ad_run *run) AD_CHECKED;
void ad_norms_destroy(ad_run *run);
/* Writes the norms of a step's summed gradients, which are multiplied by `scale`, to the report. Collective. */
ad_status ad_norms_find(ad_run *run, double scale, ad_step_report *report) AD_CHECKED;
/* Passes each reducer the norm of its module, for a dump. */
ad_status ad_norms_report(const ad_run *run, double scale, const ad_step_report *report) AD_CHECKED;
size_t ad_run_norm_group_count(const ad_run *run);
size_t ad_run_norm_group_of(const ad_run *run, size_t module);
const char *ad_run_norm_group_name(const ad_run *run, size_t group); /* returns NULL for the only group of a program */

/* In counts.c. */
ad_status ad_run_counts_create(ad_run *run) AD_CHECKED;
void ad_run_counts_destroy(ad_run *run);
const ad_count *ad_run_count(const ad_run *run, size_t count); /* returns NULL if this rank has no share of the count */
int64_t *const *ad_run_counted(const ad_run *run);             /* returns where the program's `read` writes its
                                                                * counts */
ad_status ad_run_counts_post(ad_run *run) AD_CHECKED;          /* starts to sum the counts over ranks */

/* In microbatches.c: allocates what the microbatches need that are in flight at the same time in the run's order of
 * actions. If `shares_memory` is 1, all tapes take their memory from one pool. */
ad_status ad_microbatches_create(ad_run *run, int shares_memory) AD_CHECKED;
void ad_microbatches_destroy(ad_run *run);
/* Forgets the microbatches of the pass before, and returns their tapes' memory to the pool. Called before a pass. */
void ad_microbatches_begin_pass(ad_run *run);
/* Prepares the entry of microbatch m in the list of microbatches in flight: if an earlier microbatch still has this
 * entry, forgets that microbatch. Called before each action of microbatch m. */
void ad_microbatch_begin(const ad_run *run, int32_t m);
ad_microbatch_run *ad_run_microbatch(const ad_run *run, size_t m);
/* Returns the microbatch of the program that this rank computes in a round of a step: the round itself or, with
 * train.leaves, the leaf; -1 if it computes none. */
int64_t ad_run_part_of(const ad_run *run, size_t round);
/* Returns the microbatch of the program that this rank runs in a round: that of ad_run_part_of or, if this is -1 with
 * train.leaves and ZeRO 3, a leaf that it runs only to gather parameters with other ranks, whose results are discarded;
 * -1 if it runs none. */
int64_t ad_run_pass_of(const ad_run *run, size_t round);
size_t ad_run_own_phases(const ad_run *run);
const ad_phase_share *ad_run_phase(const ad_run *run, size_t p);

/* In progress.c. In these functions `p` is a phase of this rank; for `updates` see ad_step_state. */
ad_status ad_progress_create(ad_run *run) AD_CHECKED;
void ad_progress_destroy(ad_run *run);
void ad_progress_begin_pass(ad_run *run);
int ad_progress_has_phases(const ad_run *run, size_t module); /* returns 1 if some phase of the program runs on the
                                                               * module */
/* Called before and after phase `p` submits its addends of microbatch m. The module's reducer begins the microbatch
 * before the addends of the first phase on the module, and ends it after those of the last. Returns AD_INVALID if an
 * earlier microbatch was not reduced. */
ad_status ad_progress_begin_addend(ad_run *run, size_t p, size_t m, int updates) AD_CHECKED;
ad_status ad_progress_end_addend(ad_run *run, size_t p, int updates) AD_CHECKED;
/* Sets *out to the microbatch whose addend a REDUCE of phase `p` reduces; m is the microbatch that the REDUCE names, or
 * -1. Returns AD_INVALID if this addend is not computed yet. */
ad_status ad_progress_reduced(const ad_run *run, size_t p, int32_t m, size_t *out) AD_CHECKED;
/* ad_progress_defer records that phase `p` has computed the gradients of inputs of microbatch m, but not those of
 * weights. ad_progress_flush records that those of weights are computed, too; it returns AD_INVALID if they were not
 * deferred. */
void ad_progress_defer(ad_run *run, size_t p, int32_t m);
ad_status ad_progress_flush(ad_run *run, size_t p, int32_t m) AD_CHECKED;

int ad_run_loss_scale_exponent(const ad_run *run);
/* Returns the tape of phase `p` for microbatch m, or NULL if the phase's module is on other ranks. */
ad_tape *ad_run_tape(const ad_run *run, size_t p, size_t m);
ad_dtype ad_run_compute_dtype(const ad_run *run);
/* In transfers.c. ad_run_round_transfers and ad_run_rounds_transfers set and return whether values are rounded to their
 * communication dtypes. ad_run_scale_transfers sets the exponent of a scale that transferred gradients have besides the
 * loss scale. */
void ad_run_round_transfers(ad_run *run, int rounds);
int ad_run_rounds_transfers(const ad_run *run);
void ad_run_scale_transfers(ad_run *run, int exponent);
/* Returns the transfer that overflowed, if a step's numbers are not finite. Its `spec` is NULL if none did. */
const ad_transfer_overflow *ad_run_transfer_overflow(const ad_run *run);

/* Reads the parameters from the folder of a model that Transformers saved. Collective. */
ad_status ad_run_read_pretrained(ad_run *run, const char *folder) AD_CHECKED;
/* Reports to all ranks that this rank failed, unless they know already. Returns `status`. */
ad_status ad_run_report_error(ad_run *run, ad_status status) AD_CHECKED;
int ad_run_is_first(const ad_run *run); /* returns 1 if this rank is the first of the run, which writes files */
int ad_run_warns(const ad_run *run);    /* returns 1 if this rank logs warnings; in a quiet run no rank does */
/* Reduces the first `count` elements of run->sums over all ranks, in place. Collective. */
ad_status ad_run_reduce_sums(ad_run *run, size_t count, ad_reduction reduction, const char *site) AD_CHECKED;
/* Computes the losses of a step's batch without backward. For `validation` see `read` in ad_program_kind.
 * Collective. */
ad_status ad_run_batch_losses(ad_run *run, int64_t step, ad_data_split validation, ad_step_report *out) AD_CHECKED;
/* Returns the reported loss without auxiliary losses, which say nothing about how good the model is. */
double ad_run_task_loss(const ad_run *run, const ad_step_report *report);
/* Does the same as ad_run_evaluate, and also returns each sample's loss, on all ranks. `samples` gets one block of
 * memory, which the caller releases by its member `sums`; `sums` is NULL if there is no validation set. If the standard
 * error is not NaN, the losses of the samples sum to the loss. Collective. */
ad_status ad_run_evaluate_samples(ad_run *run, ad_sample_losses *samples, ad_evaluation *out) AD_CHECKED;
int64_t ad_run_evaluated(const ad_run *run); /* returns the number of samples in the validation set; 0 if there is
                                              * none */
/* Makes the JSON document in which the program shows what it learned (see `show` in ad_program_kind). Collective. */
ad_status ad_run_show(ad_run *run, char **out) AD_CHECKED;
void ad_interrupt_clear(void);

/* Computes the loss of the batch of step `step` at the present parameters, without gradients or update (for
 * --directional). With AD_VALIDATION_DRAWN and AD_VALIDATION_SET, auxiliary losses are left out. */
AD_CHECKED ad_status ad_run_loss(ad_run *run, int64_t step, ad_data_split validation, double *out);
ad_module *ad_run_module(const ad_run *run, size_t module); /* returns NULL if the module is on other ranks */
ad_group ad_run_everyone(const ad_run *run);                /* returns the group of all ranks */
/* One parameter of all modules. Parameters are numbered over all modules, in the program's order; every rank numbers
 * all of them, also those of modules on other ranks. */
typedef struct ad_run_param {
  size_t module, param;      /* the module's index in the program, and the parameter's index in the module */
  const ad_param_spec *spec; /* has the parameter's name in the module; ad_program_param_name returns that in the
                              * program */
  ad_module *held;           /* NULL if the module is on other ranks */
} ad_run_param;
size_t ad_run_param_count(const ad_run *run);
ad_run_param ad_run_param_at(const ad_run *run, size_t index);
/* Returns how the recipe shards a parameter of this number, which may be of a module on other ranks. */
ad_recipe_sharding ad_run_sharding(const ad_run *run, size_t index);
/* Returns an array of a parameter (see ad_module_part). If its module is on other ranks, this is a description without
 * elements, or NULL in plans. Returns NULL if the parameter has no such array. Gradients are multiplied by
 * 2^report.loss_scale. */
ad_array *ad_run_part(const ad_run *run, size_t index, ad_param_part part);
/* Returns 1 if the parameter has a gradient; 0 if it is frozen. The same on all ranks. */
int ad_run_trains(const ad_run *run, size_t index);
ad_array *ad_run_state(const ad_run *run, size_t module, size_t state); /* returns this rank's part of a module's
                                                                         * state */
/* Gathers an array of ad_run_part on all ranks of the run; out->data must be large enough for the full array.
 * Collective. */
#define ad_run_full(run, in, out) ad_run_full_at((run), (in), (out), AD_HERE)
AD_CHECKED ad_status ad_run_full_at(ad_run *run, const ad_array *in, ad_array *out, const char *site);
/* Gathers all parameters, one after another, in the program's order. On ranks where `visit` is not NULL, it is called
 * with each full parameter, in memory that the next one overwrites. Collective. */
typedef void (*ad_full_visitor)(void *context, size_t index, const ad_array *full);
AD_CHECKED ad_status ad_run_visit_full(ad_run *run, ad_full_visitor visit, void *context);
/* Must be called after values of parameters, or their masters, were written between steps. Updates the masters from the
 * values, or the values from the masters, and the gathered copies with which ranks compute. Collective. */
AD_CHECKED ad_status ad_run_refresh(ad_run *run, ad_written written);
/* For checks: computes the gradients of step `step` without reducing them. `visit` is called with the gradient of every
 * parameter of this rank in every microbatch, not reduced and multiplied by 2^loss_scale. `report` gets only the step's
 * losses and count; it may be NULL. Collective. */
/* `index` is the parameter's index over all modules, as for ad_run_param_at. */
typedef void (*ad_addend_visitor)(void *context, size_t index, const ad_array *addend);
AD_CHECKED ad_status ad_run_addends(ad_run *run, int64_t step, int loss_scale, ad_addend_visitor visit, void *context,
                                    ad_step_report *report);
ad_loss_scale *ad_run_loss_scale(ad_run *run); /* a state of the run, saved and loaded with those of the optimizer */
const ad_recipe *ad_run_recipe(const ad_run *run);
size_t ad_run_data_bytes(const ad_run *run); /* returns the bytes of data and batch on this rank */
size_t ad_run_tape_bytes(const ad_run *run); /* returns the most memory that this rank's tapes used at the same time */
/* Returns the seconds of the last step that this rank spent on posting transfers between modules or waiting for them.
 * In a pipeline this is all time except computing, so it contains the bubble. */
double ad_run_transfer_seconds(const ad_run *run);
size_t ad_run_most_routed(const ad_run *run); /* returns the most tokens that chose experts at the same time on this
                                               * rank */
/* The present proportional set size: of the rank with the most memory, and of all ranks together; 0 if the kernel does
 * not report it. A step keeps its memory, so after the first step this is the peak. Collective. */
typedef struct ad_run_memory {
  int64_t rank_bytes, all_bytes;
} ad_run_memory;
AD_CHECKED ad_status ad_run_measure_memory(ad_run *run, ad_run_memory *out);
/* Sets *out to the memory that this rank's part of a checkpoint takes while it is written. Not collective. */
AD_CHECKED ad_status ad_run_checkpoint_bytes(ad_run *run, size_t *out);

ad_program *ad_run_program(const ad_run *run);

#endif
