/* The table of all keys of a recipe, and finding one in it, also by a wrong name. */
#include "recipe/schema.h"

#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(ad_recipe, field)
#define WHOLE 9007199254740992.0 /* 2^53 */

const char *const ad_sync_names[] = {[AD_SYNC_NONE] = "none", [AD_SYNC_SHARD] = "shard", [AD_SYNC_ALL] = "all"};

static const ad_key keys[] = {
    {"name", AD_KEY_TEXT, .offset = AT(name), .fallback = "",
     .help = "names the folder runs/NAME; left out: the file's name"},

    {"model.kind", AD_KEY_TEXT, .offset = AT(model.kind), .help = "gpt"},
    {"model.layers", AD_KEY_INTEGER, .offset = AT(model.layers), .least = 1, .most = 4096,
     .help = "blocks of attention and MLP"},
    {"model.d_model", AD_KEY_INTEGER, .offset = AT(model.d_model), .least = 1, .most = 1 << 20,
     .help = "width of a token"},
    {"model.heads", AD_KEY_INTEGER, .offset = AT(model.heads), .least = 1, .most = 1 << 20,
     .help = "attention heads; they divide d_model into even parts"},
    {"model.d_hidden", AD_KEY_INTEGER, .offset = AT(model.d_hidden), .least = 0, .most = 1 << 22, .fallback = "0",
     .help = "width inside the MLP; 0: 8/3 d_model, rounded up to a multiple of 16"},
    {"model.tied", AD_KEY_BOOLEAN, .offset = AT(model.tied), .fallback = "true", .help = "the head is the embedding"},
    {"model.rotary_base", AD_KEY_NUMBER, .offset = AT(model.rotary_base), .least = 1, .most = 1e12, .open_least = 1,
     .fallback = "10000", .help = "slowest rotation of the positions"},
    {"model.weights", AD_KEY_TEXT, .offset = AT(model.weights), .fallback = "",
     .help = "a safetensors file with the initial values of all parameters; left out: drawn from the seed"},

    {"data.text", AD_KEY_TEXT, .list = 1, .offset = AT(data.text), .second = AT(data.text_count),
     .help = "files, or folders of files"},
    {"data.seq", AD_KEY_INTEGER, .offset = AT(data.seq), .least = 1, .most = 1 << 24,
     .help = "tokens of a sample; a token is a byte"},
    {"data.valid", AD_KEY_NUMBER, .list = 1, .offset = AT(data.valid), .second = AT(data.valid_count), .least = 0,
     .most = 1, .fallback = "", .help = "fraction of each sample's tokens that count, cyclic by sample; empty: all"},
    {"data.held_out", AD_KEY_NUMBER, .offset = AT(data.held_out), .least = 0, .most = 1, .open_most = 1,
     .fallback = "0", .help = "fraction at the end of every file that is kept for validation"},

    {"mesh", AD_KEY_TEXT, .offset = AT(mesh), .help = "axes and sizes, such as \"dp_replicate=2 dp_shard=2\""},
    {"views", AD_KEY_LATER, .help = "other factorisations of the mesh"},
    {"placement", AD_KEY_LATER, .help = "of several modules"},
    {"losses", AD_KEY_LATER, .help = "of pools"},
    {"sites", AD_KEY_LATER, .help = "of pools"},
    {"ascent", AD_KEY_LATER, .help = "of pools"},
    {"wire", AD_KEY_LATER, .help = "of pools"},

    {"precision.param", AD_KEY_DTYPE, .offset = AT(precision.contract.param), .fallback = "f32",
     .help = "storage of the parameters"},
    {"precision.grad", AD_KEY_GRADIENT, .offset = AT(precision.contract.grad), .second = AT(precision.contract.raw),
     .word = "param", .fallback = "param",
     .help = "of a gradient before it is reduced: param (as the parameter), raw (as it comes) or a dtype"},
    {"precision.reduce", AD_KEY_DTYPE, .offset = AT(precision.contract.reduce), .word = "grad", .fallback = "grad",
     .help = "of a gradient on its way between ranks: grad (as the gradient) or a dtype"},
    {"precision.accumulate", AD_KEY_DTYPE, .offset = AT(precision.contract.accumulate), .word = "auto",
     .fallback = "auto", .help = "in which sums form: auto (f64 for f64, f32 for others) or a dtype"},
    {"precision.compute", AD_KEY_DTYPE, .offset = AT(precision.compute), .fallback = "f32",
     .help = "of activations: f32 or f64"},
    {"precision.loss_scale", AD_KEY_INTEGER, .offset = AT(precision.loss_scale), .least = -24, .most = 24,
     .fallback = "10",
     .help = "where gradients are f16: the loss is first multiplied by 2 to this power, which adapts"},
    {"precision.overrides", AD_KEY_OVERRIDES, .offset = AT(precision.overrides), .second = AT(precision.override_count),
     .fallback = "", .help = "the same keys for parameters whose name matches a pattern"},

    {"shard.zero", AD_KEY_INTEGER, .offset = AT(shard.zero), .least = 0, .most = 3, .fallback = "0",
     .help = "what is cut over dp_shard: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too"},
    {"shard.bucket_mib", AD_KEY_NUMBER, .offset = AT(shard.bucket_mib), .least = 0, .most = 65536, .open_least = 1,
     .fallback = "25", .help = "gradients that are reduced together, in MiB"},
    {"shard.prefetch", AD_KEY_INTEGER, .offset = AT(shard.prefetch), .least = 0, .most = 4096, .fallback = "1",
     .help = "layers whose parameters are gathered ahead"},

    {"train.global_batch", AD_KEY_INTEGER, .offset = AT(train.global_batch), .least = 1, .most = 1 << 24,
     .help = "samples of a step, over all ranks and microbatches"},
    {"train.microbatches", AD_KEY_INTEGER, .offset = AT(train.microbatches), .least = 1, .most = AD_MICROBATCHES_MAX,
     .fallback = "1", .help = "parts in which a step is computed"},
    {"train.steps", AD_KEY_INTEGER, .offset = AT(train.steps), .least = 1, .most = 4294967296.0,
     .help = "updates of the parameters"},
    {"train.lr", AD_KEY_NUMBER, .offset = AT(train.lr), .least = 0, .most = 1e6, .help = "learning rate after warm-up"},
    {"train.warmup", AD_KEY_INTEGER, .offset = AT(train.warmup), .least = 0, .most = 4294967296.0, .fallback = "0",
     .help = "steps in which the rate rises to lr; a cosine then brings it down"},
    {"train.final_lr_fraction", AD_KEY_NUMBER, .offset = AT(train.final_lr_fraction), .least = 0, .most = 1,
     .fallback = "0.1", .help = "of lr, at the last step"},
    {"train.clip", AD_KEY_NUMBER, .offset = AT(train.clip), .least = 0, .most = 1e300, .fallback = "1",
     .help = "largest norm of the whole gradient; 0: any"},
    {"train.beta1", AD_KEY_NUMBER, .offset = AT(train.beta1), .least = 0, .most = 1, .open_least = 1, .open_most = 1,
     .fallback = "0.9", .help = "memory of AdamW's first moment"},
    {"train.beta2", AD_KEY_NUMBER, .offset = AT(train.beta2), .least = 0, .most = 1, .open_least = 1, .open_most = 1,
     .fallback = "0.95", .help = "memory of AdamW's second moment"},
    {"train.epsilon", AD_KEY_NUMBER, .offset = AT(train.epsilon), .least = 0, .most = 1, .open_least = 1,
     .fallback = "1e-8", .help = "AdamW's guard against division by zero"},
    {"train.weight_decay", AD_KEY_NUMBER, .offset = AT(train.weight_decay), .least = 0, .most = 1e3, .fallback = "0",
     .help = "of matrices, as a fraction per unit of learning rate"},
    {"train.seed", AD_KEY_INTEGER, .offset = AT(train.seed), .least = 0, .most = WHOLE, .fallback = "1",
     .help = "of initial values and samples"},
    {"train.sync", AD_KEY_SYNC, .list = 1, .offset = AT(train.sync), .second = AT(train.sync_count), .fallback = "",
     .help = "none, shard or all for each microbatch, the last all; left out: before the last none, with zero 2 or 3 "
             "shard"},

    {"checkpoint.every", AD_KEY_INTEGER, .offset = AT(checkpoint.every), .least = 0, .most = 4294967296.0,
     .fallback = "0", .help = "steps between checkpoints; there is one at the end and on Ctrl-C too; 0: none"},
    {"checkpoint.keep", AD_KEY_INTEGER, .offset = AT(checkpoint.keep), .least = 1, .most = 50, .fallback = "2",
     .help = "complete checkpoints that stay; older ones are removed"},
};
enum { KEY_COUNT = sizeof keys / sizeof *keys };
_Static_assert((int)KEY_COUNT <= (int)AD_KEYS_MAX, "AD_KEYS_MAX is too small");

