/* Runs the target on validation text with several kinds of masks, and counts where each component is important. */
#include "decompose/findings.h"

#include <string.h>
#include "addend/helpers.h"
#include "addend/products.h"
#include "decompose/random_components.h"
#include "decompose/rows.h"

enum { BATCHES = 8, SAMPLES = 16, SHOWN = 4 };

/* One run through the validation text. */
typedef struct search {
  ad_decomposition *d;
  const ad_forward *forward;
  ad_comm *comm;
  ad_decompose_part *part; /* the adversary's module on this rank */
  ad_findings *found;
  ad_tape *tape; /* NULL if this rank has no adversary, or before the first microbatch has run */
  ad_random_components random;
  double *memory; /* one microbatch's masks, and how much of the remainder W - V U is used; in the wide dtype */
} search;

/* A microbatch after its forward pass, on a rank of the adversary. */
typedef struct place {
  int64_t step;
  size_t microbatch;
  int64_t first_sample; /* index of this rank's first sample in the validation text */
} place;

static size_t seq_of(const ad_decomposition *d) { return (size_t)d->options->target.decoder.data.seq; }

/* ---- running a function over all validation text ---- */

typedef ad_status looking(search *s, const place *at);

static ad_status look_at_step(search *s, int64_t step, int64_t *const *counted, looking *look) {
  AD_TRY(ad_decompose_read(s->d, step, AD_VALIDATION_SET, counted));
  for (size_t m = 0; m < (size_t)s->d->setting.microbatches; m++) {
    place at = {step, m, step * s->d->setting.global_batch + s->part->batch.microbatches[m].rows.first};
    AD_TRY(s->forward->run(s->forward->context, m));
    if (s->part->is_here) AD_TRY(look(s, &at));
  }
  return AD_OK;
}

/* Runs all microbatches of `steps` batches of the validation set, and calls `look` after each microbatch. After the
 * last sample of the set its first sample follows. */
static ad_status look_at_text(search *s, int64_t steps, looking *look) {
  size_t microbatches = (size_t)s->d->setting.microbatches;
  int64_t *memory, *counted[AD_DECOMPOSE_COUNTS];
  AD_TRY(ad_new(AD_DECOMPOSE_COUNTS * microbatches, &memory));
  for (size_t i = 0; i < AD_DECOMPOSE_COUNTS; i++) counted[i] = memory + i * microbatches;
  ad_status status = AD_OK;
  for (int64_t step = 0; step < steps && !status; step++) status = look_at_step(s, step, counted, look);
  ad_release(memory);
  return status;
}

static ad_status sum_over_ranks(const search *s, double *at, size_t count) {
  ad_collective reduce = {.size = sizeof reduce,
                          .op = AD_ALL_REDUCE,
                          .group = s->forward->everyone,
                          .in = at,
                          .out = at,
                          .count = count,
                          .dtype = AD_F64,
                          .site = AD_HERE};
  return ad_comm_run(s->comm, &reduce);
}

/* ---- reading importances ---- */

static size_t rows_of(const ad_array *importances) {
  return (size_t)(importances->local.dim[0] * importances->local.dim[1]);
}

static double importance_at(const ad_array *importances, size_t row, size_t component) {
  return ad_array_get(importances, row * (size_t)importances->local.dim[2] + component);
}

/* Returns how many components of a site have an importance above 0 in this row; `first` is the index of the site's
 * first component among those of all sites. */
static size_t active_at(const ad_array *importances, size_t row, size_t first, size_t count) {
  size_t active = 0;
  for (size_t c = first; c < first + count; c++) active += importance_at(importances, row, c) > 0;
  return active;
}

/* ---- making the kinds of masks ---- */

static void put_everywhere(double value, ad_array *array) {
  for (size_t k = 0; k < ad_array_numel(array); k++) ad_array_set(array, k, value);
}

static void put_rounded(const ad_array *importances, ad_array *mask) {
  for (size_t k = 0; k < ad_array_numel(mask); k++)
    ad_array_set(mask, k, ad_array_get(importances, k) > AD_IMPORTANCE_THRESHOLD);
}

