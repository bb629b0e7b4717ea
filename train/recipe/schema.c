/* The keys of a recipe: the common keys, merged with those of its program. Also finds the key that a wrong name
 * probably means. */
#include "recipe/schema.h"

#include <stdio.h>
#include <string.h>
#include "addend/schedule.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/nearest.h"
#include "program/keys.h"
#include "program/program.h"
#include "recipe/prompts.h"

#define AT(field) offsetof(ad_recipe, field)
#define SUMS (AD_DTYPE_BIT(AD_F64) | AD_DTYPE_BIT(AD_F32))
#define ACTIVATIONS (SUMS | AD_DTYPE_BIT(AD_BF16))
#define WHOLE 9007199254740992.0 /* 2^53: doubles have all whole numbers up to here */

const char *const ad_optimizer_names[] = {[AD_ADAMW] = "adamw", [AD_SGD] = "sgd", [AD_MUON] = "muon", NULL};
static const char *const muon_rates[] = {[AD_MUON_ORIGINAL] = "original",
                                         [AD_MUON_MATCH_RMS_ADAMW] = "match_rms_adamw",
                                         [AD_MUON_SPECTRAL_UNCLAMPED] = "spectral_unclamped",
                                         NULL};
static const char *const muon_ways[] = {[AD_WAY_CHEAPEST] = "cheapest",
                                        [AD_WAY_GATHERED] = "gathered",
                                        [AD_WAY_DEALT] = "dealt",
                                        [AD_WAY_DEALT_TO_REPLICAS] = "dealt_to_replicas",
                                        NULL};
const char *const ad_sync_names[] = {[AD_SYNC_NONE] = "none", [AD_SYNC_SHARD] = "shard", [AD_SYNC_ALL] = "all"};

/* Indices of the common keys that are treated in a special way. */
enum { NAME, KIND, FROM, WEIGHTS, MESH, PLACEMENT };

