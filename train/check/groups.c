/* Writes a part of the document of a check: the groups of parameters. */
#include "check/groups.h"

#include "recipe/groups.h"
#include "recipe/schema.h"

json_t *ad_group_match_document(const ad_recipe *recipe, size_t group) {
  return group ? json_string(recipe->groups[group - 1].pattern) : json_null();
}

static json_t *group_document(const ad_recipe *recipe, const ad_check_result *result, size_t group) {
  const ad_recipe_group *entry = group ? &recipe->groups[group - 1] : NULL;
  int frozen = entry && entry->frozen, equal = 1;
  json_int_t params = 0;
  for (size_t i = 0; i < result->param_count; i++) {
    if (result->params[i].group != group) continue;
    equal &= result->params[i].update_equal;
    params++;
  }
  json_t *document = json_pack("{s:o, s:b, s:I, s:b}", "match", ad_group_match_document(recipe, group), "frozen",
                               frozen, "params", params, "updates_equal", equal);
  if (frozen) return document;
  json_object_set_new(document, "kind", json_string(ad_optimizer_names[ad_recipe_group_kind(recipe, group)]));
  json_object_set_new(document, "lr", json_real(entry && entry->gives & AD_GIVES_LR ? entry->lr : recipe->train.lr));
  return document;
}

json_t *ad_groups_document(const ad_recipe *recipe, const ad_check_result *result) {
  json_t *groups = json_array();
  size_t count = ad_recipe_group_count(recipe);
  for (size_t i = 1; i <= count; i++) {
    json_t *group = group_document(recipe, result, i % count);
    if (json_integer_value(json_object_get(group, "params")))
      json_array_append_new(groups, group);
    else
      json_decref(group);
  }
  return groups;
}
