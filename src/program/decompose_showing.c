/* Runs the target on held-out text with masks of several kinds, counts how much of each component is needed, and tells
 * it as a JSON document. All numbers are sums over the ranks of the adversary, where everything arrives. */
#include "program/decompose_showing.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/kernels.h"
#include "base/memory.h"
#include "base/random.h"
#include "io/text.h"
#include "program/random_components.h"
#include "tensor/gemm.h"
#include "tensor/rows.h"

enum { BATCHES = 8, SAMPLES = 16, USED = 8, SHOWN = 4 };
static const double threshold = 0.5;

/* How the components are masked; the first: not at all, the target itself. */
enum { TARGET, MASKED, ROUNDED, STOCHASTIC, UNMASKED, RANDOM, PASSES };
static const char *const pass_names[PASSES] = {"target", "masked", "rounded", "stochastic", "unmasked", "random"};

/* Of a component, sums over positions: of its importance and its square, of how often it is above 0, and above the
 * threshold. */
enum { IMPORTANCE, SQUARE, ABOVE_ZERO, ABOVE_THRESHOLD, PER_COMPONENT };

/* Addends of this rank, and once added up those of all. */
typedef struct tallies {
  double *all;
  size_t count;
  double *positions, *counted;  /* [1]: of the text; of those the ones whose next byte counts */
  double *entropy, *divergence; /* [PASSES]: sums over what counts */
  double *bytes;                /* [256]: of next bytes */
  double *errors, *sizes;       /* [sites]: ||W - V U||^2, ||W||^2 */
  double *of_component;         /* [components, PER_COMPONENT] */
} tallies;

/* Components whose importance is shown position by position. */
typedef struct shown {
  size_t *component, count; /* numbers among those of all sites */
  int64_t samples;
  double *values; /* [count, samples, seq] */
  double *tokens; /* [samples, seq] */
  double *all;    /* both, in one piece of memory */
} shown;

typedef struct showing {
  ad_decomposition *d;
  const ad_forward *forward;
  ad_comm *comm;
  ad_decompose_part *part; /* the adversary's */
  ad_tape *tape;           /* NULL: no rank of the adversary */
  ad_random_components random;
  double *mask; /* memory of one microbatch's, in f64 or f32, and of what remains */
  tallies sums;
  shown shown;
} showing;

static int64_t seq_of(const ad_decomposition *d) { return d->options->target.decoder.data.seq; }

/* ---- the text ---- */

typedef ad_status looking(showing *s, int64_t step, size_t m);

static ad_status look_at_step(showing *s, int64_t step, int64_t *const *counted, looking *look) {
  AD_TRY(ad_decompose_read(s->d, step, 1, counted));
  for (size_t m = 0; m < (size_t)s->d->setting.microbatches; m++) {
    AD_TRY(s->forward->run(s->forward->context, m));
    if (s->part->is_here) AD_TRY(look(s, step, m));
  }
  return AD_OK;
}

/* Every microbatch of held-out steps 0 and on. */
static ad_status look_at_text(showing *s, int64_t steps, looking *look) {
  size_t microbatches = (size_t)s->d->setting.microbatches;
  int64_t *memory, *counted[AD_DECOMPOSE_COUNTS];
  AD_TRY(ad_new(AD_DECOMPOSE_COUNTS * microbatches, &memory));
  for (size_t i = 0; i < AD_DECOMPOSE_COUNTS; i++) counted[i] = memory + i * microbatches;
  ad_status status = AD_OK;
  for (int64_t step = 0; step < steps && !status; step++) status = look_at_step(s, step, counted, look);
  ad_release(memory);
  return status;
}

/* Of a microbatch's first sample on this rank, among all of held-out text. */
static int64_t first_sample(const showing *s, int64_t step, size_t m) {
  return step * s->d->setting.global_batch + s->part->batch.microbatches[m].rows.first;
}