static const ad_key common[] = {
    [NAME] = {"name", AD_KEY_TEXT, .offset = AT(name), .fallback = "",
              .help = "name of the run and its folder runs/NAME; left out: the file's name"},

    [KIND] = {"model.kind", AD_KEY_TEXT, .offset = AT(kind)}, /* --help takes its text from the list of kinds */
    [FROM] = {"model.from", AD_KEY_TEXT, .offset = AT(from), .fallback = "",
              .help = "the folder of a model as Hugging Face Transformers saves it: its config.json gives the keys of "
                      "model that are left out, its safetensors the initial values"},
    [WEIGHTS] = {"model.weights", AD_KEY_TEXT, .offset = AT(weights), .fallback = "",
                 .help = "initial values of all parameters: a safetensors file, or the *.safetensors.index.json of "
                         "several; left out: drawn from the seed"},

    [MESH] = {"mesh", AD_KEY_TEXT, .offset = offsetof(ad_recipe_mesh, text),
              .help = "axes and sizes, such as \"dp_replicate=2 dp_shard=2\""},
    [PLACEMENT] = {"placement", AD_KEY_TEXT, .offset = AT(placement), .fallback = AD_COLOCATED,
                   .help =
                       "where modules run: colocated (on the same ranks) or disjoint (each on its own ranks, in the "
                       "order of mesh)"},

    {"precision.param", AD_KEY_DTYPE, .offset = AT(precision.policy.param), .fallback = "f32",
     .help = "dtype in which parameters are stored"},
    {"precision.grad", AD_KEY_GRADIENT, .offset = AT(precision.policy.grad), .second = AT(precision.policy.raw),
     .word = "param", .fallback = "param",
     .help = "dtype of a gradient before it is reduced: param (as the parameter), raw (as computed) or a dtype"},
    {"precision.reduce", AD_KEY_DTYPE, .offset = AT(precision.policy.reduce), .word = "grad", .fallback = "grad",
     .help = "dtype of a gradient on its way between ranks: grad (as the gradient) or a dtype"},
    {"precision.accumulate", AD_KEY_DTYPE, .offset = AT(precision.policy.accumulate), .word = "auto",
     .fallback = "auto", .dtypes = SUMS,
     .help = "dtype in which sums form: auto (f64 for f64, f32 for others), f64 or f32"},
    {"precision.compute", AD_KEY_DTYPE, .offset = AT(precision.compute), .fallback = "f32", .dtypes = ACTIVATIONS,
     .help = "dtype of activations, and of what matrix products read: f32, f64 or bf16"},
    {"precision.residual", AD_KEY_DTYPE, .offset = AT(precision.residual), .word = "auto", .fallback = "auto",
     .dtypes = ACTIVATIONS,
     .help = "dtype of the residual stream: auto (f64 for f64, f32 for others) or, where compute is bf16, bf16"},
    {"precision.loss_scale", AD_KEY_INTEGER, .offset = AT(precision.loss_scale), .least = -24, .most = 24,
     .fallback = "10",
     .help = "where gradients are f16: the loss is first multiplied by 2 to this power (at most 24); the power then "
             "adapts"},
    {"precision.overrides", AD_KEY_OVERRIDES, .offset = AT(precision.overrides), .second = AT(precision.override_count),
     .fallback = "",
     .help = "the same keys for parameters whose name matches a pattern; of several patterns that match, the first "
             "counts alone"},

    {"shard.zero", AD_KEY_INTEGER, .offset = AT(shard.zero), .least = 0, .most = 3, .fallback = "0",
     .help = "what is sharded over dp_shard: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too"},
    {"shard.outer_zero", AD_KEY_INTEGER, .offset = AT(shard.outer_zero), .least = 0, .most = 1, .fallback = "0",
     .help = "what is sharded over dp_replicate, inside the shards of dp_shard, with shard.zero 1 to 3: 0 nothing, "
             "1 optimizer state and the reduced gradient (HFSDP)"},
    {"shard.bucket_mib", AD_KEY_NUMBER, .offset = AT(shard.bucket_mib), .least = 0, .most = 65536, .open_least = 1,
     .fallback = "25", .help = "gradients that are reduced together, in MiB"},
    {"shard.window", AD_KEY_INTEGER, .offset = AT(shard.window), .least = 0, .most = 4096, .fallback = "0",
     .help = "buckets of one kind in memory at the same time, with shard.zero 2 or 3 and without none in train.sync; "
             "0: as many as needed"},
    {"shard.prefetch", AD_KEY_INTEGER, .offset = AT(shard.prefetch), .least = 0, .most = 4096, .fallback = "1",
     .help = "layers whose parameters are gathered ahead"},
    {"shard.groups", AD_KEY_SHARD_GROUPS, .offset = AT(shard.groups), .second = AT(shard.group_count), .fallback = "",
     .help =
         "parameters that are sharded in another way, as a list of {match: PATTERN, zero, sync, bucket_mib, window, "
         "prefetch}: sync as train.sync, or one word for all microbatches before the last, the others as in shard; "
         "a parameter is in the first group whose pattern matches its name, and has what that leaves out from shard "
         "and train.sync"},

    {"schedule.kind", AD_KEY_TEXT, .offset = AT(schedule.kind), .fallback = "",
     .help =
         "order of a pipeline: gpipe, 1f1b, interleaved or zb; left out: 1f1b, or interleaved where a rank has several "
         "stages"},
    {"schedule.stages", AD_KEY_INTEGER, .offset = AT(schedule.stages), .least = 0, .most = AD_STAGES_MAX,
     .fallback = "0", .help = "stages of a pipeline; stage s lies on the ranks at position s % pp; 0: as many as pp"},
    {"schedule.layers", AD_KEY_INTEGER, .list = 1, .offset = AT(schedule.layers), .second = AT(schedule.layer_count),
     .least = 0, .most = 4096, .fallback = "",
     .help =
         "layers of each stage, which may have none; empty: divided so that the largest stage is smallest, by the cost "
         "of matrix products"},

    {"train.global_batch", AD_KEY_INTEGER, .offset = AT(train.global_batch), .least = 1, .most = 1 << 24,
     .help = "samples in a step, over all ranks and microbatches"},
    {"train.microbatches", AD_KEY_INTEGER, .offset = AT(train.microbatches), .least = 1, .most = AD_MICROBATCHES_MAX,
     .fallback = "1",
     .help =
         "number of parts in which a step is computed; left out with train.leaves and shard.zero 2 or 3: as many as "
         "the leaves of a rank"},
    {"train.leaves", AD_KEY_INTEGER, .offset = AT(train.leaves), .least = 0, .most = AD_MICROBATCHES_MAX,
     .fallback = "0",
     .help = "the number of leaves of a step: parts whose gradients are computed one by one and summed by one tree, so "
             "that results have the same bits on any number of data-parallel ranks; example: 16; 0: none"},
    {"train.recompute", AD_KEY_TEXT, .list = 1, .offset = AT(train.recompute), .second = AT(train.recompute_count),
     .fallback = "",
     .help = "layers that keep only what enters them and run again in backward, which saves memory and changes no bit: "
             "none, layers (all) or patterns of their names, such as [\"blocks.[02468]\"]; left out: none"},
    {"train.steps", AD_KEY_INTEGER, .offset = AT(train.steps), .least = 1, .most = 4294967296.0,
     .help = "number of updates of the parameters"},
    {"train.lr", AD_KEY_NUMBER, .offset = AT(train.lr), .least = 0, .most = 1e6, .help = "learning rate after warm-up"},
    {"train.warmup", AD_KEY_INTEGER, .offset = AT(train.warmup), .least = 0, .most = 4294967296.0, .fallback = "0",
     .help = "steps in which the rate rises to lr; a cosine then brings it down"},
    {"train.final_lr_fraction", AD_KEY_NUMBER, .offset = AT(train.final_lr_fraction), .least = 0, .most = 1,
     .fallback = "0.1", .help = "fraction of lr that the last step has"},
    {"train.clip", AD_KEY_NUMBER, .offset = AT(train.clip), .least = 0, .most = 1e300, .fallback = "1",
     .help = "largest norm of the full gradient; 0: any"},
    {"train.beta1", AD_KEY_NUMBER, .offset = AT(optimizer.beta1), .least = 0, .most = 1, .open_most = 1,
     .fallback = "0.9", .help = "memory of AdamW's first moment"},
    {"train.beta2", AD_KEY_NUMBER, .offset = AT(optimizer.beta2), .least = 0, .most = 1, .open_most = 1,
     .fallback = "0.95", .help = "memory of AdamW's second moment"},
    {"train.epsilon", AD_KEY_NUMBER, .offset = AT(optimizer.epsilon), .least = 0, .most = 1, .open_least = 1,
     .fallback = "1e-8", .help = "AdamW's guard against division by zero"},
    {"train.weight_decay", AD_KEY_NUMBER, .offset = AT(optimizer.weight_decay), .least = 0, .most = 1e3,
     .fallback = "0",
     .help =
         "decay of matrices, but not of the embedding; adamw takes it from the parameter, as a fraction per unit of "
         "learning rate (decoupled), sgd adds it to the gradient"},
    {"train.seed", AD_KEY_INTEGER, .offset = AT(train.seed), .least = 0, .most = WHOLE, .fallback = "1",
     .help = "seed of initial values and samples"},
    {"train.sync", AD_KEY_SYNC, .list = 1, .offset = AT(train.sync), .second = AT(train.sync_count), .fallback = "",
     .help = "for each microbatch none, shard or all, for the last one all; left out: none before the last, or shard "
             "with shard.zero 2 or 3"},

    {"optimizer.kind", AD_KEY_BOOLEAN, .offset = AT(optimizer.kind), .words = ad_optimizer_names, .fallback = "adamw",
     .help =
         "what updates parameters: adamw; sgd as PyTorch computes it, with decay added to the gradient; or muon, for "
         "matrices of hidden layers"},
    {"optimizer.momentum", AD_KEY_NUMBER, .offset = AT(optimizer.momentum), .least = 0, .most = 1, .open_most = 1,
     .fallback = "0", .help = "memory of SGD's buffer of gradients; 0: there is no buffer"},
    {"optimizer.nesterov", AD_KEY_BOOLEAN, .offset = AT(optimizer.nesterov), .fallback = "false",
     .help = "SGD updates by the buffer as the next step would have it from the same gradient (Nesterov)"},

    {"optimizer.muon.momentum", AD_KEY_NUMBER, .offset = AT(optimizer.muon.momentum), .least = 0, .most = 1,
     .open_most = 1, .fallback = "0.95", .help = "memory of Muon's average of gradients"},
    {"optimizer.muon.nesterov", AD_KEY_BOOLEAN, .offset = AT(optimizer.muon.nesterov), .fallback = "true",
     .help =
         "Muon updates by the average as the next step would have it from the same gradient; false: by the average"},
    {"optimizer.muon.a", AD_KEY_NUMBER, .offset = AT(optimizer.muon.a), .least = -100, .most = 100,
     .fallback = "3.4445", .help = "a of the iteration X = a X + b (X X') X + c (X X')(X X') X, which orthogonalises"},
    {"optimizer.muon.b", AD_KEY_NUMBER, .offset = AT(optimizer.muon.b), .least = -100, .most = 100,
     .fallback = "-4.775", .help = "b of the iteration"},
    {"optimizer.muon.c", AD_KEY_NUMBER, .offset = AT(optimizer.muon.c), .least = -100, .most = 100,
     .fallback = "2.0315", .help = "c of the iteration"},
    {"optimizer.muon.steps", AD_KEY_COUNT, .offset = AT(optimizer.muon.steps), .least = 1, .most = 99, .fallback = "5",
     .help = "steps of the iteration"},
    {"optimizer.muon.epsilon", AD_KEY_NUMBER, .offset = AT(optimizer.muon.epsilon), .least = 0, .most = 1,
     .open_least = 1, .fallback = "1e-7", .help = "the least norm by which a matrix is divided before the iteration"},
    {"optimizer.muon.adjust_lr", AD_KEY_BOOLEAN, .offset = AT(optimizer.muon.rate), .words = muon_rates,
     .fallback = "original",
     .help = "factor of the rate of a matrix: original sqrt(max(1, out / in)), match_rms_adamw 0.2 sqrt(max(in, out)), "
             "spectral_unclamped sqrt(out / in)"},
    {"optimizer.muon.dtype", AD_KEY_DTYPE, .offset = AT(optimizer.muon.dtype), .word = "auto", .fallback = "auto",
     .dtypes = ACTIVATIONS,
     .help = "dtype of the iteration: auto (that in which the parameter is updated), f32, f64 or, as PyTorch, bf16"},
    {"optimizer.muon.way", AD_KEY_BOOLEAN, .offset = AT(optimizer.muon.way), .words = muon_ways, .fallback = "cheapest",
     .help = "which ranks orthogonalise a matrix that several store, which changes no bit: gathered (all), dealt (one "
             "each), dealt_to_replicas (replicas share the work too) or the cheapest"},
    {"optimizer.muon.blockwise", AD_KEY_BOOLEAN, .offset = AT(optimizer.muon.blockwise), .fallback = "false",
     .help = "each rank orthogonalises the block of a matrix that it stores: no rank needs the others' blocks, but the "
             "updates depend on how matrices are sharded"},

    {"groups", AD_KEY_GROUPS, .offset = AT(groups), .second = AT(group_count), .fallback = "",
     .help =
         "parameters that are updated in another way, as a list of {match: PATTERN, kind, lr, decay, frozen}: kind as "
         "optimizer.kind, lr as train.lr, decay as train.weight_decay but of all these parameters, frozen: true for "
         "those that do not learn; a parameter is in the first group whose pattern matches its name, so a group with "
         "match alone excepts parameters from later ones"},

    {"evaluate.samples", AD_KEY_INTEGER, .offset = AT(evaluate.samples), .least = 0, .most = 1 << 20, .fallback = "256",
     .help =
         "validation samples that each evaluation reads, always the same ones, or all where there are fewer; 0: none"},
    {"evaluate.every", AD_KEY_INTEGER, .offset = AT(evaluate.every), .least = 0, .most = 4294967296.0, .fallback = "0",
     .help = "steps between evaluations; there is one at the end too; 0: about ten in a run"},
    {"evaluate.prompts", AD_KEY_TEXT, .list = 1, .offset = AT(evaluate.prompts), .second = AT(evaluate.prompt_count),
     .fallback = "",
     .help =
         "texts that each evaluation continues, greedily, into samples.jsonl, while other ranks wait for the "
         "first; with data.tokens numbers of tokens (\"17 4 250\"), or texts where there is a tokenizer.json or the "
         "model has 256 tokens"},
    {"evaluate.prompt_tokens", AD_KEY_INTEGER, .offset = AT(evaluate.prompt_tokens), .least = 1,
     .most = AD_PROMPT_TOKENS_MAX, .fallback = "40",
     .help =
         "tokens that continue a prompt; each costs the first rank, which holds all parameters for it, a forward pass"},

    {"checkpoint.every", AD_KEY_INTEGER, .offset = AT(checkpoint.every), .least = 0, .most = 4294967296.0,
     .fallback = "0", .help = "steps between checkpoints; there is one at the end too; 0: only on a signal"},
    {"checkpoint.keep", AD_KEY_INTEGER, .offset = AT(checkpoint.keep), .least = 1, .most = 50, .fallback = "2",
     .help = "complete checkpoints that stay; older ones are removed"},
};
enum { COMMON_COUNT = sizeof common / sizeof *common };

