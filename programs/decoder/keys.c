/* The recipe keys that all decoders have, and the checks of their values against each other and the mesh. */
#include "decoder/keys.h"
#include "decoder/options.h"

#include <stdio.h>
#include <string.h>

int64_t ad_decoder_kv_heads(const ad_decoder_options *options) {
  return options->kv_heads ? options->kv_heads : options->heads;
}

int64_t ad_decoder_head_dim(const ad_decoder_options *options) {
  return options->head_dim ? options->head_dim : options->d_model / options->heads;
}

int64_t ad_decoder_vocabulary(const ad_decoder_options *options) {
  return options->vocabulary ? options->vocabulary : AD_VOCABULARY_BYTES;
}

int64_t ad_decoder_usual(const void *options, const char *key) {
  if (!strcmp(key, "model.kv_heads")) return ad_decoder_kv_heads(options);
  return strcmp(key, "model.head_dim") ? 0 : ad_decoder_head_dim(options);
}

ad_rotary_scaling ad_decoder_rotary_scaling(const ad_decoder_options *options) {
  const double *n = options->rotary_scaling;
  if (!options->rotary_scaling_count) return (ad_rotary_scaling){0};
  return (ad_rotary_scaling){.factor = n[0], .low_turns = n[1], .high_turns = n[2], .original_positions = n[3]};
}

const char *const ad_bias_words[] = {"none", "qkv", "attention", "mlp", "all", NULL};
const char *const ad_attention_bias_words[] = {"none", "qkv", "attention", NULL};

/* Writes the two multiples of `size` nearest to `at` ("24 or 32") and returns `buffer`. */
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
  int width_fits = options->head_dim || (options->d_model % heads == 0 && options->d_model / heads % 2 == 0);
  return width_fits && heads % tp == 0 && kv_heads_fit;
}

/* Returns the largest number of heads that must be tried: if no number up to this one fits tp, no larger one does. */
static long long most_heads(const ad_decoder_options *options, long long tp) {
  long long kv_heads = options->kv_heads < 1 ? 1 : options->kv_heads;
  return options->head_dim ? options->heads + tp * kv_heads : options->d_model;
}

/* Writes the numbers of heads nearest to the given one that fit tp and (without head_dim) d_model: "set model.heads to 4
 * or 8". If no number fits, writes what else to change. Returns `buffer`. */
static const char *fitting_heads(const ad_decoder_options *options, long long tp, char *buffer, size_t size) {
  long long below = options->heads;
  while (below > 0 && !heads_fit(options, below, tp)) below--;
  long long above = options->heads + 1;
  long long most = most_heads(options, tp);
  while (above <= most && !heads_fit(options, above, tp)) above++;
  if (above > most) above = 0;
  if (below && above)
    snprintf(buffer, size, "set model.heads to %lld or %lld", below, above);
  else if (below || above)
    snprintf(buffer, size, "set model.heads to %lld", below ? below : above);
  else
    snprintf(buffer, size, "no number of heads fits model.d_model %lld; set model.d_model to a multiple of %lld",
             (long long)options->d_model, 2 * tp);
  return buffer;
}

/* Writes the divisors of n nearest to `at` ("set model.kv_heads to 4 or 6") and returns `buffer`. */
static const char *nearest_divisors(long long n, long long at, char *buffer, size_t size) {
  long long below = at < n ? at : n;
  while (below > 1 && n % below) below--;
  long long above = below + 1;
  while (above < n && n % above) above++;
  if (at > n || n % above)
    snprintf(buffer, size, "set model.kv_heads to %lld", below);
  else
    snprintf(buffer, size, "set model.kv_heads to %lld or %lld", below, above);
  return buffer;
}

/* If head_dim is not given, checks that d_model / heads can be a head's width. */
static void check_width(const ad_decoder_options *options, const ad_complaints *to) {
  char fits[128];
  long long d_model = options->d_model, heads = options->heads;
  if (d_model % heads)
    ad_complain(to, "model.heads", "must divide model.d_model, but %lld is not a multiple of %lld; %s", d_model, heads,
                fitting_heads(options, 1, fits, sizeof fits));
  else if (d_model / heads % 2)
    ad_complain(
        to, "model.heads",
        "must give each head an even width, because positions rotate pairs of elements, but %lld / %lld is %lld; %s",
        d_model, heads, d_model / heads, fitting_heads(options, 1, fits, sizeof fits));
}

static void check_heads(const ad_decoder_options *options, const ad_complaints *to) {
  char fits[128];
  long long heads = options->heads, kv_heads = options->kv_heads, head_dim = options->head_dim;
  if (options->d_model < 1 || heads < 1) return;
  if (!head_dim) check_width(options, to);
  if (head_dim > 0 && head_dim % 2)
    ad_complain(
        to, "model.head_dim",
        "must be even, because positions rotate pairs of elements, but is %lld; set model.head_dim to %lld or %lld",
        head_dim, head_dim > 1 ? head_dim - 1 : head_dim + 1, head_dim > 1 ? head_dim + 1 : head_dim + 3);
  if (kv_heads > 0 && heads % kv_heads)
    ad_complain(to, "model.kv_heads", "must divide model.heads, but %lld is not a multiple of %lld; %s", heads,
                kv_heads, nearest_divisors(heads, kv_heads, fits, sizeof fits));
}

