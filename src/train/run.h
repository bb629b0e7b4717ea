/* One rank's share of a run, as the files of this folder see it. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H
#include "addend/train.h"
#include "train/batch.h"
#include "train/trace.h"

struct ad_run {
  ad_comm *comm;
  const ad_recipe *recipe;
  ad_run_options options;
  ad_mesh *mesh;
  ad_group everyone; /* all ranks of the mesh */
  ad_model *model;
  ad_text_data *text;
  ad_batch batch;
  size_t param_count;
  ad_param_spec *specs;
  int *units; /* of each parameter */
  ad_store *store;
  ad_array **masters;                         /* what the optimizer updates */
  const ad_array **computed, **gradient_list; /* what the tape reads; what the optimizer is fed */
  ad_loss_scale loss_scale;
  ad_reducer *reducer;
  ad_count *count; /* of the step's tokens */
  ad_adamw *optimizer;
  ad_tape *tape;
  ad_trace trace;
  double *sums;    /* ad_comm_alloc memory for RUN_SUMS doubles */
  int interrupted; /* some rank was asked to stop; the same on all ranks after a step */
};
enum { AD_RUN_SUMS = 2 };

/* Tells the group when this rank failed alone; returns `status`. */
ad_status ad_run_tell(ad_run *run, ad_status status) AD_CHECKED;
ad_dtype ad_run_compute_dtype(const ad_run *run);
/* A tape on the run's parameters; `reducer` NULL: gradients go to `visit` alone. */
ad_status ad_run_open_tape(ad_run *run, ad_reducer *reducer, ad_addend_visitor visit, void *context,
                           ad_tape **out) AD_CHECKED;
int ad_run_is_first(const ad_run *run); /* this rank is the mesh's first: it writes */
int ad_run_warns(const ad_run *run);    /* of what happened in a step: one rank of a run that is not quiet */
/* The first `count` of run->sums over all ranks. */
ad_status ad_run_reduce_sums(ad_run *run, size_t count, ad_reduction reduction, const char *site) AD_CHECKED;
int ad_interrupt_asked(void);
void ad_interrupt_clear(void);

#endif