static void put_mixed(const ad_array *importances, ad_array *mask) {
  for (size_t k = 0; k < ad_array_numel(mask); k++) {
    double x = ad_array_get(importances, k);
    ad_array_set(mask, k, x + (1 - x) * ad_array_get(mask, k));
  }
}

static ad_status put_stochastic(const search *s, const ad_array *importances, const place *at, ad_array *mask,
                                ad_array *remains) {
  const ad_program_setting *setting = &s->d->setting;
  int64_t first = ad_cut(setting->global_batch, (int64_t)at->microbatch, setting->microbatches).first;
  AD_TRY(ad_array_uniform(s->comm, setting->seed, "found mask", at->step, first, mask));
  AD_TRY(ad_array_uniform(s->comm, setting->seed, "found remains", at->step, first, remains));
  put_mixed(importances, mask);
  return AD_OK;
}

/* Fills the mask [batch, seq, components of all sites] for this pass, and `remains` [batch, seq], how much of the
 * remainder W - V U is used: 0 unless masks are random. */
static ad_status put_masks(const search *s, int pass, const ad_array *importances, const place *at, ad_array *mask,
                           ad_array *remains) {
  put_everywhere(0, remains);
  if (pass == AD_PASS_STOCHASTIC) return put_stochastic(s, importances, at, mask, remains);
  if (pass == AD_PASS_MASKED)
    ad_cast(mask->data, mask->dtype, importances->data, importances->dtype, ad_array_numel(mask));
  if (pass == AD_PASS_ROUNDED) put_rounded(importances, mask);
  if (pass == AD_PASS_UNMASKED) put_everywhere(1, mask);
  return AD_OK;
}

static ad_status masked_logits(search *s, int pass, const ad_adversary *with, const place *at, ad_tensor **out) {
  ad_decomposition *d = s->d;
  const ad_array *importances = ad_tensor_array(with->importances);
  ad_array mask = *importances, remains = *ad_tensor_array(with->tokens);
  ad_mask masks[AD_SITES_MAX];
  mask.data = s->memory;
  mask.dtype = remains.dtype = ad_dtype_wide(importances->dtype);
  remains.data = s->memory + ad_array_numel(&mask);
  AD_TRY(put_masks(s, pass, importances, at, &mask, &remains));
  ad_tensor *all = ad_to_dtype(s->tape, ad_constant(s->tape, &mask), importances->dtype);
  ad_tensor *rest = ad_constant(s->tape, &remains);
  for (size_t site = 0, first = 0; site < d->site_count; first += (size_t)d->sites[site++].components) {
    ad_tensor *own = ad_slice(s->tape, all, -1, (int64_t)first, d->sites[site].components);
    masks[site] = (ad_mask){with->v[site], with->u[site], own, rest};
  }
  *out = ad_decompose_logits(d, s->part, s->tape, with->tokens, masks);
  return AD_OK;
}

/* ---- running the target with random components ---- */

typedef struct random_pass {
  search *s;
  const ad_array *importances;
  const place *at;
  int pass;
} random_pass;

/* Replaces a site's product x W by (x V) U of random components. At each position, as many components are used as the
 * site has learned components with an importance above 0 there. */
static ad_tensor *replace(void *own, ad_tape *t, size_t site, ad_tensor *x, ad_tensor *w) {
  const random_pass *pass = own;
  const ad_decomposition *d = pass->s->d;
  const ad_random_components *random = &pass->s->random;
  size_t first = (size_t)ad_components_in(d, 0, site), count = (size_t)d->sites[site].components;
  ad_tensor *h = ad_linear(t, x, ad_constant(t, &random->v[site]));
  if (!ad_tensor_array(h)) return h;
  ad_array mask = *ad_tensor_array(h);
  mask.data = pass->s->memory + first * rows_of(pass->importances);
  for (size_t row = 0; row < rows_of(pass->importances); row++) {
    size_t active = active_at(pass->importances, row, first, count);
    if (pass->pass == AD_PASS_LARGEST)
      ad_random_components_keep_largest(random, site, ad_tensor_array(h), row, active, &mask);
    else
      ad_random_components_keep_any(random, site, (size_t)pass->at->first_sample * seq_of(d) + row, row, active, &mask);
  }
  ad_tensor *u = ad_constant(t, &random->u[site]);
  return ad_linear(t, ad_multiply(t, h, ad_constant(t, &mask)), u);
}