static ad_status sum_over_ranks(const showing *s, double *at, size_t count) {
  ad_collective reduce = {.op = AD_ALL_REDUCE,
                          .group = s->forward->everyone,
                          .in = at,
                          .out = at,
                          .count = count,
                          .dtype = AD_F64,
                          .site = AD_HERE};
  return ad_comm_run(s->comm, &reduce);
}

/* ---- masks ---- */

static double importance_at(const ad_array *importances, size_t row, size_t component) {
  return ad_element(importances->dtype, importances->data, row * (size_t)importances->local.dim[2] + component);
}

static size_t rows_of(const ad_array *importances) {
  return (size_t)(importances->local.dim[0] * importances->local.dim[1]);
}

/* `count` of n places, each as likely as the others: the first ones of a shuffle. `draw` numbers its draws. */
static void choose(uint64_t seed, uint64_t stream, uint64_t draw, size_t *places, size_t n, size_t count) {
  for (size_t i = 0; i < n; i++) places[i] = i;
  for (size_t i = 0; i < count; i++) {
    size_t j = i + (size_t)(ad_random_uniform(seed, stream, draw + i) * (double)(n - i)), kept = places[i];
    places[i] = places[j];
    places[j] = kept;
  }
}

/* In each position as many components of each site as the importances have above 0. */
static ad_status put_random_choice(const showing *s, const ad_array *importances, uint64_t first_row, ad_array *mask) {
  const ad_decomposition *d = s->d;
  size_t *places, components = (size_t)d->components;
  uint64_t stream = ad_random_stream("random choice");
  AD_TRY(ad_new(components, &places));
  memset(mask->data, 0, ad_array_bytes(mask));
  for (size_t row = 0; row < rows_of(importances); row++) {
    for (size_t site = 0, first = 0; site < d->site_count; first += (size_t)d->sites[site++].components) {
      size_t n = (size_t)d->sites[site].components, active = 0;
      for (size_t c = first; c < first + n; c++) active += importance_at(importances, row, c) > 0;
      choose(d->setting.seed, stream, (first_row + row) * components + first, places, n, active);
      for (size_t i = 0; i < active; i++)
        ad_set_element(mask->dtype, mask->data, row * components + first + places[i], 1);
    }
  }
  ad_release(places);
  return AD_OK;
}

static void put_rounded(const ad_array *importances, ad_array *mask) {
  for (size_t k = 0; k < ad_array_numel(mask); k++)
    ad_set_element(mask->dtype, mask->data, k,
                   ad_element(importances->dtype, importances->data, k) > threshold ? 1 : 0);
}

static void put_mixed(const ad_array *importances, ad_array *mask) {
  for (size_t k = 0; k < ad_array_numel(mask); k++) {
    double x = ad_element(importances->dtype, importances->data, k), u = ad_element(mask->dtype, mask->data, k);
    ad_set_element(mask->dtype, mask->data, k, x + (1 - x) * u);
  }
}

static void put_everywhere(double value, ad_array *array) {
  for (size_t k = 0; k < ad_array_numel(array); k++) ad_set_element(array->dtype, array->data, k, value);
}

static ad_status put_stochastic(const showing *s, const ad_array *importances, int64_t step, size_t m, ad_array *mask,
                                ad_array *remains) {
  const ad_decomposition *d = s->d;
  int64_t first = ad_cut(d->setting.global_batch, (int64_t)m, d->setting.microbatches).first;
  AD_TRY(ad_array_uniform(s->comm, d->setting.seed, "shown mask", step, first, AD_HERE, mask));
  AD_TRY(ad_array_uniform(s->comm, d->setting.seed, "shown remains", step, first, AD_HERE, remains));
  put_mixed(importances, mask);
  return AD_OK;
}

