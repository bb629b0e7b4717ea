/* Makes a run's fingerprint, and compares that of a checkpoint with it. core/checkpoint stores fingerprints. */
#include "step/fingerprint.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "products/products.h"
#include "program/program.h"
#include "recipe/changes.h"
#include "step/resumed_states.h"

/* ---- making a fingerprint ---- */

enum { CONTENT_SIZE = 128, WORDS = AD_MESSAGE_MAX / 2 };

/* If the key at `path` names files, writes to `content` the text that describes their contents and returns 1; the
 * fingerprint has this text in place of the key's value. Returns 0 if the key names no files. */
static int find_content(const ad_run *run, const char *path, char content[CONTENT_SIZE]) {
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  const char *key;
  for (size_t i = 0;
       kind->data.content &&
       (key = AD_GUEST(kind, "content", kind->data.content(ad_program_own(run->program), i, content, CONTENT_SIZE)));
       i++)
    if (!strcmp(key, path)) return 1;
  return 0;
}

static ad_status add_fact(const ad_run *run, const ad_schema_entry *entry, ad_fingerprint *to) {
  char content[CONTENT_SIZE], *value;
  if (find_content(run, entry->key.path, content))
    AD_TRY(ad_copy_string(content, &value));
  else
    AD_TRY(ad_recipe_print_key(run->recipe, &to->schema, entry, &value));
  to->facts[to->count++] = (ad_checkpoint_fact){entry->key.path, value};
  return AD_OK;
}

/* Facts that are not keys of the recipe, besides those of step/resumed_states.h. Every run has PRODUCTS: the library
 * that computes matrix products, on which bits depend. Runs with leaves also have leaf_facts, one fact for each choice
 * that changes the bits of a leaf: the details of PRODUCTS, and the sizes of tp, cp and, of the experts' view, ep and
 * etp. */
#define PRODUCTS "products"
enum { LEAF_TP = AD_PRODUCTS_FACTS, LEAF_CP, LEAF_EP, LEAF_ETP, LEAF_FACTS };
static const struct {
  const char *key, *words;
} leaf_facts[] = {[AD_PRODUCTS_CHOICE] = {"leaf.products", "the choice of the library of products"},
                  [AD_PRODUCTS_INSTRUCTIONS] = {"leaf.instructions", "the instructions of products"},
                  [AD_PRODUCTS_OPENBLAS] = {"leaf.openblas", "OpenBLAS"},
                  [AD_PRODUCTS_ONEDNN] = {"leaf.onednn", "oneDNN"},
                  [AD_PRODUCTS_THREADS] = {"leaf.threads", "ADDEND_BLAS_THREADS"},
                  [AD_PRODUCTS_PROCESSOR] = {"leaf.processor", "the processor"},
                  [LEAF_TP] = {"leaf.tp", "`tp`"},
                  [LEAF_CP] = {"leaf.cp", "`cp`"},
                  [LEAF_EP] = {"leaf.ep", "`ep`"},
                  [LEAF_ETP] = {"leaf.etp", "`etp`"}};

/* Returns the most ranks on the axis in the meshes of one data-parallel position: the module's, and views of it. */
static int64_t own_ranks_on(const ad_program *program, ad_axis axis) {
  int64_t most = 1;
  for (size_t i = 0; i < program->leaf_mesh_count; i++) {
    int64_t size = ad_mesh_axis_size(program->leaf_meshes[i].own, axis);
    if (size > most) most = size;
  }
  return most;
}

static const char *print_leaf_fact(const ad_run *run, int fact, char buffer[AD_PRODUCTS_TEXT]) {
  static const ad_axis axes[] = {AD_TP, AD_CP, AD_EP, AD_ETP};
  if (fact < AD_PRODUCTS_FACTS) return ad_products_print_fact((ad_products_fact)fact, buffer);
  snprintf(buffer, AD_PRODUCTS_TEXT, "%" PRId64, own_ranks_on(run->program, axes[fact - LEAF_TP]));
  return buffer;
}

static ad_status add_text(const char *key, const char *text, ad_fingerprint *to) {
  char *value;
  AD_TRY(ad_copy_string(text, &value));
  to->facts[to->count++] = (ad_checkpoint_fact){key, value};
  return AD_OK;
}

static ad_status add_other_facts(const ad_run *run, ad_fingerprint *to) {
  char text[AD_PRODUCTS_TEXT];
  AD_TRY(add_text(PRODUCTS, ad_products_print(text), to));
  for (int i = 0; run->recipe->train.leaves && i < LEAF_FACTS; i++)
    AD_TRY(add_text(leaf_facts[i].key, print_leaf_fact(run, i, text), to));
  return ad_run_add_state_facts(run, to->facts, &to->count);
}

static ad_status add_facts(const ad_run *run, ad_fingerprint *to) {
  AD_TRY(ad_schema_create(run->recipe->program, &to->schema));
  AD_TRY(ad_new(to->schema.count + 1 + (run->recipe->train.leaves ? LEAF_FACTS : 0) + AD_STATE_FACTS, &to->facts));
  for (size_t i = 0; i < to->schema.count; i++) AD_TRY(add_fact(run, &to->schema.entries[i], to));
  return add_other_facts(run, to);
}