/* ---- merging all recipes' keys with a program's own ---- */

/* Returns the length of the path's section, or 0 if the path has no section. */
static size_t section_length(const char *path) { return strchr(path, '.') ? strcspn(path, ".") : 0; }

static int is_in_section_of(const char *path, const char *other) {
  size_t length = section_length(other);
  return length && section_length(path) == length && !strncmp(path, other, length);
}

/* Returns the index of the common key after which a program's key is inserted: the last key of its section. Keys of
 * `model` come before model.weights, and the program's own sections come before `mesh`. */
static size_t predecessor_of(const ad_key *key) {
  size_t found = WEIGHTS;
  if (is_in_section_of(key->path, common[KIND].path)) return KIND;
  for (size_t i = 0; i < COMMON_COUNT; i++)
    if (is_in_section_of(key->path, common[i].path)) found = i;
  return found;
}

static void add_entry(ad_schema *schema, const ad_key *key, ad_key_home home) {
  schema->entries[schema->count++] = (ad_schema_entry){.key = *key, .home = home};
}

/* Adds the key "mesh" or, if there are several modules, a key "mesh.MODULE" for each of them. */
static ad_status add_meshes(ad_schema *schema) {
  size_t count = ad_schema_mesh_count(schema->program);
  for (size_t i = 0; i < count; i++) {
    add_entry(schema, &common[MESH], AD_HOME_MESHES);
    if (count == 1) break;
    ad_schema_entry *entry = &schema->entries[schema->count - 1];
    const char *module = ad_program_kind_modules(schema->program)[i];
    size_t size = strlen(module) + sizeof "mesh.";
    AD_TRY(ad_new(size, &entry->made));
    snprintf(entry->made, size, "mesh.%s", module);
    entry->key.path = entry->made;
    entry->key.offset += i * sizeof(ad_recipe_mesh);
  }
  return AD_OK;
}

