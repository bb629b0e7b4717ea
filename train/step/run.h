/* One rank's share of a run, as the files of this folder see it. Each part of ad_run is written by one file, named at
 * the part; other files call this file's functions. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H
#include "addend/train.h"
#include "module/module.h"
#include "program/program.h"
#include "tensor/tape.h"
#include "step/absent.h"
#include "step/transfers.h"
#include "step/order.h"
#include "step/transfer_overflow.h"
#include "step/trace.h"

/* Modules that have one common gradient norm and are clipped by it together. */
typedef struct ad_norm_group {
  const char *name;        /* NULL: the group of modules that name none */
  const ad_array **arrays; /* gradients of the group that this rank holds */
  char **names;            /* names of these gradients' parameters */
  size_t *places;          /* index of each of these gradients in `sums` */
  size_t count;            /* number of these gradients */
  double *sums;            /* sum of squares of each parameter of the group on any rank, in the program's order */
  size_t sum_count;
} ad_norm_group;

/* The losses and values that phases submitted for one microbatch in flight. */
typedef struct ad_microbatch_run {
  int32_t number;            /* number of the microbatch; -1: none since the pass began */
  ad_submitted_loss *losses; /* [phases of this rank][losses of the program] */
  ad_passed_value *values;   /* each value of the program */
  ad_tensor **taken;         /* memory of the values' `inputs` and `needed` */
} ad_microbatch_run;

/* The tapes of a phase on this rank. */
typedef struct ad_phase_share {
  size_t place;    /* the phase's number among those of this rank; SIZE_MAX: its module is on other ranks */
  ad_tape **tapes; /* microbatch m has tapes[m % tape_count]; a tape is NULL if the phase's module is on other ranks */
  size_t tape_count; /* at least 1; a microbatch needs its tape from its forward pass until all its gradients came */
} ad_phase_share;

/* The microbatches that are in flight on this rank: begun by their first action, and not ended by their last one.
 * Written by microbatches.c. */
typedef struct ad_in_flight {
  size_t count; /* length of `list`; microbatch m has list[m % count] */
  ad_microbatch_run *list;
  ad_phase_share *phases; /* one for each phase of the program */
  size_t own_phases;      /* phases of the program that run on this rank */
  ad_tape_pool *pool;     /* the memory of all tapes; NULL: each has its own */
} ad_in_flight;

/* Which microbatch the reducer of a module takes gradients of. */
typedef struct ad_module_run {
  size_t phases;      /* how many phases of the program run on the module */
  int64_t open;       /* the microbatch whose gradients the reducer takes now; -1: none */
  size_t phases_left; /* phases of that microbatch whose gradients are still to come */
  size_t ended;       /* microbatches of this pass that are done */
} ad_module_run;

/* Which gradients of a phase are still to be reduced or to be computed. */
typedef struct ad_phase_progress {
  int64_t back; /* the microbatch whose addend came last and is not reduced; -1: none */
  /* For each tape: the microbatch whose gradients of inputs (I) came but not those of weights (W); -1: none. */
  int64_t *deferred;
} ad_phase_progress;

/* How far this rank is in the present pass; written by progress.c. */
typedef struct ad_progress {
  ad_module_run *modules;    /* one for each module of the program */
  ad_phase_progress *phases; /* one for each phase of the program */
} ad_progress;

/* The modules of the program as this rank has them, one entry each; written by modules.c. */
typedef struct ad_run_modules {
  ad_module **here;                 /* NULL: the module lies on other ranks */
  ad_absent_module *absent;         /* what this rank knows of modules on other ranks */
  const ad_parameters **parameters; /* for each module, the parameters that its tapes use now */
  size_t param_count;               /* number of parameters of all modules together */
} ad_run_modules;

/* The norm groups of the program; written by norms.c. */
typedef struct ad_norms {
  ad_norm_group groups[AD_NORM_GROUPS_MAX];
  size_t count;
  size_t *group_of; /* for each module, the index of its norm group */
} ad_norms;

/* The counts of the program, one entry each; written by counts.c. */
typedef struct ad_run_counts {
  ad_count **sums; /* each count's sum over the ranks; NULL: this rank has no share of the count */
  int64_t **own;   /* this rank's number in each microbatch */
} ad_run_counts;

/* Values and gradients that travel between modules on different ranks; written by transfers.c. */
typedef struct ad_value_transfers {
  ad_value_transfer *list; /* the transfers that this rank sends or receives */
  size_t count;
  int rounds; /* 1: transferred values are rounded to their communication dtype; 0 if a dtype is forced on all */
  int scale;  /* exponent that transferred gradients carry in addition: in the reference, which has no loss scale */
} ad_value_transfers;

