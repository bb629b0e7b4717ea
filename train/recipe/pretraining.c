/* Makes the recipe of a pretraining (a training before the program's own), from the keys that both programs have. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "recipe/recipe.h"
#include "recipe/schema.h"

/* The recipe that is being made, as a list of --set options, and the recipe from which it is made. */
typedef struct derivation {
  const ad_recipe *from;
  const ad_pretraining *pretraining;
  ad_schema known, wanted; /* the keys of the given recipe, and the keys of the recipe that is being made */
  char **sets;
  size_t count;
} derivation;

static ad_status set(derivation *d, const char *path, const char *value) {
  size_t size = strlen(path) + strlen(value) + sizeof "=";
  AD_TRY(ad_new(size, &d->sets[d->count]));
  snprintf(d->sets[d->count++], size, "%s=%s", path, value);
  return AD_OK;
}

static ad_status set_number(derivation *d, const char *path, int64_t number) {
  char value[32];
  snprintf(value, sizeof value, "%lld", (long long)number);
  return set(d, path, value);
}

/* Returns the key of the given recipe whose value the key `wanted` gets. This is the program's key with the same path
 * or, for keys of `train`, the key in the section that has the pretraining's name. Returns NULL if there is none. */
static const ad_schema_entry *source_of(const derivation *d, const ad_schema_entry *wanted) {
  char path[128];
  snprintf(path, sizeof path, "%s", wanted->key.path);
  if (wanted->home == AD_HOME_RECIPE && !strncmp(path, "train.", 6))
    snprintf(path, sizeof path, "%s.%s", d->pretraining->name, wanted->key.path + 6);
  const ad_schema_entry *found = ad_schema_find(&d->known, path);
  return found && found->home == AD_HOME_OPTIONS ? found : NULL;
}

static ad_status take_key(derivation *d, const ad_schema_entry *wanted) {
  const ad_schema_entry *source = source_of(d, wanted);
  char *value;
  if (!source) return AD_OK;
  AD_TRY(ad_recipe_print_key(d->from, &d->known, source, &value));
  ad_status status = set(d, wanted->key.path, value);
  ad_release(value);
  return status;
}

static int64_t steps_of(const ad_recipe *recipe) {
  return *(const int64_t *)((const char *)recipe->options + recipe->program->course.pretraining->steps);
}

/* Copies the keys of `evaluate` that the recipe gives. */
static ad_status take_evaluation(derivation *d) {
  const ad_recipe *from = d->from;
  if (ad_recipe_gives(from, "evaluate.samples")) AD_TRY(set_number(d, "evaluate.samples", from->evaluate.samples));
  return ad_recipe_gives(from, "evaluate.every") ? set_number(d, "evaluate.every", from->evaluate.every) : AD_OK;
}

/* Sets the remaining keys of the pretraining's recipe. The ranks of the program's own training exist already and have
 * no other work, so all of them divide the batch. The pretraining always ends with a checkpoint, from which any number
 * of ranks can resume. */
static ad_status take_rest(derivation *d) {
  char text[192];
  int64_t world, every = d->from->checkpoint.every;
  AD_TRY(ad_recipe_world(d->from, &world));
  AD_TRY(set(d, "model.kind", d->pretraining->kind()->name));
  snprintf(text, sizeof text, "%s-%s", d->from->name, d->pretraining->name);
  AD_TRY(set(d, "name", text));
  snprintf(text, sizeof text, "dp_replicate=%lld", (long long)world);
  AD_TRY(set(d, "mesh", text));
  AD_TRY(set_number(d, "train.seed", d->from->train.seed));
  AD_TRY(set_number(d, "checkpoint.every", every ? every : steps_of(d->from)));
  AD_TRY(set_number(d, "checkpoint.keep", d->from->checkpoint.keep));
  return take_evaluation(d);
}

static ad_status derive(derivation *d, ad_recipe **out) {
  enum { REST = 8 };
  AD_TRY(ad_schema_create(d->from->program, &d->known));
  AD_TRY(ad_schema_create(d->pretraining->kind(), &d->wanted));
  AD_TRY(ad_new(d->wanted.count + REST, &d->sets));
  for (size_t i = 0; i < d->wanted.count; i++) AD_TRY(take_key(d, &d->wanted.entries[i]));
  AD_TRY(take_rest(d));
  return ad_recipe_parse("", d->from->path, (const char *const *)d->sets, d->count, out);
}

ad_status ad_recipe_pretraining(const ad_recipe *recipe, ad_recipe **out) {
  AD_NEED(recipe, out);
  derivation d = {.from = recipe, .pretraining = recipe->program->course.pretraining};
  *out = NULL;
  if (!d.pretraining || !steps_of(recipe)) return AD_OK;
  ad_status status = derive(&d, out);
  for (size_t i = 0; i < d.count; i++) ad_release(d.sets[i]);
  ad_release(d.sets);
  ad_schema_release(&d.wanted);
  ad_schema_release(&d.known);
  return status;
}
