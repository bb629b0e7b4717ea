/* Optimizers on arrays: AdamW, learning-rate schedules, and the dynamic loss scale. The optimizer works on the storage
 * layout of each parameter. */
#ifndef ADDEND_OPTIM_H
#define ADDEND_OPTIM_H
#include "addend/parameter.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* A learning-rate schedule, with steps numbered from 0. The rate rises linearly over `warmup` steps: step s of them has
 * lr * (s + 1) / (warmup + 1). Step `warmup` has lr. The rate then follows a cosine down to lr * final_fraction, which
 * it reaches at step `steps` - 1 and keeps after that. If only one step follows the warm-up, that step has lr. */
typedef struct ad_schedule {
  size_t size; /* sizeof(ad_schedule) */
  double lr;
  int64_t warmup, steps;
  double final_fraction;
} ad_schedule;
/* *out: the learning rate of a step; `step` is 0 or more. AD_INVALID, with *out unchanged, if `size` is wrong, if the
 * step or a number of the schedule is below 0, or if a number is not finite. */
AD_API AD_CHECKED ad_status ad_schedule_at(const ad_schedule *schedule, int64_t step, double *out);

/* AdamW, after Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019. Zero fields mean the defaults: beta1
 * 0.9, beta2 0.95, epsilon 1e-8, weight_decay 0. beta1 and beta2 lie in [0, 1). Write AD_BETA_ZERO for a beta of 0,
 * with which a moment depends on the last gradient alone. */
#define AD_BETA_ZERO (-1.0)
typedef struct ad_adamw_options {
  size_t size; /* sizeof(ad_adamw_options) */
  double beta1, beta2, epsilon, weight_decay;
} ad_adamw_options;
typedef struct ad_adamw ad_adamw;
/* Creates the state of each parameter: first and second moment, both zero, in the parameter's dtype and layout, and
 * without data if the parameter has none on this rank. Weight decay applies to parameter i if specs[i].decays is not 0,
 * and to all parameters if `specs` is NULL. `specs` is not needed after this call. Borrows the meshes. AD_INVALID and
 * AD_TYPE name the parameter that is wrong; AD_MEMORY. */
AD_API AD_CHECKED ad_status ad_adamw_create(const ad_array *const *params, const ad_param_spec *specs, size_t count,
                                            const ad_adamw_options *options, ad_adamw **out);
AD_API void ad_adamw_destroy(ad_adamw *optimizer);
/* Updates all parameters in one pass:
 *   params[i] -= lr * (m / (sqrt(v) + epsilon) + decay * params[i])
 * m and v are the bias-corrected moments of factor * grads[i]; `factor` is the one of gradient clipping
 * (ad_clip_factor). Layouts, scales and shapes must agree (law 6, like adds to like). A gradient of another floating
 * dtype is first converted to the parameter's dtype. A NULL gradient counts as zero. AD_TYPE and AD_INVALID name the
 * first parameter that is wrong; AD_INVALID also if the rate or the factor is not finite. On failure nothing is
 * updated. */
#define ad_adamw_step(...) ad_adamw_step_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_adamw_step_at(ad_adamw *optimizer, ad_array *const *params, const ad_array *const *grads,
                                             double lr, double factor, const char *site);
AD_API int64_t ad_adamw_steps(const ad_adamw *optimizer);
/* Sets the number of steps taken, on which the bias correction depends: call it after the optimizer's state was loaded.
 * AD_INVALID, with nothing changed, if the number is below 0. */
AD_API AD_CHECKED ad_status ad_adamw_set_steps(ad_adamw *optimizer, int64_t steps);
typedef enum ad_moment { AD_FIRST_MOMENT, AD_SECOND_MOMENT } ad_moment;
/* One moment of one parameter. Owned by the optimizer. */
AD_API ad_array *ad_adamw_state(ad_adamw *optimizer, size_t param, ad_moment moment);

/* The dynamic loss scale for f16 gradients. The loss is multiplied by 2^exponent before backward, and the update
 * divides the gradients by 2^exponent. A step whose gradient norm is not finite is skipped on all ranks (the norm is
 * the same on all of them) and lowers the exponent; `growth` good steps in a row raise the exponent, which stays within
 * -24 to 24. This struct is the scale's whole state: save it with the optimizer's. */
/* limits of the exponent; gradients that need a scale beyond them have another bug */
enum { AD_LOSS_SCALE_LEAST = -24, AD_LOSS_SCALE_MOST = 24 };
typedef struct ad_loss_scale {
  int enabled, exponent;
  /* growth: after this many good steps in a row the exponent is raised, 0 means 2000; good_steps: the number of good
   * steps in a row so far */
  int64_t growth, good_steps;
} ad_loss_scale;
/* Returns 1 if the step is to be taken, because `norm` is finite, else 0. Also adapts the exponent, if the scale is
 * enabled. */
AD_API int ad_loss_scale_update(ad_loss_scale *scale, double norm);
/* The factor that undoes the scale in a gradient: 2^-exponent, exact; 1 if the scale is not enabled. */
AD_API double ad_loss_scale_factor(const ad_loss_scale *scale);
/* *out: the factor that reduces a gradient of this norm to at most `clip`: clip / norm, or 1 if the norm is at most
 * `clip` or `clip` is 0. (PyTorch's clip_grad_norm_ divides by norm + 1e-6 instead.) AD_INVALID if clip is not finite
 * or below 0, AD_NUMBER if the norm is not finite or below 0 (skip such a step, see ad_loss_scale_update); *out is then
 * unchanged. */
AD_API AD_CHECKED ad_status ad_clip_factor(double norm, double clip, double *out);

#if defined(__cplusplus)
}
#endif
#endif