/* Overflows of transfers in the present step; written by transfer_overflow.c. */
typedef struct ad_transfer_overflows {
  double *noted; /* two for each transfer: this rank's largest overflow of its value, and of its gradient */
  ad_transfer_overflow found; /* the overflow that all ranks agreed on; set if a step's numbers are not finite */
} ad_transfer_overflows;

/* Receives the progress of long work, as ad_train_options.works; `report_progress` NULL: it is not reported. */
typedef struct ad_listener {
  void (*report_progress)(void *context, const char *what, int64_t done, int64_t of);
  void *context;
} ad_listener;

struct ad_run {
  ad_comm *comm;
  const ad_recipe *recipe;
  ad_run_options options;
  ad_program *program;
  ad_mesh *world;    /* mesh of all ranks, if no module has all; NULL: the first module's mesh has them */
  ad_group everyone; /* all ranks */
  ad_run_modules modules;
  ad_norms norms;
  ad_run_counts counts;
  ad_order order; /* the actions of a step on this rank */
  ad_in_flight in_flight;
  ad_progress progress;
  ad_value_transfers transfers;
  ad_transfer_overflows overflows;
  int trains; /* 1: the present pass belongs to a training step */
  ad_loss_scale loss_scale;
  int64_t uncounted;         /* steps in which no token counted */
  ad_sample_losses *samples; /* where tapes note losses of samples; NULL: nobody wants them */
  ad_listener listener;
  ad_trace trace;
  double *sums; /* ad_comm_alloc memory for AD_RUN_SUMS doubles */
  /* interrupted: some rank was asked to stop; asked_to_save: some rank was asked to write a checkpoint. After a step
   * all ranks have the same. */
  int interrupted, asked_to_save;
};
enum { AD_RUN_SUMS = AD_LOSSES_MAX + 4 }; /* losses, requests, two times, a count */

/* AD_INVALID unless the comm has as many ranks as the recipe's mesh. */
ad_status ad_run_check_world(const ad_comm *comm, const ad_recipe *recipe) AD_CHECKED;
/* Before the first step, replaces the program's own order of actions by a table. The run owns the table from then on,
 * also on an error. The table has only compute actions, of the program's phases on the ranks of ad_order_create. Tapes
 * then share memory. Sums are those of the own order, bit for bit. After an error the run can only be destroyed. */
ad_status ad_run_take_table(ad_run *run, ad_table *table) AD_CHECKED;
/* Like ad_run_take_table, but takes a table that has its transfers and reductions already, and checks nothing: for
 * tests of wrong tables. */
ad_status ad_run_take_unchecked(ad_run *run, ad_table *table) AD_CHECKED;

/* group.c: the group of all ranks, and memory for sums over it. */
ad_status ad_run_group_create(ad_run *run) AD_CHECKED;
void ad_run_group_destroy(ad_run *run);

/* modules.c: makes the modules, with initial values as they are drawn. After an error the run can still be destroyed,
 * also in the functions below. */
ad_status ad_run_modules_create(ad_run *run) AD_CHECKED;
void ad_run_modules_destroy(ad_run *run);
/* The parameters of a module of this rank as its tapes see them now. */
const ad_parameters *ad_run_parameters(const ad_run *run, size_t module);
/* Makes the module's tapes use these parameters from now on; NULL: the module's own. Does nothing if the module is on
 * other ranks. */
void ad_run_show_parameters(ad_run *run, size_t module, const ad_parameters *parameters);

/* norms.c. */
ad_status ad_norms_create(ad_run *run) AD_CHECKED;
void ad_norms_destroy(ad_run *run);
/* Writes the norms of a step's summed gradients, which are times `scale`, to the report. Collective. */
ad_status ad_norms_find(ad_run *run, double scale, ad_step_report *report) AD_CHECKED;
/* Passes each reducer the norm of its module, for a dump. */
ad_status ad_norms_report(const ad_run *run, double scale, const ad_step_report *report) AD_CHECKED;
size_t ad_run_norm_group_count(const ad_run *run);
size_t ad_run_norm_group_of(const ad_run *run, size_t module);
const char *ad_run_norm_group_name(const ad_run *run, size_t group); /* NULL: the program's only one */

/* counts.c. */
ad_status ad_run_counts_create(ad_run *run) AD_CHECKED;
void ad_run_counts_destroy(ad_run *run);
const ad_count *ad_run_count(const ad_run *run, size_t count); /* NULL: this rank has no share of it */
int64_t *const *ad_run_counted(const ad_run *run);             /* where the program's `read` writes its counts */
ad_status ad_run_counts_post(ad_run *run) AD_CHECKED;          /* starts to sum them */

