/* The `model` keys of gpt, and what they say together and with the mesh. */
#include "program/gpt_keys.h"

#include <stdio.h>

#define AT(field) offsetof(ad_gpt_options, field)

const ad_key ad_gpt_keys[AD_GPT_KEY_COUNT] = {
    {"model.layers", AD_KEY_INTEGER, .offset = AT(layers), .least = 1, .most = 4096,
     .help = "blocks of attention and MLP"},
    {"model.d_model", AD_KEY_INTEGER, .offset = AT(d_model), .least = 1, .most = 1 << 20, .help = "width of a token"},
    {"model.heads", AD_KEY_INTEGER, .offset = AT(heads), .least = 1, .most = 1 << 20,
     .help = "attention heads; they divide d_model into even parts"},
    {"model.d_hidden", AD_KEY_INTEGER, .offset = AT(d_hidden), .least = 0, .most = 1 << 22, .fallback = "0",
     .help = "width inside the MLP; 0: 8/3 d_model, rounded up to a multiple of 16"},
    {"model.tied", AD_KEY_BOOLEAN, .offset = AT(tied), .fallback = "true", .help = "the head is the embedding"},
    {"model.rotary_base", AD_KEY_NUMBER, .offset = AT(rotary_base), .least = 1, .most = 1e12, .open_least = 1,
     .fallback = "10000", .help = "slowest rotation of the positions"},
    {"model.kv_heads", AD_KEY_INTEGER, .offset = AT(kv_heads), .least = 0, .most = 1 << 20, .fallback = "0",
     .help = "heads of keys and values, a divisor of heads; 0: as many as heads"},
    {"model.qk_norm", AD_KEY_BOOLEAN, .offset = AT(qk_norm), .fallback = "false",
     .help = "queries and keys are normalised head by head"},
    {"model.bias", AD_KEY_BOOLEAN, .offset = AT(bias), .fallback = "false",
     .help = "the products of attention and MLP have biases"},
    {"model.sequence_parallel", AD_KEY_BOOLEAN, .offset = AT(sequence_parallel), .fallback = "false",
     .help = "between the regions of tp the sequence is cut over it"},
    {"model.convert_norms", AD_KEY_BOOLEAN, .offset = AT(convert_norms), .fallback = "false",
     .help =
         "with sequence_parallel: norm weights are converted I->R at each use, instead of R and summed by the reducer"},
    {"model.gather_keys", AD_KEY_BOOLEAN, .offset = AT(gather_keys), .fallback = "false",
     .help = "over cp keys and values are gathered, for comparison, instead of passed around a ring"},
    AD_TEXT_KEYS(ad_gpt_options, data)};

int64_t ad_gpt_hidden(const ad_gpt_options *options) {
  return options->d_hidden ? options->d_hidden : ((8 * options->d_model + 2) / 3 + 15) / 16 * 16;
}

int64_t ad_gpt_kv_heads(const ad_gpt_options *options) {
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

static int heads_fit(const ad_gpt_options *options, long long heads, long long tp) {
  int kv_heads_fit = options->kv_heads < 1 || options->heads % options->kv_heads || heads % options->kv_heads == 0;
  return heads >= 1 && options->d_model % heads == 0 && options->d_model / heads % 2 == 0 && heads % tp == 0 &&
         kv_heads_fit;
}

/* The nearest numbers of heads that fit d_model and tp: "4 or 8", or what to change where none does. */
static const char *fitting_heads(const ad_gpt_options *options, long long tp, char *buffer, size_t size) {
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

static void check_heads(const ad_gpt_options *options, const ad_complaints *to) {
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

/* Heads are cut whole and evenly; vocabulary and d_hidden may be uneven, but no rank may be without any. */
static void check_tensor_axis(const ad_gpt_options *options, long long tp, const ad_complaints *to) {
  char fits[128];
  long long hidden = ad_gpt_hidden(options);
  if (options->heads >= 1 && options->d_model >= 1 && options->heads % tp)
    ad_complain(to, "model.heads", "tp=%lld cuts them, and %lld is no multiple of that; %s", tp,
                (long long)options->heads, fitting_heads(options, tp, fits, sizeof fits));
  if (hidden < tp)
    ad_complain(to, "model.d_hidden", "tp=%lld cuts the MLP, but it is %lld wide; at least %lld", tp, hidden, tp);
  if (AD_VOCABULARY_BYTES < tp)
    ad_complain(to, "mesh", "tp=%lld cuts the vocabulary, which has %d bytes; at most %d", tp, AD_VOCABULARY_BYTES,
                AD_VOCABULARY_BYTES);
  if (options->sequence_parallel && options->data.seq < tp)
    ad_complain(to, "data.seq",
                "tp=%lld cuts the sequence with sequence_parallel, but it has %lld tokens; at least %lld", tp,
                (long long)options->data.seq, tp);
}

static void check_sequence_axis(const ad_gpt_options *options, long long cp, const ad_complaints *to) {
  char fits[64];
  if (options->data.seq >= 1 && options->data.seq % (2 * cp))
    ad_complain(to, "data.seq",
                "cp=%lld cuts the sequence into %lld chunks, and %lld is no multiple of that; %s would be", cp, 2 * cp,
                (long long)options->data.seq, neighbours(options->data.seq, 2 * cp, fits, sizeof fits));
}

/* Goes, axis by axis, with what gpt learns to be distributed over. */
static void check_axes(const ad_mesh *mesh, const ad_complaints *to) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    int64_t size = ad_mesh_axis_size(mesh, (ad_axis)axis);
    if (size > 1 && !(AD_AXES(axis) & (AD_AXES_DP | AD_AXES(AD_CP) | AD_AXES(AD_TP))))
      ad_complain(to, "mesh", "%s=%lld is not available for gpt: it trains on dp_replicate, dp_shard, cp and tp",
                  ad_axis_name((ad_axis)axis), (long long)size);
  }
}

void ad_gpt_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to) {
  check_heads(options, to);
  check_axes(meshes[0], to);
  int64_t tp = ad_mesh_axis_size(meshes[0], AD_TP), cp = ad_mesh_axis_size(meshes[0], AD_CP);
  if (tp > 1) check_tensor_axis(options, tp, to);
  if (cp > 1) check_sequence_axis(options, cp, to);
}

void ad_gpt_check_files(const void *options, const ad_complaints *to) {
  ad_text_check_files(&((const ad_gpt_options *)options)->data, to);
}