/* Adds the program's keys that come after the common key `predecessor`. */
static ad_status add_own(ad_schema *schema, size_t predecessor) {
  const ad_program_kind *program = schema->program;
  for (size_t i = 0; program && i < program->key_count; i++) {
    const ad_key *key = &program->keys[i];
    if (predecessor_of(key) != predecessor) continue;
    if (ad_schema_find(schema, key->path)) {
      return ad_fail(AD_INVALID,
                     "program `%s` defines the key %s, which exists already; choose another name for the key",
                     program->name, key->path);
    }
    add_entry(schema, key, AD_HOME_OPTIONS);
  }
  return AD_OK;
}

static int is_of_prompts(const char *path) { return !strncmp(path, "evaluate.prompt", strlen("evaluate.prompt")); }

/* Returns 1 if recipes of this program have the common key i. If no program is known, they have every common key. */
static int is_wanted(const ad_schema *schema, size_t i) {
  if (i == PLACEMENT) return ad_schema_mesh_count(schema->program) > 1;
  if (is_of_prompts(common[i].path)) return !schema->program || schema->program->sampling.next;
  return !is_in_section_of(common[i].path, "schedule.kind") || !schema->program || schema->program->has_stages;
}

static ad_status merge(ad_schema *schema) {
  for (size_t i = 0; i < COMMON_COUNT; i++) {
    if (i == MESH)
      AD_TRY(add_meshes(schema));
    else if (is_wanted(schema, i))
      add_entry(schema, &common[i], AD_HOME_RECIPE);
    AD_TRY(add_own(schema, i));
  }
  return AD_OK;
}