/* microbatches.c: makes room for the microbatches that the run's order of actions has in flight together. If
 * shares_memory is 1, all tapes take their memory from one pool. */
ad_status ad_microbatches_create(ad_run *run, int shares_memory) AD_CHECKED;
void ad_microbatches_destroy(ad_run *run);
/* Called before a pass: forgets the microbatches of the pass before, and gives their tapes' memory back to the pool. */
void ad_microbatches_begin_pass(ad_run *run);
/* Called before an action of microbatch m: if m is new, forgets the earlier microbatch whose place m takes. */
void ad_microbatch_begin(const ad_run *run, int32_t m);
ad_microbatch_run *ad_run_microbatch(const ad_run *run, size_t m);
size_t ad_run_own_phases(const ad_run *run);
const ad_phase_share *ad_run_phase(const ad_run *run, size_t p);

/* progress.c: `p` is a phase of this rank, `updates` as in ad_step_state. */
ad_status ad_progress_create(ad_run *run) AD_CHECKED;
void ad_progress_destroy(ad_run *run);
void ad_progress_begin_pass(ad_run *run);
int ad_progress_has_phases(const ad_run *run, size_t module); /* some phase of the program runs on the module */
/* Called before and after phase `p` adds its addends of microbatch m. The module's reducer begins the microbatch before
 * its first phase's addends, and ends it after its last phase's. AD_INVALID: an earlier microbatch was not reduced. */
ad_status ad_progress_begin_addend(ad_run *run, size_t p, size_t m, int updates) AD_CHECKED;
ad_status ad_progress_end_addend(ad_run *run, size_t p, int updates) AD_CHECKED;
/* Sets *out to the microbatch whose addend a REDUCE of phase `p` reduces. m: the microbatch that the REDUCE names, or
 * -1. AD_INVALID: this addend has not come. */
ad_status ad_progress_reduced(const ad_run *run, size_t p, int32_t m, size_t *out) AD_CHECKED;
/* ad_progress_defer notes that phase `p` has computed the gradients of inputs of microbatch m and is still to compute
 * those of weights; ad_progress_flush notes that they are computed now. AD_INVALID: none were left to compute. */
void ad_progress_defer(ad_run *run, size_t p, int32_t m);
ad_status ad_progress_flush(ad_run *run, size_t p, int32_t m) AD_CHECKED;

int ad_run_loss_scale_exponent(const ad_run *run);
/* The tape of phase `p` for microbatch m; NULL: the phase's module is on other ranks. */
ad_tape *ad_run_tape(const ad_run *run, size_t p, size_t m);
ad_dtype ad_run_compute_dtype(const ad_run *run);
/* transfers.c: whether values are rounded to their communication dtypes; the exponent that transferred gradients carry
 * beyond the loss scale. */
void ad_run_round_transfers(ad_run *run, int rounds);
int ad_run_rounds_transfers(const ad_run *run);
void ad_run_scale_transfers(ad_run *run, int exponent);
/* If a step's numbers are not finite, returns the transfer that overflowed; `spec` NULL: none did. */
const ad_transfer_overflow *ad_run_transfer_overflow(const ad_run *run);

/* Reads the parameters from the folder of a model that Transformers saved. Collective. */
ad_status ad_run_read_pretrained(ad_run *run, const char *folder) AD_CHECKED;
/* Reports to all ranks that this rank failed, unless they know; returns `status`. */
ad_status ad_run_report_error(ad_run *run, ad_status status) AD_CHECKED;
int ad_run_is_first(const ad_run *run); /* this rank is the first of the run, the one that writes files */
int ad_run_warns(const ad_run *run);    /* this rank is the one that logs warnings; none of a quiet run is */
/* Reduces the first `count` of run->sums over all ranks, in place. Collective. */
ad_status ad_run_reduce_sums(ad_run *run, size_t count, ad_reduction reduction, const char *site) AD_CHECKED;
/* The losses of a step's batch, without backward; validation: as for the `read` of ad_program_kind. Collective. */
ad_status ad_run_batch_losses(ad_run *run, int64_t step, ad_data_split validation, ad_step_report *out) AD_CHECKED;
/* Returns the reported loss without auxiliary losses: it says how good the model is. */
double ad_run_task_loss(const ad_run *run, const ad_step_report *report);
/* Like ad_run_evaluate; also gives each sample's loss, on all ranks, in one block of memory, which the caller releases
 * by its `sums`; NULL: no validation set. If the standard error is not NaN, the loss is the samples'. Collective. */