const ad_key *ad_schema(size_t *count) {
  *count = KEY_COUNT;
  return keys;
}

const ad_key *ad_schema_find(const char *path) {
  for (size_t i = 0; i < KEY_COUNT; i++)
    if (!strcmp(keys[i].path, path)) return &keys[i];
  return NULL;
}

int ad_schema_is_section(const char *path) {
  size_t length = strlen(path);
  for (size_t i = 0; i < KEY_COUNT; i++)
    if (!strncmp(keys[i].path, path, length) && keys[i].path[length] == '.') return 1;
  return 0;
}

int ad_key_is_contract(const ad_key *key) {
  size_t first = AT(precision.contract);
  return key->offset >= first && key->offset < first + sizeof(ad_contract);
}

const char *ad_key_name(const ad_key *key) {
  const char *dot = strrchr(key->path, '.');
  return dot ? dot + 1 : key->path;
}

size_t ad_key_element_size(const ad_key *key) {
  switch (key->kind) {
    case AD_KEY_NUMBER:
      return sizeof(double);
    case AD_KEY_TEXT:
      return sizeof(char *);
    default:
      return sizeof(ad_sync);
  }
}

void ad_path_add(ad_text *path, const char *name) {
  const char *quote = strchr(name, '.') ? "\"" : "";
  ad_text_add(path, "%s%s%s%s", path->used ? "." : "", quote, name, quote);
}

