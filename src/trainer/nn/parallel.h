/* Tensor parallelism: how activations come into a region where matrices are cut over `tp`, and how they leave it. On a
 * mesh that does not name `tp` there is nothing to do. */
#ifndef NN_PARALLEL_H
#define NN_PARALLEL_H
#include "addend/tensor.h"

/* The residual stream [batch, seq, d] is I on `tp`, or, with sequence parallelism, cut along the sequence: S1. Inside,
 * values are R: each rank's columns leave an addend of the gradient.
 *   enter: I->R by convert (backward all_reduce P->I), or S1->R by all_gather (backward reduce_scatter P->S1)
 *   leave: P->I by all_reduce (backward convert I->R), or P->S1 by reduce_scatter (backward all_gather S1->R) */
ad_tensor *ad_tp_enter_at(ad_tape *t, ad_tensor *x, int sequence, const char *site);
ad_tensor *ad_tp_leave_at(ad_tape *t, ad_tensor *x, int sequence, const char *site);
/* A weight that is I on `tp`, used where the sequence is cut there: I->R, whose backward is the sum. */
ad_tensor *ad_tp_use_at(ad_tape *t, ad_tensor *weight, const char *site);
int ad_tp_is_named(const ad_tensor *x); /* by the mesh that x lies on */
/* An R bias of a P value: one rank's copy counts. */
ad_tensor *ad_tp_once_at(ad_tape *t, ad_tensor *bias, const char *site);
#define ad_tp_enter(t, x, sequence) ad_tp_enter_at((t), (x), (sequence), AD_HERE)
#define ad_tp_leave(t, x, sequence) ad_tp_leave_at((t), (x), (sequence), AD_HERE)
#define ad_tp_use(t, weight) ad_tp_use_at((t), (weight), AD_HERE)
#define ad_tp_once(t, bias) ad_tp_once_at((t), (bias), AD_HERE)
/* `type` on tp if the mesh names it. */
void ad_tp_type(ad_layout *layout, ad_type type);

#endif