static ad_tensor *random_logits(search *s, int pass, const ad_adversary *with, const place *at) {
  random_pass own = {s, ad_tensor_array(with->importances), at, pass};
  return ad_target_logits(&s->part->target, s->tape, with->tokens, replace, &own);
}

/* ---- running the target with each kind of mask ---- */

static ad_status find_logits(search *s, int pass, const ad_adversary *with, const place *at, ad_tensor **out) {
  *out = with->wanted;
  if (pass == AD_PASS_TARGET) return AD_OK;
  if (pass != AD_PASS_RANDOM && pass != AD_PASS_LARGEST) return masked_logits(s, pass, with, at, out);
  *out = random_logits(s, pass, with, at);
  return AD_OK;
}

static ad_status run_pass(search *s, int pass, const place *at) {
  ad_tape *t = s->tape;
  ad_tensor *logits;
  ad_tape_reset(t);
  ad_adversary with = ad_adversary_on(s->d, t, &s->d->adversary);
  ad_tensor *targets = ad_constant(t, &s->part->batch.microbatches[at->microbatch].targets);
  AD_TRY(find_logits(s, pass, &with, at, &logits));
  ad_tensor *entropy = ad_cross_entropy(t, logits, targets), *divergence = ad_kl_divergence(t, logits, with.wanted);
  AD_TRY(ad_tape_status(t));
  s->found->entropy[pass] += ad_tensor_scalar(entropy);
  s->found->divergence[pass] += ad_tensor_scalar(divergence);
  return AD_OK;
}

/* ---- counting how often components are needed ---- */

static void count_text(search *s, const place *at) {
  const ad_array *targets = &s->part->batch.microbatches[at->microbatch].targets;
  *s->found->positions += (double)ad_array_numel(targets);
  for (size_t i = 0; i < ad_array_numel(targets); i++) {
    int32_t byte = ((const int32_t *)targets->data)[i];
    if (byte < 0) continue;
    s->found->bytes[byte]++;
    ++*s->found->counted;
  }
}

static void count_importances(search *s) {
  const ad_array *importances = ad_tensor_array(s->d->adversary.importances);
  size_t components = (size_t)s->d->components;
  for (size_t k = 0; k < ad_array_numel(importances); k++) {
    double x = ad_array_get(importances, k);
    double *to = s->found->of_component + k % components * AD_PER_COMPONENT;
    to[AD_IMPORTANCE] += x;
    to[AD_IMPORTANCE_SQUARE] += x * x;
    to[AD_ABOVE_ZERO] += x > 0;
    to[AD_ABOVE_THRESHOLD] += x > AD_IMPORTANCE_THRESHOLD;
  }
}

/* Allocates masks in f64 that are large enough for the largest microbatch. */
static ad_status take_memory(search *s) {
  size_t most = 0;
  for (size_t m = 0; m < s->part->batch.count; m++) {
    size_t positions = ad_array_numel(&s->part->batch.microbatches[m].tokens);
    most = positions > most ? positions : most;
  }
  return ad_new(most * (size_t)(s->d->components + 1), &s->memory);
}

static const ad_mesh *mesh_of(const search *s) { return s->part->batch.microbatches[0].tokens.layout.mesh; }

/* Creates the tape and the random components. Called after the first microbatch has run, because only then is the
 * adversary's tape known. */