size_t ad_schema_mesh_count(const ad_program_kind *program) {
  size_t count = 0;
  while (program && ad_program_kind_modules(program)[count]) count++;
  return count ? count : 1;
}

ad_status ad_schema_create(const ad_program_kind *program, ad_schema *out) {
  ad_schema schema = {.program = program};
  size_t most = COMMON_COUNT + ad_schema_mesh_count(program) + (program ? program->key_count : 0);
  AD_TRY(ad_new(most, &schema.entries));
  ad_status status = merge(&schema);
  if (status)
    ad_schema_release(&schema);
  else
    *out = schema;
  return status;
}

void ad_schema_release(ad_schema *schema) {
  for (size_t i = 0; i < schema->count; i++) ad_release(schema->entries[i].made);
  ad_release(schema->entries);
  *schema = (ad_schema){0};
}

/* ---- finding a key by its name ---- */

const ad_schema_entry *ad_schema_find(const ad_schema *schema, const char *path) {
  for (size_t i = 0; i < schema->count; i++)
    if (!strcmp(schema->entries[i].key.path, path)) return &schema->entries[i];
  return NULL;
}

int ad_schema_is_section(const ad_schema *schema, const char *path) {
  size_t length = strlen(path);
  for (size_t i = 0; i < schema->count; i++) {
    const char *known = schema->entries[i].key.path;
    if (!strncmp(known, path, length) && known[length] == '.') return 1;
  }
  return 0;
}