/* ---- wrong names ---- */

enum { NAME_MAX_COMPARED = 32 };

static int least_of(int a, int b, int c) {
  int least = a < b ? a : b;
  return least < c ? least : c;
}

/* Letters to insert, remove, change or swap with their neighbour (optimal string alignment). */
static int edit_distance(const char *a, const char *b) {
  int rows = (int)strlen(a), columns = (int)strlen(b);
  int distance[NAME_MAX_COMPARED + 1][NAME_MAX_COMPARED + 1];
  if (rows > NAME_MAX_COMPARED || columns > NAME_MAX_COMPARED) return NAME_MAX_COMPARED;
  for (int i = 0; i <= rows; i++) distance[i][0] = i;
  for (int j = 0; j <= columns; j++) distance[0][j] = j;
  for (int i = 1; i <= rows; i++) {
    for (int j = 1; j <= columns; j++) {
      int changed = distance[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      distance[i][j] = least_of(distance[i - 1][j] + 1, distance[i][j - 1] + 1, changed);
      int swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped && distance[i - 2][j - 2] + 1 < distance[i][j]) distance[i][j] = distance[i - 2][j - 2] + 1;
    }
  }
  return distance[rows][columns];
}

/* Part `level` (0: the section, 1: the key in it) of a path; "" if it has none. */
static void part_of(const char *path, int level, char out[NAME_MAX_COMPARED]) {
  const char *dot = strchr(path, '.');
  size_t length = dot ? (size_t)(dot - path) : strlen(path);
  if (level)
    snprintf(out, NAME_MAX_COMPARED, "%s", dot ? dot + 1 : "");
  else
    snprintf(out, NAME_MAX_COMPARED, "%.*s", (int)length, path);
}

typedef struct guess {
  char path[2 * NAME_MAX_COMPARED];
  int cost;
} guess;

static void consider(guess *best, const char *path, int cost) {
  if (cost >= best->cost) return;
  snprintf(best->path, sizeof best->path, "%s", path);
  best->cost = cost;
}

/* The nearest name: in the same section, of a section, or, at the price of a letter, in another section. */
static guess nearest(const char *section, const char *unknown) {
  guess best = {"", strlen(unknown) <= 4 ? 2 : 3};
  for (size_t i = 0; i < KEY_COUNT; i++) {
    char outer[NAME_MAX_COMPARED], inner[NAME_MAX_COMPARED];
    part_of(keys[i].path, 0, outer);
    part_of(keys[i].path, 1, inner);
    int here = !strcmp(*inner ? outer : "", section);
    consider(&best, keys[i].path, edit_distance(*inner ? inner : outer, unknown) + !here);
    if (!*section) consider(&best, outer, edit_distance(outer, unknown));
  }
  return best;
}

static void list_known(const char *section, ad_text *out) {
  char outer[NAME_MAX_COMPARED], inner[NAME_MAX_COMPARED], before[NAME_MAX_COMPARED] = "";
  ad_text_add(out, "known here are");
  const char *comma = " ";
  for (size_t i = 0; i < KEY_COUNT; i++) {
    part_of(keys[i].path, 0, outer);
    part_of(keys[i].path, 1, inner);
    const char *name = *section ? inner : outer;
    if (keys[i].kind == AD_KEY_LATER || (*section && strcmp(outer, section) != 0) || !strcmp(name, before)) continue;
    ad_text_add(out, "%s%s", comma, name);
    comma = ", ";
    snprintf(before, sizeof before, "%s", name);
  }
}

void ad_schema_suggest(const char *section, const char *unknown, ad_text *out) {
  if (strchr(unknown, '.') && ad_schema_find(unknown)) {
    ad_text_add(out, "write %s below %.*s:", strchr(unknown, '.') + 1, (int)strcspn(unknown, "."), unknown);
    return;
  }
  guess best = nearest(section, unknown);
  if (*best.path)
    ad_text_add(out, "did you mean %s?", best.path);
  else
    list_known(section, out);
}