static ad_status open_adversary(search *s) {
  const ad_tape *of = s->d->adversary.tape;
  ad_tape_options options = {.size = sizeof options, .dtype = ad_tape_dtype(of), .residual = ad_tape_residual(of)};
  AD_TRY(ad_tape_create(s->comm, mesh_of(s), &options, &s->tape));
  AD_TRY(take_memory(s));
  return ad_random_components_create(&s->random, &s->part->target, mesh_of(s), options.dtype, s->d->setting.seed);
}

static ad_status measure_place(search *s, const place *at) {
  if (!s->tape) AD_TRY(open_adversary(s));
  count_text(s, at);
  count_importances(s);
  for (int pass = 0; pass < AD_PASSES; pass++) AD_TRY(run_pass(s, pass, at));
  return AD_OK;
}

/* ---- measuring the distance of components from the weights ---- */

/* Computes error [in, out] = W - V U. */
static ad_status put_error(const ad_site *site, const double *w, const double *v, const double *u, double *error) {
  memcpy(error, w, (size_t)(site->in * site->out) * sizeof *w);
  ad_matrix_product product = {.size = sizeof product, .dtype = AD_F64, .m = site->in, .n = site->out};
  product.k = site->components;
  product.a = (ad_matrix){v, site->components, 0};
  product.b = (ad_matrix){u, site->out, 0};
  product.factor = -1;
  product.adds = 1;
  product.out = error;
  product.out_stride = site->out;
  return ad_multiply_matrices(&product);
}

static double square_sum(const double *at, size_t count) { return ad_row_dot(at, at, (int64_t)count); }

static ad_status measure_site(search *s, size_t site) {
  const ad_array *v = ad_tensor_array(s->d->adversary.v[site]), *u = ad_tensor_array(s->d->adversary.u[site]);
  size_t of_v = ad_array_numel(v), of_u = ad_array_numel(u);
  size_t of_w = (size_t)(s->d->sites[site].in * s->d->sites[site].out);
  const double *w = ad_target_weight(&s->part->target, site);
  double *wide;
  AD_TRY(ad_new(of_v + of_u + of_w, &wide));
  double *error = wide + of_v + of_u;
  ad_cast(wide, AD_F64, v->data, v->dtype, of_v);
  ad_cast(wide + of_v, AD_F64, u->data, u->dtype, of_u);
  ad_status status = put_error(&s->d->sites[site], w, wide, wide + of_v, error);
  s->found->errors[site] = square_sum(error, of_w);
  s->found->sizes[site] = square_sum(w, of_w);
  ad_release(wide);
  return status;
}

/* Measures the components on the adversary's first rank only, because all its ranks have the same components. */
static ad_status measure_components(search *s) {
  if (ad_comm_rank(s->comm) != ad_mesh_first_rank(mesh_of(s))) return AD_OK;
  for (size_t site = 0; site < s->d->site_count; site++) AD_TRY(measure_site(s, site));
  return AD_OK;
}

static ad_status measure_all(search *s) {
  AD_TRY(look_at_text(s, BATCHES, measure_place));
  if (s->part->is_here) AD_TRY(measure_components(s));
  return sum_over_ranks(s, s->found->sums, s->found->sum_count);
}

/* ---- choosing components to show, and keeping where they are needed ---- */

double ad_findings_mean(const ad_findings *findings, size_t component, int of) {
  double positions = *findings->positions;
  return positions > 0 ? findings->of_component[component * AD_PER_COMPONENT + (size_t)of] / positions : 0;
}

/* Returns the variance over positions of the component's importance; 0 if the importance is the same everywhere. */
static double variance_of(const ad_findings *findings, size_t component) {
  double mean = ad_findings_mean(findings, component, AD_IMPORTANCE);
  return ad_findings_mean(findings, component, AD_IMPORTANCE_SQUARE) - mean * mean;
}