static ad_status put_masks(const showing *s, int pass, const ad_array *importances, int64_t step, size_t m,
                           ad_array *mask, ad_array *remains) {
  put_everywhere(0, remains);
  if (pass == MASKED) memcpy(mask->data, importances->data, ad_array_bytes(mask));
  if (pass == ROUNDED) put_rounded(importances, mask);
  if (pass == UNMASKED) put_everywhere(1, mask);
  if (pass == STOCHASTIC) return put_stochastic(s, importances, step, m, mask, remains);
  if (pass == RANDOM)
    return put_random_choice(s, importances, (uint64_t)(first_sample(s, step, m) * seq_of(s->d)), mask);
  return AD_OK;
}

/* ---- passes of the target ---- */

/* The pass's masks lie in the showing's memory; the importances are whole, and so are masks. */
static ad_status masked_logits(showing *s, int pass, const ad_adversary *with, int64_t step, size_t m,
                               ad_tensor **out) {
  ad_decomposition *d = s->d;
  const ad_array *importances = ad_tensor_array(with->importances), *tokens = ad_tensor_array(with->tokens);
  ad_array mask = *importances, remains = *tokens;
  ad_mask masks[AD_SITES_MAX];
  mask.data = s->mask;
  remains.dtype = mask.dtype;
  remains.data = s->mask + ad_array_numel(&mask);
  AD_TRY(put_masks(s, pass, importances, step, m, &mask, &remains));
  ad_tensor *all = ad_constant(s->tape, &mask), *rest = ad_constant(s->tape, &remains);
  for (size_t site = 0, first = 0; site < d->site_count; first += (size_t)d->sites[site++].components) {
    ad_tensor *v = pass == RANDOM ? ad_constant(s->tape, &s->random.v[site]) : with->v[site];
    ad_tensor *u = pass == RANDOM ? ad_constant(s->tape, &s->random.u[site]) : with->u[site];
    masks[site] = (ad_mask){v, u, ad_slice(s->tape, all, (int64_t)first, d->sites[site].components), rest};
  }
  *out = ad_decompose_logits(d, s->part, s->tape, with->tokens, masks);
  return AD_OK;
}

static ad_status run_pass(showing *s, int pass, int64_t step, size_t m) {
  ad_tape *t = s->tape;
  ad_tape_reset(t);
  ad_adversary with = ad_adversary_on(s->d, t, &s->d->adversary);
  ad_tensor *logits = with.wanted, *targets = ad_constant(t, &s->part->batch.microbatches[m].targets);
  if (pass != TARGET) AD_TRY(masked_logits(s, pass, &with, step, m, &logits));
  ad_tensor *entropy = ad_cross_entropy(t, logits, targets), *divergence = ad_kl_divergence(t, logits, with.wanted);
  AD_TRY(ad_tape_status(t));
  s->sums.entropy[pass] += ad_tensor_scalar(entropy);
  s->sums.divergence[pass] += ad_tensor_scalar(divergence);
  return AD_OK;
}

/* ---- what is counted ---- */

static void count_text(showing *s, size_t m) {
  const ad_array *targets = &s->part->batch.microbatches[m].targets;
  *s->sums.positions += (double)ad_array_numel(targets);
  for (size_t i = 0; i < ad_array_numel(targets); i++) {
    int32_t byte = ((const int32_t *)targets->data)[i];
    if (byte < 0) continue;
    s->sums.bytes[byte]++;
    ++*s->sums.counted;
  }
}

static void count_importances(showing *s) {
  const ad_array *importances = ad_tensor_array(s->d->adversary.importances);
  size_t components = (size_t)s->d->components;
  for (size_t k = 0; k < ad_array_numel(importances); k++) {
    double x = ad_element(importances->dtype, importances->data, k);
    double *to = s->sums.of_component + k % components * PER_COMPONENT;
    to[IMPORTANCE] += x;
    to[SQUARE] += x * x;
    to[ABOVE_ZERO] += x > 0;
    to[ABOVE_THRESHOLD] += x > threshold;
  }
}

/* Room for the largest microbatch's masks and what remains, in f64. */
static ad_status take_masks(showing *s) {
  size_t most = 0;
  for (size_t m = 0; m < s->part->batch.count; m++) {
    size_t positions = ad_array_numel(&s->part->batch.microbatches[m].tokens);
    most = positions > most ? positions : most;
  }
  return ad_new(most * (size_t)(s->d->components + 1), &s->mask);
}