char *ad_schema_base(const ad_schema_entry *entry, const ad_recipe *recipe) {
  void *const bases[] = {
      [AD_HOME_RECIPE] = (void *)recipe, [AD_HOME_MESHES] = recipe->meshes, [AD_HOME_OPTIONS] = recipe->options};
  return bases[entry->home];
}

static void release_texts(char **texts, size_t count) {
  for (size_t i = 0; i < count; i++) ad_release(texts[i]);
}

/* Releases what the entries of overrides and of groups own. */
static void release_entries(const ad_key *key, void *list, size_t count) {
  ad_recipe_override *overrides = key->kind == AD_KEY_OVERRIDES ? list : NULL;
  ad_recipe_group *groups = key->kind == AD_KEY_GROUPS ? list : NULL;
  for (size_t i = 0; overrides && i < count; i++) ad_release(overrides[i].pattern);
  ad_recipe_shard_group *sharded = key->kind == AD_KEY_SHARD_GROUPS ? list : NULL;
  for (size_t i = 0; groups && i < count; i++) ad_release(groups[i].pattern);
  for (size_t i = 0; sharded && i < count; i++) {
    ad_release(sharded[i].pattern);
    ad_release(sharded[i].sync);
  }
}

void ad_key_release(const ad_key *key, char *base) {
  int is_text = ad_key_is_text(key), is_list = key->list || !ad_key_value_size(key);
  if (!is_text && !is_list) return;
  void *value;
  memcpy(&value, base + key->offset, sizeof value);
  memset(base + key->offset, 0, sizeof value);
  if (is_list) {
    size_t *count = (size_t *)(base + key->second);
    if (is_text) release_texts(value, *count);
    release_entries(key, value, *count);
    *count = 0;
  }
  ad_release(value);
}