size_t ad_findings_most(const ad_findings *findings, size_t site,
                        double (*of)(const ad_findings *findings, size_t component), size_t most, size_t *out) {
  static const double rounding = 1e-12;
  const ad_decomposition *d = findings->decomposition;
  size_t first = (size_t)ad_components_in(d, 0, site), count = 0;
  for (size_t c = first; c < first + (size_t)d->sites[site].components; c++) {
    if (!(of(findings, c) > rounding)) continue;
    size_t at = count < most ? count++ : most;
    for (; at > 0 && of(findings, c) > of(findings, out[at - 1]); at--)
      if (at < most) out[at] = out[at - 1];
    if (at < most) out[at] = c;
  }
  return count;
}

static ad_status choose_shown(search *s) {
  ad_findings *found = s->found;
  int64_t all = BATCHES * s->d->setting.global_batch;
  AD_TRY(ad_new(SHOWN * s->d->site_count, &found->shown));
  for (size_t site = 0; site < s->d->site_count; site++)
    found->shown_count += ad_findings_most(found, site, variance_of, SHOWN, found->shown + found->shown_count);
  found->samples = all < SAMPLES ? all : SAMPLES;
  size_t positions = (size_t)found->samples * seq_of(s->d);
  AD_TRY(ad_new((found->shown_count + 1) * positions, &found->shown_text));
  found->shown_values = found->shown_text + positions;
  return AD_OK;
}

static ad_status keep_values(search *s, const place *at) {
  const ad_array *importances = ad_tensor_array(s->d->adversary.importances);
  const int32_t *tokens = s->part->batch.microbatches[at->microbatch].tokens.data;
  size_t first = (size_t)at->first_sample * seq_of(s->d), all = (size_t)s->found->samples * seq_of(s->d);
  for (size_t row = 0; row < rows_of(importances) && first + row < all; row++) {
    s->found->shown_text[first + row] = tokens[row];
    for (size_t i = 0; i < s->found->shown_count; i++)
      s->found->shown_values[i * all + first + row] = importance_at(importances, row, s->found->shown[i]);
  }
  return AD_OK;
}

static ad_status keep_shown(search *s) {
  int64_t batch = s->d->setting.global_batch;
  AD_TRY(choose_shown(s));
  AD_TRY(look_at_text(s, (s->found->samples + batch - 1) / batch, keep_values));
  return sum_over_ranks(s, s->found->shown_text,
                        (s->found->shown_count + 1) * (size_t)s->found->samples * seq_of(s->d));
}

/* ---- collecting and releasing findings ---- */

static double *piece(double **at, size_t count) {
  double *begin = *at;
  *at += count;
  return begin;
}

static ad_status open_findings(const ad_decomposition *d, ad_findings *out) {
  size_t sites = d->site_count, of_components = AD_PER_COMPONENT * (size_t)d->components;
  *out = (ad_findings){.decomposition = d,
                       .sum_count = 2 + 2 * AD_PASSES + AD_VOCABULARY_BYTES + 2 * sites + of_components};
  AD_TRY(ad_new(out->sum_count, &out->sums));
  double *at = out->sums;
  out->positions = piece(&at, 1);
  out->counted = piece(&at, 1);
  out->entropy = piece(&at, AD_PASSES);
  out->divergence = piece(&at, AD_PASSES);
  out->bytes = piece(&at, AD_VOCABULARY_BYTES);
  out->errors = piece(&at, sites);
  out->sizes = piece(&at, sites);
  out->of_component = piece(&at, of_components);
  return AD_OK;
}

ad_status ad_findings_collect(ad_decomposition *d, const ad_forward *forward, ad_findings *out) {
  search s = {.d = d,
              .forward = forward,
              .comm = (ad_comm *)(uintptr_t)d->setting.comm,
              .part = &d->parts[ad_module_of_adv(d)],
              .found = out};
  ad_status status = open_findings(d, out);
  if (!status) status = measure_all(&s);
  if (!status) status = keep_shown(&s);
  ad_random_components_release(&s.random);
  if (s.tape) ad_tape_destroy(s.tape);
  ad_release(s.memory);
  return status;
}

void ad_findings_release(ad_findings *findings) {
  ad_release(findings->sums);
  ad_release(findings->shown);
  ad_release(findings->shown_text);
}