/* Once the first microbatch has run. */
static ad_status open_adversary(showing *s) {
  const ad_mesh *mesh = s->part->batch.microbatches[0].tokens.layout.mesh;
  ad_dtype dtype = ad_tensor_array(s->d->adversary.wanted)->dtype;
  ad_tape_options options = {.size = sizeof options, .dtype = dtype};
  AD_TRY(ad_tape_create(s->comm, mesh, &options, &s->tape));
  AD_TRY(take_masks(s));
  return ad_random_components_create(&s->random, &s->part->target, mesh, dtype, s->d->setting.seed);
}

static ad_status measure(showing *s, int64_t step, size_t m) {
  if (!s->tape) AD_TRY(open_adversary(s));
  count_text(s, m);
  count_importances(s);
  for (int pass = 0; pass < PASSES; pass++) AD_TRY(run_pass(s, pass, step, m));
  return AD_OK;
}

/* error [in, out] = W - V U. */
static void put_error(const ad_site *site, const double *w, const double *v, const double *u, double *error) {
  memcpy(error, w, (size_t)(site->in * site->out) * sizeof *w);
  ad_gemm(AD_F64, site->in, site->out, site->components, -1, (gemm_operand){v, site->components, 0},
          (gemm_operand){u, site->out, 0}, 1, error, site->out);
}

static double squares(const double *at, size_t count) { return ad_rows(AD_F64)->dot(at, at, count); }

static ad_status measure_site(showing *s, size_t site) {
  const ad_site *of = &s->d->sites[site];
  const ad_array *v = ad_tensor_array(s->d->adversary.v[site]), *u = ad_tensor_array(s->d->adversary.u[site]);
  size_t of_v = ad_array_numel(v), of_u = ad_array_numel(u), of_w = (size_t)(of->in * of->out);
  const double *w = ad_target_weight(&s->part->target, site);
  double *wide;
  AD_TRY(ad_new(of_v + of_u + of_w, &wide));
  ad_cast(wide, AD_F64, v->data, v->dtype, of_v);
  ad_cast(wide + of_v, AD_F64, u->data, u->dtype, of_u);
  put_error(of, w, wide, wide + of_v, wide + of_v + of_u);
  s->sums.errors[site] = squares(wide + of_v + of_u, of_w);
  s->sums.sizes[site] = squares(w, of_w);
  ad_release(wide);
  return AD_OK;
}

/* All ranks of the adversary have the same components: the first one counts. */
static ad_status measure_components(showing *s) {
  const ad_mesh *mesh = s->part->batch.microbatches[0].tokens.layout.mesh;
  if (ad_comm_rank(s->comm) != ad_mesh_first_rank(mesh)) return AD_OK;
  for (size_t site = 0; site < s->d->site_count; site++) AD_TRY(measure_site(s, site));
  return AD_OK;
}

static ad_status measure_all(showing *s) {
  AD_TRY(look_at_text(s, BATCHES, measure));
  if (s->part->is_here) AD_TRY(measure_components(s));
  return sum_over_ranks(s, s->sums.all, s->sums.count);
}

/* ---- which components are shown, and where they are needed ---- */

static double mean_of(const showing *s, size_t component, int of) {
  double positions = *s->sums.positions;
  return positions > 0 ? s->sums.of_component[component * PER_COMPONENT + (size_t)of] / positions : 0;
}

/* Of its importance over the positions: 0 where it is always needed alike. */
static double variance_of(const showing *s, size_t component) {
  double mean = mean_of(s, component, IMPORTANCE);
  return mean_of(s, component, SQUARE) - mean * mean;
}

static double importance_of(const showing *s, size_t component) { return mean_of(s, component, IMPORTANCE); }

