/* What a check found about the updates of each group of parameters. */
#ifndef CHECK_GROUPS_H
#define CHECK_GROUPS_H
#include <jansson.h>
#include "check/result.h"

/* Returns 1 if the recipe has groups, or updates whole matrices. */
int ad_groups_are_reported(const ad_recipe *recipe);
/* Returns the pattern of the group with this number (recipe/groups.h); null for group 0, which has none. */
json_t *ad_group_match_document(const ad_recipe *recipe, size_t group);
/* Returns a list of the groups that have parameters: the recipe's, and then the parameters that no pattern matches. */
json_t *ad_groups_document(const ad_recipe *recipe, const ad_check_result *result);

#endif