ad_status ad_fingerprint_create(const ad_run *run, ad_fingerprint *out) {
  ad_fingerprint made = {0};
  ad_status status = add_facts(run, &made);
  if (status)
    ad_fingerprint_release(&made);
  else
    *out = made;
  return status;
}

void ad_fingerprint_release(ad_fingerprint *fingerprint) {
  for (size_t i = 0; i < fingerprint->count; i++) {
    char *value = (char *)fingerprint->facts[i].value;
    ad_release(value);
  }
  ad_release(fingerprint->facts);
  ad_schema_release(&fingerprint->schema);
  *fingerprint = (ad_fingerprint){0};
}

/* ---- comparing a run's fingerprint with a checkpoint's ---- */

/* Two different values of a key, as messages show them. */
enum { VALUE_SHOWN = 120, SHOWN_BEFORE = 60, SHOWN_SIZE = VALUE_SHOWN + sizeof "......" };
typedef struct shown_values {
  char own[SHOWN_SIZE], other[SHOWN_SIZE];
} shown_values;

static void show_value(const char *value, size_t start, char buffer[SHOWN_SIZE]) {
  const char *rest = value + start;
  snprintf(buffer, SHOWN_SIZE, "%s%.*s%s", start ? "..." : "", VALUE_SHOWN, rest,
           strlen(rest) > VALUE_SHOWN ? "..." : "");
}

/* Shows both values whole, or of values that are too long the characters around the first difference. */
static shown_values show_values(const char *own, const char *other) {
  shown_values shown = {0};
  size_t same = 0, start = 0;
  while (own[same] && own[same] == other[same]) same++;
  if (same > SHOWN_BEFORE && (strlen(own) > VALUE_SHOWN || strlen(other) > VALUE_SHOWN)) start = same - SHOWN_BEFORE;
  show_value(own, start, shown.own);
  show_value(other, start, shown.other);
  return shown;
}

/* Returns 1 if the key may change when a run resumes: where the run computes, what it writes, how long it trains,
 * values that the checkpoint has, and where weights come from (their content is in the fingerprint). Any other key
 * changes what the numbers mean. */
static int is_free(const char *key) {
  static const char *const patterns[] = {"name",
                                         "model.from",
                                         "model.weights",
                                         "mesh",
                                         "mesh.*",
                                         "placement",
                                         "views.*",
                                         "shard.*",
                                         "schedule.*",
                                         "checkpoint.*",
                                         "evaluate.*",
                                         "train.steps",
                                         "train.microbatches",
                                         "train.sync",
                                         "precision.loss_scale",
                                         "optimizer.muon.way",
                                         "target.steps",
                                         "target.global_batch",
                                         "target.lr",
                                         "target.warmup",
                                         "target.weight_decay"};
  for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
    if (!fnmatch(patterns[i], key, 0)) return 1;
  return 0;
}

/* Returns 1 if the key may change in this run: besides the keys that always may, the keys of optimizers may if states
 * begin anew. */
static int may_change(const ad_run *run, const char *key) {
  static const char *const patterns[] = {"optimizer.*", "groups",        "train.beta1",
                                         "train.beta2", "train.epsilon", "train.weight_decay"};
  for (size_t i = 0; run->options.fresh_state_count && i < sizeof patterns / sizeof *patterns; i++)
    if (!fnmatch(patterns[i], key, 0)) return 1;
  return is_free(key);
}

static ad_status same_key(const ad_schema *schema, size_t i, const ad_recipe *a, const ad_recipe *b, int *out) {
  char *own, *other;
  AD_TRY(ad_recipe_print_key(a, schema, &schema->entries[i], &own));
  ad_status status = ad_recipe_print_key(b, schema, &schema->entries[i], &other);
  if (!status) {
    *out = !strcmp(own, other);
    ad_release(other);
  }
  ad_release(own);
  return status;
}

ad_status ad_fingerprint_same_recipe(const ad_recipe *a, const ad_recipe *b, int *out) {
  ad_schema schema;
  *out = a->program == b->program;
  if (!*out) return AD_OK;
  AD_TRY(ad_schema_create(a->program, &schema));
  ad_status status = AD_OK;
  for (size_t i = 0; i < schema.count && *out && !status; i++)
    if (!is_free(schema.entries[i].key.path)) status = same_key(&schema, i, a, b, out);
  ad_schema_release(&schema);
  return status;
}

static const char *fact_value(const ad_checkpoint_fact *facts, size_t count, const char *key) {
  for (size_t i = 0; i < count; i++)
    if (!strcmp(facts[i].key, key)) return facts[i].value;
  return NULL;
}

/* Returns 1 if the checkpoint's value `other` means the same as `own`, this run's value. `other` is NULL if the
 * checkpoint does not have the key: the key was introduced after it, and addend then did what the key's default means
 * now. Facts that are no keys of the recipe are not compared here. */