/* The components of a site that have most of what `of` says, and more than 0, the most first; returns how many. */
static size_t most_of(const showing *s, size_t site, double (*of)(const showing *s, size_t component), size_t most,
                      size_t *out) {
  size_t first = (size_t)ad_components_in(s->d, 0, site), count = 0;
  for (size_t c = first; c < first + (size_t)s->d->sites[site].components; c++) {
    size_t at = count < most ? count++ : most;
    for (; at > 0 && of(s, c) > of(s, out[at - 1]); at--)
      if (at < most) out[at] = out[at - 1];
    if (at < most) out[at] = c;
  }
  while (count > 0 && !(of(s, out[count - 1]) > 1e-12)) count--;
  return count;
}

static ad_status choose_shown(showing *s) {
  shown *to = &s->shown;
  size_t seq = (size_t)seq_of(s->d);
  AD_TRY(ad_new(SHOWN * s->d->site_count, &to->component));
  for (size_t site = 0; site < s->d->site_count; site++)
    to->count += most_of(s, site, variance_of, SHOWN, to->component + to->count);
  to->samples = BATCHES * s->d->setting.global_batch < SAMPLES ? BATCHES * s->d->setting.global_batch : SAMPLES;
  AD_TRY(ad_new((to->count + 1) * (size_t)to->samples * seq, &to->all));
  to->tokens = to->all;
  to->values = to->all + (size_t)to->samples * seq;
  return AD_OK;
}

static ad_status keep_values(showing *s, int64_t step, size_t m) {
  const ad_array *importances = ad_tensor_array(s->d->adversary.importances);
  const int32_t *tokens = s->part->batch.microbatches[m].tokens.data;
  size_t seq = (size_t)seq_of(s->d), all = (size_t)s->shown.samples * seq;
  size_t first = (size_t)first_sample(s, step, m) * seq;
  for (size_t row = 0; row < rows_of(importances) && first + row < all; row++) {
    s->shown.tokens[first + row] = tokens[row];
    for (size_t i = 0; i < s->shown.count; i++)
      s->shown.values[i * all + first + row] = importance_at(importances, row, s->shown.component[i]);
  }
  return AD_OK;
}

static ad_status keep_shown(showing *s) {
  int64_t batch = s->d->setting.global_batch;
  AD_TRY(choose_shown(s));
  AD_TRY(look_at_text(s, (s->shown.samples + batch - 1) / batch, keep_values));
  return sum_over_ranks(s, s->shown.all, (s->shown.count + 1) * (size_t)(s->shown.samples * seq_of(s->d)));
}

/* ---- what is told ---- */

/* In nats for each byte that counts. */
static double per_counted(const showing *s, double sum) { return *s->sums.counted > 0 ? sum / *s->sums.counted : 0; }

/* Of the bytes that are trained on, each counted once more than it is there: of one that never was, too. */
static double unigram_entropy(const showing *s) {
  double count[AD_VOCABULARY_BYTES], sum = 0;
  int64_t size = 0;
  const ad_text_data *data = NULL;
  for (size_t m = 0; m < s->d->module_count; m++)
    if (s->d->parts[m].is_here) data = s->d->parts[m].batch.data;
  const uint8_t *text = ad_text_data_part(data, 0, &size);
  for (size_t i = 0; i < AD_VOCABULARY_BYTES; i++) count[i] = 1;
  for (int64_t i = 0; i < size; i++) count[text[i]]++;
  for (size_t i = 0; i < AD_VOCABULARY_BYTES; i++)
    sum -= s->sums.bytes[i] * log(count[i] / ((double)size + AD_VOCABULARY_BYTES));
  return per_counted(s, sum);
}

static json_t *entropies(const showing *s) {
  json_t *document = json_object();
  for (int pass = 0; pass < PASSES; pass++)
    json_object_set_new(document, pass_names[pass], json_real(per_counted(s, s->sums.entropy[pass])));
  json_object_set_new(document, "unigram", json_real(unigram_entropy(s)));
  json_object_set_new(document, "uniform", json_real(log(AD_VOCABULARY_BYTES)));
  return document;
}

