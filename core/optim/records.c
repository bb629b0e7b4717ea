/* The records of the optimizers. update_kernel_body.h has their loops. */
#include "optim/record.h"

#include <math.h>
#include "base/error.h"

#define AT(field) offsetof(ad_optimizer_options, field)
/* The record of the option whose field is `field`; the other arguments set the record's fields that are not 0. */
#define OPTION(field, ...) \
  { .name = #field, .offset = AT(field), __VA_ARGS__ }
/* The loops of one optimizer in every variant. */
#define KERNELS_OF(kind)                                                                                              \
  {                                                                                                                   \
    [AD_PLAIN] = &ad_updates_plain[kind], [AD_AVX2] = &ad_updates_avx2[kind], [AD_AVX512] = &ad_updates_avx512[kind], \
    [AD_AVX512FP16] = &ad_updates_avx512[kind],                                                                       \
  }

static ad_status check_decay(const char *name, double decay) {
  if (decay >= 0 && isfinite(decay)) return AD_OK;
  return ad_fail(AD_INVALID, "%s: `weight_decay` must be at least 0, but is %g", name, decay);
}

static ad_status check_adamw(const ad_optimizer_options *options) {
  if (!(options->beta1 >= 0 && options->beta1 < 1 && options->beta2 >= 0 && options->beta2 < 1))
    return ad_fail(AD_INVALID, "AdamW: `beta1` and `beta2` must be at least 0 and less than 1, but are %g and %g",
                   options->beta1, options->beta2);
  if (!(options->epsilon > 0 && isfinite(options->epsilon)))
    return ad_fail(AD_INVALID, "AdamW: `epsilon` must be above 0, but is %g", options->epsilon);
  return check_decay("AdamW", options->weight_decay);
}

/* Derives the bias corrections 1 / (1 - beta^t) of both moments. */
static void prepare_adamw(ad_update *update) {
  double t = (double)update->step;
  update->derived[0] = 1 / (1 - pow(update->options->beta1, t));
  update->derived[1] = 1 / (1 - pow(update->options->beta2, t));
}

static ad_status check_sgd(const ad_optimizer_options *options) {
  if (options->nesterov != 0 && options->nesterov != 1)
    return ad_fail(AD_INVALID, "SGD: `nesterov` must be 0 or 1, but is %d", options->nesterov);
  if (!(options->momentum >= 0 && options->momentum < 1))
    return ad_fail(AD_INVALID, "SGD: `momentum` must be at least 0 and less than 1, but is %g", options->momentum);
  return check_decay("SGD", options->weight_decay);
}

static const ad_optimizer_record records[] = {
    [AD_ADAMW] = {.name = "AdamW",
                  .options = {OPTION(beta1, .fallback = 0.9, .zero = AD_BETA_ZERO),
                              OPTION(beta2, .fallback = 0.95, .zero = AD_BETA_ZERO), OPTION(epsilon, .fallback = 1e-8),
                              OPTION(weight_decay), OPTION(decays_all, .is_int = 1)},
                  .states = {{.name = "first_moment"}, {.name = "second_moment"}},
                  .check = check_adamw,
                  .prepare = prepare_adamw,
                  .kernels = KERNELS_OF(AD_ADAMW)},
    [AD_SGD] = {.name = "SGD",
                .options = {OPTION(momentum), OPTION(nesterov, .is_int = 1, .needs = AT(momentum)),
                            OPTION(weight_decay), OPTION(decays_all, .is_int = 1)},
                .states = {{.name = "momentum", .needs = AT(momentum)}},
                .check = check_sgd,
                .kernels = KERNELS_OF(AD_SGD)},
};

const ad_optimizer_record *ad_optimizer_record_of(ad_optimizer_kind kind) {
  return (unsigned)kind < sizeof records / sizeof *records ? &records[kind] : NULL;
}