static int agrees(const ad_schema *schema, const char *path, const char *own, const char *other) {
  const ad_schema_entry *entry = ad_schema_find(schema, path);
  if (!entry) return 1;
  return other ? !strcmp(own, other) || ad_key_means(&entry->key, other, own) : ad_key_is_default(&entry->key, own);
}

/* Lists the keys that differ: in `bound` the keys that change what the numbers mean, in `unbound` all other keys. */
static void compare_facts(const ad_run *run, const ad_fingerprint *here, const ad_checkpoint_fact *there, size_t count,
                          ad_text *bound, ad_text *unbound) {
  for (size_t i = 0; i < here->count; i++) {
    const char *key = here->facts[i].key, *own = here->facts[i].value, *other = fact_value(there, count, key);
    ad_text *to = may_change(run, key) ? unbound : bound;
    if (agrees(&here->schema, key, own, other)) continue;
    shown_values shown = show_values(own, other ? other : "nothing");
    ad_text_add(to, "%s%s (checkpoint: %s, recipe: %s)", to->used ? ", " : "", key, shown.other, shown.own);
  }
}

static const char *why_fixed(const ad_run *run, const char *key) {
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  return kind->course.fixed ? AD_GUEST(kind, "fixed", kind->course.fixed(ad_program_own(run->program), key)) : NULL;
}

/* Fails if a key differs that, for this program, must not change even with --force. */
static ad_status check_fixed(const ad_run *run, const ad_fingerprint *here, const ad_checkpoint_fact *there,
                             size_t count) {
  for (size_t i = 0; i < here->count; i++) {
    const char *key = here->facts[i].key, *own = here->facts[i].value, *other = fact_value(there, count, key);
    const char *why = why_fixed(run, key);
    if (!why || !other || !strcmp(own, other)) continue;
    shown_values shown = show_values(own, other);
    return ad_fail(AD_INVALID,
                   "%s is '%s' in the checkpoint, but '%s' in the recipe, and a run may not change this key, not "
                   "even with --force (%s); set %s to %s, or begin a run in another folder (--out)",
                   key, shown.other, shown.own, why, key, shown.other);
  }
  return AD_OK;
}

static void report_other_products(const ad_fingerprint *here, const ad_checkpoint_fact *there, size_t count) {
  const char *own = fact_value(here->facts, here->count, PRODUCTS), *other = fact_value(there, count, PRODUCTS);
  if (!other || !strcmp(own, other)) return;
  ad_log(AD_LOG_WARNING,
         "until the checkpoint, matrix products were computed by '%s', but now by '%s', so results are not "
         "bit-identical to those of an uninterrupted run",
         other, own);
}

/* For a run with leaves, whose bits are the same on any number of data-parallel ranks: warns if leaves will have other
 * bits than before the checkpoint, and lists the facts that differ. */
static void report_other_bits(const ad_fingerprint *here, const ad_checkpoint_fact *there, size_t count) {
  char words[WORDS] = "";
  ad_text list = ad_text_on(words, WORDS);
  for (int i = 0; i < LEAF_FACTS; i++) {
    const char *own = fact_value(here->facts, here->count, leaf_facts[i].key);
    const char *other = fact_value(there, count, leaf_facts[i].key);
    if (!own || !other || !strcmp(own, other)) continue;
    shown_values shown = show_values(own, other);
    ad_text_add(&list, "%s%s is %s (before: %s)", list.used ? ", " : "", leaf_facts[i].words, shown.own, shown.other);
  }
  if (list.used)
    ad_log(
        AD_LOG_WARNING,
        "bits will differ from those of an uninterrupted run, because leaves are computed in another way than before "
        "the checkpoint: %s",
        words);
}

ad_status ad_fingerprint_judge(const ad_run *run, const ad_fingerprint *here, const ad_checkpoint_fact *there,
                               size_t count) {
  AD_TRY(check_fixed(run, here, there, count));
  char bound_words[WORDS] = "", unbound_words[WORDS] = "";
  ad_text bound = ad_text_on(bound_words, WORDS), unbound = ad_text_on(unbound_words, WORDS);
  compare_facts(run, here, there, count, &bound, &unbound);
  if (bound.used && !run->options.any_recipe)
    return ad_fail(AD_INVALID,
                   "the checkpoint is of another run, whose recipe differs in %s; set these keys as in the checkpoint, "
                   "or continue nevertheless with --force",
                   bound_words);
  if (!ad_run_is_first(run)) return AD_OK;
  if (run->recipe->train.leaves)
    report_other_bits(here, there, count);
  else
    report_other_products(here, there, count);
  if (bound.used)
    ad_log(AD_LOG_WARNING,
           "the run continues from the checkpoint of another run, whose recipe differs in %s; this is so because of "
           "--force",
           bound_words);
  if (unbound.used)
    ad_log(AD_LOG_INFO, "these keys of the recipe have changed since the checkpoint was written: %s", unbound_words);
  return AD_OK;
}