static json_t *divergences(const showing *s) {
  json_t *document = json_object();
  for (int pass = MASKED; pass < PASSES; pass++)
    json_object_set_new(document, pass_names[pass], json_real(s->sums.divergence[pass] / *s->sums.positions));
  return document;
}

/* Active components per position among `count` from `first` on, and how many are at any position. */
typedef struct activity {
  double above_zero, above_threshold;
  int64_t alive;
} activity;

static activity activity_of(const showing *s, size_t first, size_t count) {
  activity of = {0, 0, 0};
  for (size_t c = first; c < first + count; c++) {
    of.above_zero += mean_of(s, c, ABOVE_ZERO);
    of.above_threshold += mean_of(s, c, ABOVE_THRESHOLD);
    of.alive += s->sums.of_component[c * PER_COMPONENT + ABOVE_ZERO] > 0;
  }
  return of;
}

static json_t *active(const showing *s, size_t first, size_t count) {
  activity of = activity_of(s, first, count);
  return json_pack("{s:f, s:f, s:I}", "above_zero", of.above_zero, "above_threshold", of.above_threshold, "alive",
                   (json_int_t)of.alive);
}

static json_t *described(const showing *s, size_t component, size_t first) {
  return json_pack("{s:I, s:f, s:f}", "component", (json_int_t)(component - first), "importance",
                   importance_of(s, component), "frequency", mean_of(s, component, ABOVE_ZERO));
}

static json_t *site_document(const showing *s, size_t site) {
  const ad_site *of = &s->d->sites[site];
  size_t used[USED], first = (size_t)ad_components_in(s->d, 0, site),
                     count = most_of(s, site, importance_of, USED, used);
  json_t *list = json_array();
  for (size_t i = 0; i < count; i++) json_array_append_new(list, described(s, used[i], first));
  return json_pack("{s:s, s:I, s:I, s:I, s:f, s:o, s:o}", "name", of->name, "in", (json_int_t)of->in, "out",
                   (json_int_t)of->out, "components", (json_int_t)of->components, "relative_error",
                   sqrt(s->sums.errors[site] / s->sums.sizes[site]), "active", active(s, first, (size_t)of->components),
                   "used", list);
}

static json_t *site_documents(const showing *s) {
  json_t *list = json_array();
  for (size_t site = 0; site < s->d->site_count; site++) json_array_append_new(list, site_document(s, site));
  return list;
}

/* A sample's numbers as integers, `factor` of them to 1. */
static json_t *integers(const double *from, int64_t count, double factor) {
  json_t *list = json_array();
  for (int64_t i = 0; i < count; i++) json_array_append_new(list, json_integer((json_int_t)lround(factor * from[i])));
  return list;
}

static json_t *sample_lists(const showing *s, const double *from, double factor) {
  json_t *list = json_array();
  for (int64_t i = 0; i < s->shown.samples; i++)
    json_array_append_new(list, integers(from + i * seq_of(s->d), seq_of(s->d), factor));
  return list;
}

static size_t site_of(const showing *s, size_t component) {
  size_t site = 0;
  while (component >= (size_t)ad_components_in(s->d, 0, site + 1)) site++;
  return site;
}

static json_t *shown_documents(const showing *s) {
  json_t *list = json_array();
  for (size_t i = 0; i < s->shown.count; i++) {
    size_t component = s->shown.component[i], site = site_of(s, component);
    json_t *one = described(s, component, (size_t)ad_components_in(s->d, 0, site));
    const double *values = s->shown.values + i * (size_t)(s->shown.samples * seq_of(s->d));
    json_object_set_new(one, "site", json_string(s->d->sites[site].name));
    json_object_set_new(one, "hundredths", sample_lists(s, values, 100));
    json_array_append_new(list, one);
  }
  return list;
}

static double relative_error(const showing *s) {
  double errors = 0, sizes = 0;
  for (size_t site = 0; site < s->d->site_count; site++) {
    errors += s->sums.errors[site];
    sizes += s->sums.sizes[site];
  }
  return sqrt(errors / sizes);
}