static void clear_meshes(ad_recipe *recipe) {
  for (size_t i = 0; i < recipe->mesh_count; i++) {
    ad_release(recipe->meshes[i].module);
    ad_release(recipe->meshes[i].text);
  }
  ad_release(recipe->meshes);
  recipe->meshes = NULL;
  recipe->mesh_count = 0;
}

void ad_schema_clear(ad_recipe *recipe) {
  const ad_program_kind *program = recipe->options ? recipe->program : NULL;
  for (size_t i = 0; i < COMMON_COUNT; i++)
    if (i != MESH) ad_key_release(&common[i], (char *)recipe);
  for (size_t i = 0; program && i < program->key_count; i++) ad_key_release(&program->keys[i], recipe->options);
  clear_meshes(recipe);
}

size_t ad_schema_list_length(const char *path) {
  const char *brackets = strstr(path, "[].");
  return brackets ? (size_t)(brackets - path) : 0;
}

int ad_schema_is_list(const ad_schema *schema, const char *path) {
  size_t length = strlen(path);
  for (size_t i = 0; i < schema->count; i++) {
    const char *known = schema->entries[i].key.path;
    if (length && ad_schema_list_length(known) == length && !strncmp(known, path, length)) return 1;
  }
  return 0;
}

const char *ad_kinds_known(char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  const ad_program_kind *const *kinds = ad_program_kinds();
  for (size_t i = 0; kinds[i]; i++) ad_text_add(&text, "%s%s", !i ? "" : kinds[i + 1] ? ", " : " or ", kinds[i]->name);
  return buffer;
}

const char *ad_key_help(const ad_key *key, char *buffer, size_t size) {
  return key->help ? key->help : ad_kinds_known(buffer, size);
}

int ad_key_is_precision_policy(const ad_schema_entry *entry) {
  size_t first = AT(precision.policy), offset = entry->key.offset;
  return entry->home == AD_HOME_RECIPE && offset >= first && offset < first + sizeof(ad_precision_policy);
}

const char *ad_key_name(const ad_key *key) {
  const char *dot = strrchr(key->path, '.');
  return dot ? dot + 1 : key->path;
}

void ad_path_add(ad_text *path, const char *name) {
  const char *quote = strchr(name, '.') ? "\"" : "";
  ad_text_add(path, "%s%s%s%s", path->used ? "." : "", quote, name, quote);
}

/* ---- suggesting the key that a wrong name meant ---- */

enum { NAME_MAX_COMPARED = AD_NAME_COMPARED_MAX };

/* Writes to `out` the part of a path at `level`: 0 is the section, 1 the key in it. Writes "" if the path has no such
 * part. */
static void part_of(const char *path, int level, char out[NAME_MAX_COMPARED]) {
  const char *dot = strchr(path, '.');
  size_t length = dot ? (size_t)(dot - path) : strlen(path);
  if (level)
    snprintf(out, NAME_MAX_COMPARED, "%s", dot ? dot + 1 : "");
  else
    snprintf(out, NAME_MAX_COMPARED, "%.*s", (int)length, path);
}

