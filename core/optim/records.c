/* The records of the optimizers. update_kernel_body.h has their loops. */
#include "optim/record.h"

#include <math.h>
#include "base/error.h"
#include "optim/orthogonal.h"

_Static_assert(sizeof(ad_muon_rate) == sizeof(int) && sizeof(ad_muon_way) == sizeof(int) &&
                   sizeof(ad_dtype) == sizeof(int),
               "options that are enums are read as int");

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

static ad_status check_muon(const ad_optimizer_options *options) {
  const ad_muon_options *muon = &options->muon;
  if (!(muon->momentum >= 0 && muon->momentum < 1))
    return ad_fail(AD_INVALID, "Muon: `momentum` must be at least 0 and less than 1, but is %g", muon->momentum);
  if ((muon->nesterov != 0 && muon->nesterov != 1) || (muon->blockwise != 0 && muon->blockwise != 1))
    return ad_fail(AD_INVALID, "Muon: `nesterov` and `blockwise` must be 0 or 1, but are %d and %d", muon->nesterov,
                   muon->blockwise);
  if (!isfinite(muon->a) || !isfinite(muon->b) || !isfinite(muon->c))
    return ad_fail(AD_INVALID, "Muon: `a`, `b` and `c` must be finite, but are %g, %g and %g", muon->a, muon->b,
                   muon->c);
  if (muon->steps < 1 || muon->steps > 99)
    return ad_fail(AD_INVALID, "Muon: `steps` must be 1 to 99, but is %d", muon->steps);
  if (!(muon->epsilon > 0 && isfinite(muon->epsilon)))
    return ad_fail(AD_INVALID, "Muon: `epsilon` must be above 0, but is %g", muon->epsilon);
  if ((unsigned)muon->rate > AD_MUON_SPECTRAL_UNCLAMPED || (unsigned)muon->way > AD_WAY_DEALT_TO_REPLICAS)
    return ad_fail(AD_INVALID, "Muon: `rate` is %d and `way` is %d; use values of ad_muon_rate and ad_muon_way",
                   (int)muon->rate, (int)muon->way);
  if (muon->dtype && muon->dtype != AD_F64 && muon->dtype != AD_F32 && muon->dtype != AD_BF16)
    return ad_fail(AD_INVALID, "Muon: the iteration cannot be in %s; set `dtype` to f64, f32 or bf16",
                   ad_dtype_name(muon->dtype));
  return check_decay("Muon", options->weight_decay);
}

static ad_muon_way muon_way(const ad_optimizer_options *options) { return options->muon.way; }
static int muon_is_blockwise(const ad_optimizer_options *options) { return options->muon.blockwise; }

static const ad_whole_record muon_whole = {.transform = ad_orthogonalise,
                                           .scratch_bytes = ad_orthogonal_scratch,
                                           .operations = ad_orthogonal_operations,
                                           .rate_factor = ad_muon_rate_factor,
                                           .way = muon_way,
                                           .is_blockwise = muon_is_blockwise};

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
    [AD_MUON] = {.name = "Muon",
                 .options = {OPTION(muon.momentum, .fallback = 0.95, .zero = AD_BETA_ZERO),
                             OPTION(muon.nesterov, .is_int = 1, .fallback = 1, .zero = AD_NO),
                             OPTION(muon.a, .fallback = 3.4445, .zero = AD_NEARLY_ZERO),
                             OPTION(muon.b, .fallback = -4.7750, .zero = AD_NEARLY_ZERO),
                             OPTION(muon.c, .fallback = 2.0315, .zero = AD_NEARLY_ZERO),
                             OPTION(muon.steps, .is_int = 1, .fallback = 5), OPTION(muon.epsilon, .fallback = 1e-7),
                             OPTION(muon.rate, .is_int = 1), OPTION(muon.dtype, .is_int = 1),
                             OPTION(muon.way, .is_int = 1), OPTION(muon.blockwise, .is_int = 1), OPTION(weight_decay),
                             OPTION(decays_all, .is_int = 1)},
                 // not `momentum`, which is SGD's and a sum: a checkpoint of one must not load into the other
                 .states = {{.name = "average_gradient", .needs = AT(muon.momentum)}},
                 .check = check_muon,
                 .kernels = KERNELS_OF(AD_MUON),
                 .whole = &muon_whole},
};

const ad_optimizer_record *ad_optimizer_record_of(ad_optimizer_kind kind) {
  return (unsigned)kind < sizeof records / sizeof *records ? &records[kind] : NULL;
}
