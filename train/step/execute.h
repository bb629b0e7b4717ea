/* Makes a pass over a step's microbatches: executes, action by action, this rank's list in the run's table. The reducer
 * of a module begins a microbatch at the first B or W of the module's phases, and ends it at the REDUCE of the last
 * phase. */
#ifndef TRAIN_EXECUTE_H
#define TRAIN_EXECUTE_H
#include "step/run.h"

typedef struct ad_step_state {
  int64_t step;
  double losses[AD_LOSSES_MAX];   /* this rank's addend of each loss; if several ranks have the same loss, all except
                                 * one have 0 */
  ad_exact exact[AD_LOSSES_MAX];  // with train.leaves, the same addends; their sum is rounded once, over all ranks
  double scale;                   // the power of 2 by which losses are multiplied before backward
  int counted;                    // 1: the sums of the counts have arrived
  int updates;                    // 1: a step, in which gradients are reduced; 0: a pass without reductions
  int goes_back;                  // 1: forward and backward; 0: only forward, for the losses
} ad_step_state;

/* Executes all microbatches. When this returns, only reductions may still be in flight. */
ad_status ad_run_execute(ad_run *run, ad_step_state *state) AD_CHECKED;
/* Runs only the forward pass of microbatch m. Its values stay on the tapes until the next pass. */
ad_status ad_run_execute_forward(ad_run *run, size_t m) AD_CHECKED;
ad_status ad_step_wait_for_counts(ad_run *run, ad_step_state *state) AD_CHECKED;

/* These functions run phase `p` of microbatch m on this rank (phases.c). ad_phase_values: forward, without losses.
 * ad_phase_forward: forward; divides the losses that the phase submits, and adds them to the state's.
 * ad_phase_backward: all of backward or, with AD_INPUTS_START, only the gradients of inputs. ad_phase_weights: the
 * gradients of weights that ad_phase_backward deferred, if any. ad_phase_after: calls the program's `after`, once
 * backward is complete. With train.leaves, m is a round. If this rank runs no leaf in the round, all except
 * ad_phase_values do nothing; if it runs a leaf only to gather parameters with other ranks, the results are
 * discarded. */
ad_status ad_phase_values(ad_run *run, size_t p, size_t m) AD_CHECKED;
ad_status ad_phase_forward(ad_run *run, ad_step_state *state, size_t p, size_t m) AD_CHECKED;
ad_status ad_phase_backward(ad_run *run, size_t p, size_t m, ad_start start) AD_CHECKED;
ad_status ad_phase_weights(ad_run *run, size_t p, size_t m) AD_CHECKED;
ad_status ad_phase_after(ad_run *run, size_t p, size_t m) AD_CHECKED;
double ad_loss_coefficient(const ad_run *run, size_t loss); /* returns the factor of the loss in the sum that is
                                                             * trained on */

#endif
