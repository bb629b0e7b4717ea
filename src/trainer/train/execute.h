/* A pass over a step's microbatches: this rank's list of the run's table, action after action. Where a microbatch's
 * gradients begin and end for a module's reducer follows from the list: from the first B or W of its phases to the last
 * one's REDUCE. */
#ifndef TRAIN_EXECUTE_H
#define TRAIN_EXECUTE_H
#include "train/run.h"

typedef struct ad_step_state {
  int64_t step;
  double losses[AD_LOSSES_MAX];  // this rank's addends of each; on all ranks but one of those that have the same, 0
  double scale;                  // what the losses are multiplied by before backward: a power of two
  int counted;                   // 1: the counts were waited for
  int updates;                   // it is a step: gradients are reduced
  int goes_back;                 // 0: the losses alone
} ad_step_state;

/* All microbatches. Afterwards nothing is on its way but reductions. */
ad_status ad_run_execute(ad_run *run, ad_step_state *state) AD_CHECKED;
/* The forward pass of microbatch m alone; its values stay on the tapes until the next pass. */
ad_status ad_run_execute_forward(ad_run *run, size_t m) AD_CHECKED;
ad_status ad_step_wait_for_counts(ad_run *run, ad_step_state *state) AD_CHECKED;

/* Phase `p` of microbatch m on this rank (phases.c). Forward: its values alone; with its losses, divided and added to
 * the state's. Back: all of it, or inputs alone (AD_INPUTS_START); the weights then, if any wait. When it went back:
 * the program's `after`. */
ad_status ad_phase_values(ad_run *run, size_t p, size_t m) AD_CHECKED;
ad_status ad_phase_forward(ad_run *run, ad_step_state *state, size_t p, size_t m) AD_CHECKED;
ad_status ad_phase_backward(ad_run *run, size_t p, size_t m, ad_start start) AD_CHECKED;
ad_status ad_phase_weights(ad_run *run, size_t p, size_t m) AD_CHECKED;
ad_status ad_phase_after(ad_run *run, size_t p, size_t m) AD_CHECKED;
double ad_loss_coefficient(const ad_run *run, size_t loss); /* with which it enters the loss that is trained on */

#endif
