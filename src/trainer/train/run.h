/* One rank's share of a run, as the files of this folder see it. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H
#include "addend/train.h"
#include "program/program.h"
#include "tensor/tape.h"
#include "train/absent.h"
#include "train/crossing.h"
#include "train/wire_overflow.h"
#include "train/trace.h"

/* Modules with one norm and one clip. */
typedef struct ad_norm_group {
  const char *name;        /* NULL: the program's */
  const ad_array **arrays; /* gradients that this rank holds, of all its modules */
  char **names;            /* of their parameters, in the whole program */
  size_t count;
} ad_norm_group;

/* What one microbatch under way has. */
typedef struct ad_microbatch_run {
  ad_handed_loss *losses;  /* of each phase and loss of the program */
  ad_passed_value *values; /* of each value */
} ad_microbatch_run;

struct ad_run {
  ad_comm *comm;
  const ad_recipe *recipe;
  ad_run_options options;
  ad_program *program;
  ad_mesh *world;    /* of all ranks, where no module has them all; NULL: the first module's mesh does */
  ad_group everyone; /* all ranks */
  /* Of each module and count of the program; NULL where this rank has no share of it. */
  ad_module **modules;
  ad_absent_module *absent; /* of each module that it does not have */
  ad_count **counts;
  int64_t **counted; /* of each count, this rank's number in each microbatch */
  /* Microbatches that are under way at once: one, and one more for each bridge to other ranks that a value still has
   * before it. A phase is `lead` of them ahead, forward, of what comes last; so many tapes, and one, it has. */
  size_t under_way;
  size_t *lead;
  ad_tape **tapes; /* `under_way` of each phase; see ad_run_tape */
  ad_microbatch_run *microbatches;
  int trains;       /* the present pass is a step's */
  int rounds_wires; /* what crosses is rounded to the dtypes of its wire; in a forced dtype it is not */
  int wire_scale; /* exponent that gradients carry on their wires beyond the loss scale: a reference has none itself */
  ad_crossing *crossings;
  size_t crossing_count;
  double *overflows; /* of each crossing of the program, noted on this rank in the step; see ad_wire_overflow_note */
  ad_wire_overflow overflow;        /* of all ranks, where the step's numbers are not finite */
  const ad_parameters **parameters; /* of each module: as its tapes see them now */
  size_t param_count;               /* of all modules */
  ad_norm_group norm_groups[AD_NORM_GROUPS_MAX];
  size_t norm_group_count;
  size_t *norm_group_of; /* of each module */
  ad_loss_scale loss_scale;
  int64_t uncounted;         /* steps in which no token counted */
  ad_sample_losses *samples; /* where tapes note losses of samples; NULL: nobody wants them */
  void (*tell)(void *context, const char *what, int64_t done, int64_t of); /* as ad_train_options.works; NULL: nobody */
  void *tell_context;
  ad_trace trace;
  double *sums; /* ad_comm_alloc memory for AD_RUN_SUMS doubles */
  /* Some rank was asked to stop; to write a checkpoint. The same on all ranks after a step. */
  int interrupted, asked_to_save;
};
enum { AD_RUN_SUMS = AD_LOSSES_MAX + 4 }; /* losses, requests, two times, a count */

/* AD_INVALID: the recipe's mesh has another number of ranks. */
ad_status ad_run_check_world(const ad_comm *comm, const ad_recipe *recipe) AD_CHECKED;
/* Of phase `p` for microbatch m; NULL: its module is on other ranks. */
ad_tape *ad_run_tape(const ad_run *run, size_t p, size_t m);
ad_dtype ad_run_compute_dtype(const ad_run *run);

/* Tells the group when this rank failed alone; returns `status`. */
ad_status ad_run_tell(ad_run *run, ad_status status) AD_CHECKED;
int ad_run_is_first(const ad_run *run); /* this rank is the first of all: it writes */
int ad_run_warns(const ad_run *run);    /* of what happened in a step: one rank of a run that is not quiet */
/* The first `count` of run->sums over all ranks. */
ad_status ad_run_reduce_sums(ad_run *run, size_t count, ad_reduction reduction, const char *site) AD_CHECKED;
/* The losses of a step's batch, forward alone; held_out: as ad_program_kind's read has it. Collective. */
ad_status ad_run_batch_losses(ad_run *run, int64_t step, ad_held_out held_out, ad_step_report *out) AD_CHECKED;
/* Of these what says how good the model is: without auxiliary losses. */
double ad_run_task_loss(const ad_run *run, const ad_step_report *report);
int64_t ad_run_evaluated(const ad_run *run); /* samples of the held-out set; 0: there is none */
/* What the program shows of what it learned; see ad_program_kind. Collective. */
ad_status ad_run_show(ad_run *run, char **out) AD_CHECKED;
int ad_interrupt_asked(void);
void ad_interrupt_clear(void);

#endif
