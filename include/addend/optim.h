/* Optimizers on arrays: AdamW and learning-rate schedules. Works on the storage layout of each parameter. */
#ifndef ADDEND_OPTIM_H
#define ADDEND_OPTIM_H
#include "addend/array.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* Linear warm-up over `warmup` steps (step s of them has lr * (s + 1) / (warmup + 1)), then a cosine from lr down to lr
 * * final_fraction at step `steps`. Step counts from 0. */
typedef struct ad_schedule {
  double lr;
  int64_t warmup, steps;
  double final_fraction;
} ad_schedule;
AD_API double ad_schedule_at(const ad_schedule *schedule, int64_t step);

/* Loshchilov and Hutter 2019. Zero fields mean the defaults: beta1 0.9, beta2 0.95, epsilon 1e-8, weight_decay 0. */
typedef struct ad_adamw_options {
  size_t size; /* sizeof(ad_adamw_options) */
  double beta1, beta2, epsilon, weight_decay;
} ad_adamw_options;
typedef struct ad_adamw ad_adamw;
/* One slot of state (first and second moment, in the parameter's dtype, at least f32) per parameter; without data where
 * the parameter has none. `decays[i]` (NULL: all): weight decay applies. */
AD_API AD_CHECKED ad_status ad_adamw_create(const ad_array *const *params, const int *decays, size_t count,
                                            const ad_adamw_options *options, ad_adamw **out);
AD_API void ad_adamw_destroy(ad_adamw *optimizer);
/* params[i] -= lr * (m / (sqrt(v) + epsilon) + decay * params[i]) with bias-corrected moments of factor * grads[i], in
 * one pass; `factor` is the clip's. Layouts, scale and shapes must agree (law 6); a gradient of another floating dtype
 * is converted to the parameter's first. A NULL gradient counts as zero. */
AD_API AD_CHECKED ad_status ad_adamw_step(ad_adamw *optimizer, ad_array *const *params, const ad_array *const *grads,
                                          double lr, double factor, const char *site);
AD_API int64_t ad_adamw_steps(const ad_adamw *optimizer);
/* As if so many steps had been taken: for state that was loaded. */
AD_API void ad_adamw_set_steps(ad_adamw *optimizer, int64_t steps);
/* Copies all state and the number of steps from another of the same shapes, whole and local, converting dtypes; meshes
 * may differ: the reference of a proof starts a step from it. */
AD_API AD_CHECKED ad_status ad_adamw_copy(ad_adamw *to, const ad_adamw *from);
/* The state of one parameter: first (which 0) or second (which 1) moment. Owned by the optimizer. */
AD_API ad_array *ad_adamw_state(ad_adamw *optimizer, size_t param, int which);
AD_API size_t ad_adamw_bytes(const ad_adamw *optimizer);
/* Dynamic loss scale for f16 gradients: the loss is multiplied by 2^exponent before backward and the update divides by
 * it. A step whose gradient norm is not finite is skipped on all ranks (the norm is one number for all of them) and
 * lowers the exponent; `growth` good steps in a row raise it. All of its state: save it with the optimizer's. */
typedef struct ad_loss_scale {
  int enabled, exponent;
  int64_t growth, good_steps; /* growth 0: 2000 */
} ad_loss_scale;
/* Whether the step is to be taken: `norm` is finite. Adapts the scale, if it is enabled. */
AD_API int ad_loss_scale_update(ad_loss_scale *scale, double norm);
/* What brings a gradient back to its value: 2^-exponent, exact; 1 if the scale is not enabled. */
AD_API double ad_loss_scale_factor(const ad_loss_scale *scale);
/* The factor that brings a gradient of this norm to at most `clip`; 1 if clip is 0. */
AD_API double ad_clip_factor(double norm, double clip);

#if defined(__cplusplus)
}
#endif
#endif
