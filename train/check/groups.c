/* Writes a part of the document of a check: the groups of parameters. */
#include "check/groups.h"

#include "optim/record.h"
#include "recipe/groups.h"
#include "recipe/schema.h"

json_t *ad_group_match_document(const ad_recipe *recipe, size_t group) {
  return group ? json_string(recipe->groups[group - 1].pattern) : json_null();
}

/* Returns 1 if the group's optimizer works on the blocks of matrices that ranks store, not on whole matrices. */
static int is_blockwise(const ad_recipe *recipe, size_t group) {
  ad_optimizer_options options[AD_GROUPS_MAX];
  ad_recipe_optimizers(recipe, 0, options);
  const ad_whole_record *whole = ad_optimizer_record_of(options[group].kind)->whole;
  return whole && whole->is_blockwise && whole->is_blockwise(&options[group]);
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
  if (is_blockwise(recipe, group)) json_object_set_new(document, "blockwise", json_true());
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

int ad_groups_are_reported(const ad_recipe *recipe) {
  return recipe->group_count || ad_optimizer_record_of(recipe->optimizer.kind)->whole;
}