static json_t *line(const char *format, ...) AD_PRINTF(1, 2);
static json_t *line(const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return json_string(text);
}

/* What a person reads at the end of a training. */
static json_t *summary(const showing *s) {
  activity of = activity_of(s, 0, (size_t)s->d->components);
  const double *sum = s->sums.entropy;
  json_t *list = json_array();
  json_array_append_new(list,
                        line("held-out cross-entropy: target %.4f, masked by importances %.4f, as many random "
                             "components %.4f",
                             per_counted(s, sum[TARGET]), per_counted(s, sum[MASKED]), per_counted(s, sum[RANDOM])));
  json_array_append_new(
      list, line("active components per position: %.1f of %lld, %.1f above %g; %lld are needed "
                 "anywhere",
                 of.above_zero, (long long)s->d->components, of.above_threshold, threshold, (long long)of.alive));
  json_array_append_new(list, line("||W - V U|| / ||W||: %.4f over %zu matrices", relative_error(s), s->d->site_count));
  return list;
}

static char *document_of(const showing *s) {
  json_t *document =
      json_pack("{s:o, s:I, s:I, s:I, s:f, s:o, s:o, s:o, s:f, s:o, s:o, s:o}", "summary", summary(s), "positions",
                (json_int_t)*s->sums.positions, "counted", (json_int_t)*s->sums.counted, "components",
                (json_int_t)s->d->components, "threshold", threshold, "active", active(s, 0, (size_t)s->d->components),
                "cross_entropy", entropies(s), "divergence", divergences(s), "relative_error", relative_error(s),
                "sites", site_documents(s), "texts", sample_lists(s, s->shown.tokens, 1), "shown", shown_documents(s));
  char *text = document ? json_dumps(document, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
  json_decref(document);
  return text;
}

/* ---- the whole ---- */

static double *piece(double **at, size_t count) {
  double *begin = *at;
  *at += count;
  return begin;
}

static ad_status open_tallies(tallies *to, size_t sites, size_t components) {
  to->count = 2 + 2 * PASSES + AD_VOCABULARY_BYTES + 2 * sites + PER_COMPONENT * components;
  AD_TRY(ad_new(to->count, &to->all));
  double *at = to->all;
  to->positions = piece(&at, 1);
  to->counted = piece(&at, 1);
  to->entropy = piece(&at, PASSES);
  to->divergence = piece(&at, PASSES);
  to->bytes = piece(&at, AD_VOCABULARY_BYTES);
  to->errors = piece(&at, sites);
  to->sizes = piece(&at, sites);
  to->of_component = piece(&at, PER_COMPONENT * components);
  return AD_OK;
}

static ad_status show_all(showing *s, char **out) {
  AD_TRY(open_tallies(&s->sums, s->d->site_count, (size_t)s->d->components));
  AD_TRY(measure_all(s));
  AD_TRY(keep_shown(s));
  if (ad_comm_rank(s->comm)) return AD_OK;
  *out = document_of(s);
  return *out ? AD_OK : ad_fail(AD_MEMORY, "no memory for what the decomposition found");
}

static void close_showing(showing *s) {
  ad_random_components_release(&s->random);
  if (s->tape) ad_tape_destroy(s->tape);
  ad_release(s->mask);
  ad_release(s->sums.all);
  ad_release(s->shown.component);
  ad_release(s->shown.all);
}

ad_status ad_decompose_show(void *own, const ad_forward *forward, char **out) {
  ad_decomposition *d = own;
  if (!(d->options->target.decoder.data.held_out > 0)) return AD_OK;
  showing s = {.d = d,
               .forward = forward,
               .comm = (ad_comm *)(uintptr_t)d->setting.comm,
               .part = &d->parts[ad_module_of_adv(d)]};
  ad_status status = show_all(&s, out);
  close_showing(&s);
  return status;
}
