/* The recipe keys that all decoders have, and what they say together and with the mesh. */
#include "program/decoder/keys.h"
#include "program/decoder/options.h"

#include <stdio.h>

int64_t ad_decoder_vocabulary(const ad_decoder_options *options) { return AD_VOCABULARY_BYTES; }

int64_t ad_decoder_kv_heads(const ad_decoder_options *options) {
  return options->kv_heads ? options->kv_heads : options->heads;
}

/* The numbers around `at` that `size` divides: "24 or 32". */
static const char *neighbours(long long at, long long size, char *buffer, size_t buffer_size) {
  long long below = at / size * size, above = below + size;
  if (below)
    snprintf(buffer, buffer_size, "%lld or %lld", below, above);
  else
    snprintf(buffer, buffer_size, "%lld", above);
  return buffer;
}

static int heads_fit(const ad_decoder_options *options, long long heads, long long tp) {
  int kv_heads_fit = options->kv_heads < 1 || options->heads % options->kv_heads || heads % options->kv_heads == 0;
  return heads >= 1 && options->d_model % heads == 0 && options->d_model / heads % 2 == 0 && heads % tp == 0 &&
         kv_heads_fit;
}

/* The nearest numbers of heads that fit d_model and tp: "4 or 8", or what to change where none does. */
static const char *fitting_heads(const ad_decoder_options *options, long long tp, char *buffer, size_t size) {
  long long below = options->heads;
  while (below > 0 && !heads_fit(options, below, tp)) below--;
  long long above = options->heads + 1;
  while (above <= options->d_model && !heads_fit(options, above, tp)) above++;
  if (above > options->d_model) above = 0;
  if (below && above)
    snprintf(buffer, size, "%lld or %lld would do", below, above);
  else if (below || above)
    snprintf(buffer, size, "%lld would do", below ? below : above);
  else
    snprintf(buffer, size, "with d_model %lld none would do: make it a multiple of %lld", (long long)options->d_model,
             2 * tp);
  return buffer;
}

/* The nearest divisors of n: "4 or 6 would do". */
static const char *nearest_divisors(long long n, long long at, char *buffer, size_t size) {
  long long below = at < n ? at : n;
  while (below > 1 && n % below) below--;
  long long above = below + 1;
  while (above < n && n % above) above++;
  if (at > n || n % above)
    snprintf(buffer, size, "%lld would do", below);
  else
    snprintf(buffer, size, "%lld or %lld would do", below, above);
  return buffer;
}

static void check_heads(const ad_decoder_options *options, const ad_complaints *to) {
  char fits[128];
  long long d_model = options->d_model, heads = options->heads, kv_heads = options->kv_heads;
  if (d_model < 1 || heads < 1) return;
  if (d_model % heads)
    ad_complain(to, "model.heads", "must divide d_model: %lld is no multiple of %lld; %s", d_model, heads,
                fitting_heads(options, 1, fits, sizeof fits));
  else if (d_model / heads % 2)
    ad_complain(to, "model.heads",
                "must leave each head an even width (positions rotate pairs): %lld / %lld is %lld; %s", d_model, heads,
                d_model / heads, fitting_heads(options, 1, fits, sizeof fits));
  if (kv_heads > 0 && heads % kv_heads)
    ad_complain(to, "model.kv_heads", "must divide heads: %lld is no multiple of %lld; %s", heads, kv_heads,
                nearest_divisors(heads, kv_heads, fits, sizeof fits));
}

/* Heads are cut whole and evenly; the vocabulary may be uneven, but no rank may be without any. */
static void check_tensor_axis(const ad_decoder_options *options, long long tp, const ad_complaints *to) {
  char fits[128];
  if (options->heads >= 1 && options->d_model >= 1 && options->heads % tp)
    ad_complain(to, "model.heads", "tp=%lld cuts them, and %lld is no multiple of that; %s", tp,
                (long long)options->heads, fitting_heads(options, tp, fits, sizeof fits));
  if (AD_VOCABULARY_BYTES < tp)
    ad_complain(to, "mesh", "tp=%lld cuts the vocabulary, which has %d bytes; at most %d", tp, AD_VOCABULARY_BYTES,
                AD_VOCABULARY_BYTES);
}

static void check_short_sequence(const ad_decoder_options *options, long long tp, const ad_complaints *to) {
  if (options->sequence_parallel && options->data.seq < tp)
    ad_complain(to, "data.seq",
                "tp=%lld cuts the sequence with sequence_parallel, but it has %lld tokens; at least %lld", tp,
                (long long)options->data.seq, tp);
}

static void check_sequence_axis(const ad_decoder_options *options, long long cp, const ad_complaints *to) {
  char fits[64];
  if (options->data.seq >= 1 && options->data.seq % (2 * cp))
    ad_complain(to, "data.seq",
                "cp=%lld cuts the sequence into %lld chunks, and %lld is no multiple of that; %s would be", cp, 2 * cp,
                (long long)options->data.seq, neighbours(options->data.seq, 2 * cp, fits, sizeof fits));
}

/* Goes, axis by axis, with what decoders learn to be distributed over. */
void ad_decoder_check_axes(const char *kind, const char *key, const ad_mesh *mesh, const ad_complaints *to) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    int64_t size = ad_mesh_axis_size(mesh, (ad_axis)axis);
    if (size > 1 && !(AD_AXES(axis) & (AD_AXES_DP | AD_AXES(AD_CP) | AD_AXES(AD_TP))))
      ad_complain(to, key, "%s=%lld is not available for %s: it trains on dp_replicate, dp_shard, cp and tp",
                  ad_axis_name((ad_axis)axis), (long long)size, kind);
  }
}

/* Where a list is given: one number for each stage, and all layers together. */
void ad_decoder_check_stages(const ad_decoder_options *options, const ad_program_setting *setting,
                             const ad_complaints *to) {
  long long sum = 0, least = 0, stages = setting->stages, given = (long long)setting->stage_layer_count;
  for (size_t i = 0; i < setting->stage_layer_count; i++) {
    sum += setting->stage_layers[i];
    least = setting->stage_layers[i] < least ? setting->stage_layers[i] : least;
  }
  if (!given || stages < 1 || options->layers < 1) return;
  if (given != stages)
    ad_complain(to, "schedule.layers",
                "must have one number for each stage, has %lld for %lld; leave it out to cut "
                "layers by their cost",
                given, stages);
  else if (sum != options->layers || least < 0)
    ad_complain(to, "schedule.layers", "must be 0 or more and model.layers together, are %lld of %lld", sum,
                (long long)options->layers);
}

void ad_decoder_check(const char *kind, const char *key, const ad_decoder_options *options, const ad_mesh *mesh,
                      const ad_complaints *to) {
  int64_t tp = ad_mesh_axis_size(mesh, AD_TP);
  check_heads(options, to);
  ad_decoder_check_axes(kind, key, mesh, to);
  if (tp > 1) check_tensor_axis(options, tp, to);
}

void ad_decoder_check_text(const ad_decoder_options *options, const ad_mesh *mesh, const ad_complaints *to) {
  int64_t tp = ad_mesh_axis_size(mesh, AD_TP), cp = ad_mesh_axis_size(mesh, AD_CP);
  ad_text_check(&options->data, to);
  if (tp > 1) check_short_sequence(options, tp, to);
  if (cp > 1) check_sequence_axis(options, cp, to);
}