/* Finds the next name of a path below a section: "coefficient" for the path losses.stochastic.coefficient below
 * losses.stochastic. Returns 0 if the path is not below the section. */
static int name_below(const char *path, const char *section, char out[NAME_MAX_COMPARED]) {
  size_t length = strlen(section);
  if (length && (strncmp(path, section, length) != 0 || path[length] != '.')) return 0;
  path += length ? length + 1 : 0;
  snprintf(out, NAME_MAX_COMPARED, "%.*s", (int)strcspn(path, "."), path);
  return 1;
}

/* The best guess so far of the key that a wrong name means. */
typedef struct guess {
  char path[2 * NAME_MAX_COMPARED];
  int cost;
} guess;

static void consider(guess *best, const char *path, int cost) {
  if (cost >= best->cost) return;
  snprintf(best->path, sizeof best->path, "%s", path);
  best->cost = cost;
}

/* Returns the key or the section with the nearest name. A key of another section counts as one letter further away. */
static guess nearest(const ad_schema *schema, const char *section, const char *unknown) {
  guess best = {"", ad_name_distance_max(unknown) + 1};
  for (size_t i = 0; i < schema->count; i++) {
    const char *path = schema->entries[i].key.path;
    char outer[NAME_MAX_COMPARED], inner[NAME_MAX_COMPARED], below[NAME_MAX_COMPARED];
    part_of(path, 0, outer);
    part_of(path, 1, inner);
    if (*section && name_below(path, section, below)) consider(&best, path, ad_name_distance(below, unknown));
    int here = !strcmp(*inner ? outer : "", section);
    consider(&best, path, ad_name_distance(*inner ? inner : outer, unknown) + !here);
    if (!*section) consider(&best, outer, ad_name_distance(outer, unknown));
  }
  return best;
}

/* Adds to `out` the names of the keys and of the sections in `section`. */
static void list_known(const ad_schema *schema, const char *section, ad_text *out) {
  char name[NAME_MAX_COMPARED], before[NAME_MAX_COMPARED] = "";
  for (size_t i = 0; i < schema->count; i++) {
    if (!name_below(schema->entries[i].key.path, section, name) || !strcmp(name, before)) continue;
    ad_text_add(out, "%s%s", *before ? ", " : "the keys here are ", name);
    snprintf(before, sizeof before, "%s", name);
  }
  if (!*before) ad_text_add(out, "`%s` has no keys below it", section);
}

/* Writes to `out` the path of the key in `section` that earlier versions called `unknown`, or "" if there is none. */
static void find_renamed(const ad_schema *schema, const char *section, const char *unknown, char *out, size_t size) {
  static const char *const names[][2] = {
      {"held_out", "validation"}, {"held_out_font", "validation_font"}, {"wire", "comm_dtype"}};
  *out = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(names[i][0], unknown) != 0) continue;
    snprintf(out, size, "%s%s%s", section, *section ? "." : "", names[i][1]);
    if (!ad_schema_find(schema, out) && !ad_schema_is_section(schema, out)) *out = 0;
  }
}

int ad_schema_suggest(const ad_schema *schema, const char *section, const char *unknown, ad_text *out) {
  char renamed[NAME_MAX_COMPARED];
  find_renamed(schema, section, unknown, renamed, sizeof renamed);
  if (*renamed) {
    ad_text_add(out, "write %s, which is its name now", renamed);
    return 1;
  }
  if (strchr(unknown, '.') && ad_schema_find(schema, unknown)) {
    ad_text_add(out, "write `%s` on a line of its own, indented below `%.*s:`", strchr(unknown, '.') + 1,
                (int)strcspn(unknown, "."), unknown);
    return 1;
  }
  guess best = nearest(schema, section, unknown);
  if (*best.path)
    ad_text_add(out, "did you mean %s?", best.path);
  else
    list_known(schema, section, out);
  return *best.path != 0;
}
