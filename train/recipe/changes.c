/* Compares keys with their defaults. print.c prints the values. */
#include "recipe/changes.h"

#include <string.h>
#include "base/memory.h"
#include "recipe/schema.h"

/* Adds a key, unless its value is its default. */
static ad_status add_change(const ad_recipe *recipe, const ad_schema *schema, const char *path,
                            ad_recipe_changes *out) {
  const ad_schema_entry *entry = ad_schema_find(schema, path);
  ad_recipe_change *change = &out->list[out->count];
  AD_TRY(ad_recipe_print_key(recipe, schema, entry, &change->value));
  if (ad_key_is_default(&entry->key, change->value)) {
    ad_release(change->value);
    change->value = NULL;
    return AD_OK;
  }
  out->count++;
  change->fallback = entry->key.fallback && *entry->key.fallback ? entry->key.fallback : NULL;
  return ad_copy_string(path, &change->key);
}

static ad_status list(const ad_recipe *recipe, const ad_schema *schema, ad_recipe_changes *out) {
  AD_TRY(ad_new(recipe->given_count, &out->list));
  for (size_t i = 0; i < recipe->given_count; i++) AD_TRY(add_change(recipe, schema, recipe->given[i], out));
  return AD_OK;
}

ad_status ad_recipe_changes_list(const ad_recipe *recipe, ad_recipe_changes *out) {
  ad_recipe_changes changes = {0};
  ad_schema schema;
  AD_TRY(ad_schema_create(recipe->program, &schema));
  ad_status status = list(recipe, &schema, &changes);
  ad_schema_release(&schema);
  if (status)
    ad_recipe_changes_release(&changes);
  else
    *out = changes;
  return status;
}

void ad_recipe_changes_release(ad_recipe_changes *changes) {
  for (size_t i = 0; i < changes->count; i++) {
    ad_release(changes->list[i].key);
    ad_release(changes->list[i].value);
  }
  ad_release(changes->list);
  *changes = (ad_recipe_changes){0};
}