static void check_rotary_scaling(const ad_decoder_options *options, const ad_complaints *to) {
  const double *n = options->rotary_scaling;
  if (!options->rotary_scaling_count) return;
  if (options->rotary_scaling_count != 4)
    ad_complain(
        to, "model.rotary_scaling",
        "must be four numbers, [factor, low_freq_factor, high_freq_factor, original_positions], but has %zu numbers",
        options->rotary_scaling_count);
  else if (n[2] <= n[1])
    ad_complain(to, "model.rotary_scaling",
                "high_freq_factor (number 3) must be above low_freq_factor (number 2), but high_freq_factor is %.15g "
                "and low_freq_factor %.15g",
                n[2], n[1]);
}

/* Checks that tp divides the heads, and that every rank of tp gets a part of the vocabulary. The parts of the
 * vocabulary may differ in size. */
static void check_tensor_axis(const ad_decoder_options *options, long long tp, const ad_complaints *to) {
  char fits[128];
  if (options->heads >= 1 && options->d_model >= 1 && options->heads % tp)
    ad_complain(to, "model.heads", "tp=%lld shards the heads evenly, but %lld heads are not a multiple of tp; %s", tp,
                (long long)options->heads, fitting_heads(options, tp, fits, sizeof fits));
  long long vocabulary = ad_decoder_vocabulary(options);
  if (vocabulary < tp)
    ad_complain(to, "mesh", "tp=%lld shards the vocabulary, which has only %lld tokens; set tp to at most %lld", tp,
                vocabulary, vocabulary);
}

static void check_bytes(const ad_decoder_options *options, const ad_complaints *to) {
  if (ad_decoder_vocabulary(options) < AD_VOCABULARY_BYTES)
    ad_complain(to, "model.vocabulary",
                "is %lld, but the tokens of data.text are bytes; set model.vocabulary to at least %d",
                (long long)options->vocabulary, AD_VOCABULARY_BYTES);
}

static void check_short_sequence(const ad_decoder_options *options, long long tp, const ad_complaints *to) {
  if (options->sequence_parallel && options->data.seq < tp)
    ad_complain(to, "data.seq",
                "tp=%lld shards the sequence with sequence_parallel, but the sequence has only %lld tokens; set "
                "data.seq to at least %lld",
                tp, (long long)options->data.seq, tp);
}

static void check_sequence_axis(const ad_decoder_options *options, long long cp, const ad_complaints *to) {
  char fits[64];
  if (options->data.seq >= 1 && options->data.seq % (2 * cp))
    ad_complain(to, "data.seq",
                "cp=%lld shards the sequence into %lld chunks, but %lld tokens are not a multiple of the number of "
                "chunks; set data.seq to %s",
                cp, 2 * cp, (long long)options->data.seq, neighbours(options->data.seq, 2 * cp, fits, sizeof fits));
}

/* Complains about each axis of the mesh that decoders do not use. */
void ad_decoder_check_axes(const char *kind, const char *key, const ad_mesh *mesh, const ad_complaints *to) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    int64_t size = ad_mesh_axis_size(mesh, (ad_axis)axis);
    if (size > 1 && !(AD_AXES(axis) & (AD_AXES_DP | AD_AXES(AD_CP) | AD_AXES(AD_TP))))
      ad_complain(to, key,
                  "%s=%lld is not available for programs of kind %s; use the axes dp_replicate, dp_shard, cp and tp",
                  ad_axis_name((ad_axis)axis), (long long)size, kind);
  }
}

/* Checks the recipe's list of layers per stage: it must have one number for each stage, and their sum must be
 * `layers`. */
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
                "must have one number for each stage, but has %lld numbers for %lld stages; without this key the "
                "layers are divided by their cost",
                given, stages);
  else if (sum != options->layers || least < 0)
    ad_complain(to, "schedule.layers",
                "must be numbers of at least 0 whose sum is model.layers, but the sum is %lld and model.layers is %lld",
                sum, (long long)options->layers);
}

void ad_decoder_check(const char *kind, const char *key, const ad_decoder_options *options, const ad_mesh *mesh,
                      const ad_complaints *to) {
  int64_t tp = ad_mesh_axis_size(mesh, AD_TP);
  check_heads(options, to);
  check_rotary_scaling(options, to);
  ad_decoder_check_axes(kind, key, mesh, to);
  if (tp > 1) check_tensor_axis(options, tp, to);
}

void ad_decoder_check_text(const ad_decoder_options *options, const ad_mesh *mesh, const ad_complaints *to) {
  int64_t tp = ad_mesh_axis_size(mesh, AD_TP), cp = ad_mesh_axis_size(mesh, AD_CP);
  ad_text_check(&options->data, to);
  if (!options->data.token_count) check_bytes(options, to);
  if (tp > 1) check_short_sequence(options, tp, to);
  if (cp > 1) check_sequence_axis(options, cp, to);
}

void ad_text_decoder_check(const char *kind, const void *options, const ad_program_setting *setting,
                           const ad_mesh *mesh, const ad_complaints *to) {
  ad_decoder_check(kind, "mesh", options, mesh, to);
  ad_decoder_check_stages(options, setting, to);
  ad_decoder_check_text(options, mesh, to);
}

void ad_text_decoder_check_files(const void *options, const ad_complaints *to) {
  const ad_decoder_options *decoder = options;
  ad_text_check_files(&decoder->data, ad_decoder_vocabulary(decoder), to);
}