ad_status ad_run_evaluate_samples(ad_run *run, ad_sample_losses *samples, ad_evaluation *out) AD_CHECKED;
int64_t ad_run_evaluated(const ad_run *run); /* samples of the validation set; 0: there is none */
/* The JSON document in which the program shows what it learned; see `show` of ad_program_kind. Collective. */
ad_status ad_run_show(ad_run *run, char **out) AD_CHECKED;
void ad_interrupt_clear(void);

/* The loss of step `step`'s batch at the present parameters, without gradients or update (for --directional).
 * AD_VALIDATION_DRAWN and AD_VALIDATION_SET are without auxiliary losses. */
AD_CHECKED ad_status ad_run_loss(ad_run *run, int64_t step, ad_data_split validation, double *out);
ad_module *ad_run_module(const ad_run *run, size_t module); /* NULL: the module does not lie on this rank */
ad_group ad_run_everyone(const ad_run *run);                /* all ranks */
/* All parameters of all modules, in the order of the program, whether this rank holds them or not. */
typedef struct ad_run_param {
  size_t module, param;      /* numbers in the program and in the module */
  const ad_param_spec *spec; /* its name is the module's; ad_program_param_name has the program's */
  ad_module *held;           /* NULL: its module does not lie on this rank */
} ad_run_param;
size_t ad_run_param_count(const ad_run *run);
ad_run_param ad_run_param_at(const ad_run *run, size_t index);
/* An array of a parameter (see ad_module_part): a description without elements if its module does not lie on this rank;
 * NULL if the parameter has no such array, and in plans if it is not here. Gradients are times 2^report.loss_scale. */
ad_array *ad_run_part(const ad_run *run, size_t index, ad_param_part part);
ad_array *ad_run_state(const ad_run *run, size_t module, size_t state); /* this rank's part of a module's state */
/* Gathers an array of ad_run_part on all ranks of the run: out->data has room for the full array. Collective. */
#define ad_run_full(run, in, out) ad_run_full_at((run), (in), (out), AD_HERE)
AD_CHECKED ad_status ad_run_full_at(ad_run *run, const ad_array *in, ad_array *out, const char *site);
/* Gathers all parameters, one after the other, in the order of the program. On ranks where `visit` is not NULL, it gets
 * each parameter in full, in memory that the next one overwrites. Collective. */
typedef void (*ad_full_visitor)(void *context, size_t index, const ad_array *full);
AD_CHECKED ad_status ad_run_visit_full(ad_run *run, ad_full_visitor visit, void *context);
/* Called after parameters' values, or their masters, were written between steps: updates masters from values, or values
 * from masters, and the full copies with which ranks compute. Collective. */
AD_CHECKED ad_status ad_run_refresh(ad_run *run, ad_written written);
/* For checks: computes the gradients of step `step` without reducing them. `visit` sees every microbatch's gradient of
 * every parameter on this rank, unreduced and times 2^loss_scale. report: gets the step's losses and count alone; NULL
 * allowed. Collective. */
typedef void (*ad_addend_visitor)(void *context, size_t index, const ad_array *addend); /* as in ad_run_param_at */
AD_CHECKED ad_status ad_run_addends(ad_run *run, int64_t step, int loss_scale, ad_addend_visitor visit, void *context,
                                    ad_step_report *report);
ad_loss_scale *ad_run_loss_scale(ad_run *run); /* state of the run: saved and restored with the optimizers' */
const ad_recipe *ad_run_recipe(const ad_run *run);
size_t ad_run_data_bytes(const ad_run *run); /* memory of data and batch on this rank */
size_t ad_run_tape_bytes(const ad_run *run); /* the most memory that this rank's tapes held at the same time */
/* Returns the seconds of the last step in which this rank posted transfers between modules or waited for them: in a
 * pipeline, all time except computing, so the bubble is in it. */
double ad_run_transfer_seconds(const ad_run *run);
size_t ad_run_most_routed(const ad_run *run); /* the most tokens that chose experts at the same time on this rank */
/* The proportional set size now: of the rank that has most memory, and of all ranks together; 0: the kernel does not
 * report it. A step keeps its memory, so after the first step this is the peak. Collective. */
typedef struct ad_run_memory {
  int64_t rank_bytes, all_bytes;
} ad_run_memory;
AD_CHECKED ad_status ad_run_measure_memory(ad_run *run, ad_run_memory *out);
/* The memory that this rank's part of a checkpoint takes while it is written. Local. */
AD_CHECKED ad_status ad_run_checkpoint_bytes(ad_run *run, size_t *out);

ad_program *ad_run_program(const ad_run *run);

#endif
