/* The key `groups`: reads it, holds it against the parameters, and derives each group's optimizer. print.c prints it. */
#include "recipe/groups.h"

#include <string.h>
#include "base/memory.h"
#include "mesh/mesh.h"
#include "optim/stacks.h"
#include "program/program.h"
#include "reduce/plan.h"

#define AT(field) offsetof(ad_recipe_group, field)

enum { MATCH, KIND, LR, DECAY, FROZEN, KEYS };

static const ad_key keys[KEYS] = {[MATCH] = {"match", AD_KEY_TEXT, .offset = AT(pattern),
                                             .help = "a pattern of parameter names, such as \"*.norm.*\""},
                                  [KIND] = {"kind", AD_KEY_BOOLEAN, .offset = AT(kind), .words = ad_optimizer_names,
                                            .help = "what updates parameters"},
                                  [LR] = {"lr", AD_KEY_NUMBER, .offset = AT(lr), .least = 0, .most = 1e6},
                                  [DECAY] = {"decay", AD_KEY_NUMBER, .offset = AT(decay), .least = 0, .most = 1e3},
                                  [FROZEN] = {"frozen", AD_KEY_BOOLEAN, .offset = AT(frozen)}};
static const int flags[KEYS] = {
    [KIND] = AD_GIVES_KIND, [LR] = AD_GIVES_LR, [DECAY] = AD_GIVES_DECAY, [FROZEN] = AD_GIVES_FROZEN};

const ad_entry_kind ad_group_entries = {.path = "groups",
                                        .keys = keys,
                                        .flags = flags,
                                        .key_count = KEYS,
                                        .size = sizeof(ad_recipe_group),
                                        .most = AD_GROUPS_MAX - 1,
                                        .example = "{match: \"*.norm.*\", decay: 0}",
                                        .names = "match, kind, lr, decay and frozen"};

static const char *path_of(size_t index, const char *name, char buffer[AD_ENTRY_PATH_SIZE]) {
  return ad_entry_path(&ad_group_entries, index, name, buffer);
}

/* ---- reading ---- */

/* Checks a group whose keys were all read. */
static int is_complete(ad_reading *r, const ad_node *map, size_t index, const ad_recipe_group *group) {
  const int others = AD_GIVES_KIND | AD_GIVES_LR | AD_GIVES_DECAY;
  char path[AD_ENTRY_PATH_SIZE];
  if (!group->frozen || !(group->gives & others)) return 1;
  ad_recipe_errors_add(&r->errors, ad_node_find(map, "frozen")->place, path_of(index, "frozen", path),
                       "is true, so kind, lr and decay have no effect here; leave them out");
  return 0;
}

ad_status ad_groups_read(ad_reading *r, const ad_node *node, int *good) {
  size_t i = 0;
  void *list = NULL;
  ad_status status = ad_entries_read(r, &ad_group_entries, node, &list, &r->recipe->group_count, good);
  r->recipe->groups = list;
  AD_TRY(status);
  for (const ad_node *child = list ? node->children : NULL; child; child = child->next, i++)
    *good &= is_complete(r, child, i, &r->recipe->groups[i]);
  return AD_OK;
}

/* ---- the groups of a program's parameters ---- */

static ad_patterns patterns_of(const ad_recipe *recipe) {
  return (ad_patterns){recipe->groups, sizeof *recipe->groups, recipe->group_count};
}

size_t ad_recipe_group_count(const ad_recipe *recipe) { return recipe->group_count + 1; }

size_t ad_recipe_group_of(const ad_recipe *recipe, const char *param) {
  size_t first = ad_pattern_first(patterns_of(recipe), param);
  return first < recipe->group_count ? first + 1 : 0;
}

/* Returns the entry of a group, or NULL for group 0. */
static const ad_recipe_group *group_at(const ad_recipe *recipe, size_t group) {
  return group ? &recipe->groups[group - 1] : NULL;
}

int ad_recipe_freezes(const ad_recipe *recipe, const char *param) {
  const ad_recipe_group *group = group_at(recipe, ad_recipe_group_of(recipe, param));
  return group && group->frozen;
}

/* ---- parameters that an optimizer on whole matrices cannot update ---- */

/* Those parameters of one group that are no matrices of hidden layers: for tables of rows, and for parameters with fewer
 * than 2 dimensions, their number and the name of the first. */
typedef struct misfits {
  size_t tables, vectors;
  char table[AD_PROGRAM_NAME_SIZE], vector[AD_PROGRAM_NAME_SIZE];
} misfits;

static void note_misfit(const ad_param_spec *spec, const char *name, misfits *of) {
  if (spec->matrices.form == AD_MATRIX_NONE) {
    if (!of->tables++) memcpy(of->table, name, sizeof of->table);
  } else if (spec->shape.ndim < 2) {
    if (!of->vectors++) memcpy(of->vector, name, sizeof of->vector);
  }
}

static misfits find_misfits(const ad_recipe *recipe, const ad_program *program, size_t group) {
  char name[AD_PROGRAM_NAME_SIZE];
  misfits found = {0};
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    for (size_t i = 0; i < ad_program_module(program, m)->param_count; i++) {
      const ad_param_spec *spec = &ad_program_module(program, m)->params[i];
      ad_program_param_name(program, m, i, name, sizeof name);
      if (!spec->frozen && ad_recipe_group_of(recipe, name) == group) note_misfit(spec, name, &found);
    }
  }
  return found;
}

/* Writes "`blocks.0.norm.attn` and 4 more have fewer than 2 dimensions". */
static void add_misfit(ad_text *text, const char *name, size_t count, const char *one, const char *several) {
  if (!count) return;
  ad_text_add(text, "%s`%s`", text->used ? ", and " : "", name);
  if (count > 1) ad_text_add(text, " and %zu more", count - 1);
  ad_text_add(text, " %s", count > 1 ? several : one);
}

/* Writes an entry of groups for a parameter and those like it. */
static void add_entry(ad_text *text, const char *name) {
  if (*name)
    ad_text_add(text, "%s{match: \"%s\", kind: adamw}", text->used ? ", " : "", strstr(name, "norm") ? "*norm*" : name);
}

/* Refuses parameters that the group's optimizer, which works on whole matrices, cannot update. Another optimizer is never
 * taken without a word. */
static void check_matrices(ad_reading *r, const ad_program *program, size_t group) {
  char path[AD_ENTRY_PATH_SIZE], what[512] = "", entries[512] = "";
  ad_text words = ad_text_on(what, sizeof what), example = ad_text_on(entries, sizeof entries);
  ad_optimizer_kind kind = ad_recipe_group_kind(r->recipe, group);
  if (!ad_optimizer_record_of(kind)->whole) return;
  misfits found = find_misfits(r->recipe, program, group);
  if (!found.tables && !found.vectors) return;
  add_misfit(&words, found.table, found.tables, "is a table of rows that are looked up",
             "are tables of rows that are looked up");
  add_misfit(&words, found.vector, found.vectors, "has fewer than 2 dimensions", "have fewer than 2 dimensions");
  add_entry(&example, found.table);
  add_entry(&example, found.vector);
  int has_key = group && r->recipe->groups[group - 1].gives & AD_GIVES_KIND;
  ad_recipe_place place =
      has_key ? ad_reading_element_place(r, "groups", group - 1) : ad_reading_place(r, "optimizer.kind");
  ad_recipe_errors_add(&r->errors, place, has_key ? path_of(group - 1, "kind", path) : "optimizer.kind",
                       "is '%s', which updates matrices of hidden layers, but %s; give %s another kind by entries %s "
                       "groups, such as [%s]",
                       ad_optimizer_names[kind], what, found.tables + found.vectors > 1 ? "them" : "it",
                       has_key ? "before this one in" : "of", entries);
}

/* A recipe's numbers are exact: 0 is 0 there, not the default. */
static ad_optimizer_options options_of(const ad_recipe *recipe, size_t group) {
  const ad_recipe_group *own = group_at(recipe, group);
  ad_optimizer_options options = recipe->optimizer;
  options.size = sizeof options;
  options.kind = ad_recipe_group_kind(recipe, group);
  if (own && own->gives & AD_GIVES_DECAY) options.weight_decay = own->decay;
  ad_optimizer_options_exactly(&options);
  options.decays_all = own && own->gives & AD_GIVES_DECAY;
  return options;
}

/* ---- replicas among which matrices are dealt ---- */

/* Refuses a way that deals the group's matrices to more replicas than share the work. */
static void check_replicas(ad_reading *r, const ad_param_spec *spec, const char *name, size_t group) {
  const ad_optimizer_options options = options_of(r->recipe, group);
  const ad_optimizer_record *record = ad_optimizer_record_of(options.kind);
  if (spec->frozen || !record->whole || ad_optimizer_is_blockwise(record, &options)) return;
  int64_t replicas = ad_mesh_ranks_over(spec->storage.mesh, ad_replica_axes(ad_param_update(spec)));
  if (!record->whole->way || record->whole->way(&options) != AD_WAY_DEALT_TO_REPLICAS ||
      replicas <= AD_DEALT_REPLICAS_MAX)
    return;
  ad_recipe_errors_add(&r->errors, ad_reading_place(r, "optimizer.muon.way"), "optimizer.muon.way",
                       "is 'dealt_to_replicas', but %lld replicas store `%s`, and each would have the results of all "
                       "others in memory; at most %d replicas share the work; choose another way",
                       (long long)replicas, name, AD_DEALT_REPLICAS_MAX);
}

/* Checks the ways of all parameters up to the first that is refused. */
static void check_ways(ad_reading *r, const ad_program *program) {
  char name[AD_PROGRAM_NAME_SIZE];
  for (size_t m = 0; m < ad_program_module_count(program); m++)
    for (size_t i = 0; i < ad_program_module(program, m)->param_count && !r->errors.status; i++) {
      ad_program_param_name(program, m, i, name, sizeof name);
      check_replicas(r, &ad_program_module(program, m)->params[i], name, ad_recipe_group_of(r->recipe, name));
    }
}

/* ---- checking groups ---- */

static size_t count_trained(const ad_program *program) {
  size_t trained = 0;
  for (size_t m = 0; m < ad_program_module_count(program); m++)
    for (size_t i = 0; i < ad_program_module(program, m)->param_count; i++)
      trained += !ad_program_module(program, m)->params[i].frozen;
  return trained;
}

void ad_groups_check(ad_reading *r, const ad_program *program) {
  for (size_t g = 0; g <= r->recipe->group_count; g++) check_matrices(r, program, g);
  check_ways(r, program);
  if (!r->recipe->group_count) return;
  ad_patterns_check(r, program, patterns_of(r->recipe), "groups", "match");
  ad_entries_check_gives(r, program, &ad_group_entries, patterns_of(r->recipe), "kind, lr, decay or frozen");
  if (!count_trained(program))
    ad_recipe_errors_add(&r->errors, ad_reading_place(r, "groups"), "groups",
                         "all parameters are frozen, so nothing trains; leave `frozen` out of a group");
}

/* ---- the optimizer of each group ---- */

ad_optimizer_kind ad_recipe_group_kind(const ad_recipe *recipe, size_t group) {
  const ad_recipe_group *own = group_at(recipe, group);
  return own && own->gives & AD_GIVES_KIND ? own->kind : recipe->optimizer.kind;
}

int ad_recipe_uses(const ad_recipe *recipe, ad_optimizer_kind kind) {
  for (size_t g = 0; g <= recipe->group_count; g++)
    if (ad_recipe_group_kind(recipe, g) == kind) return 1;
  return 0;
}

void ad_recipe_optimizers(const ad_recipe *recipe, ad_dtype dtype, ad_optimizer_options options[AD_GROUPS_MAX]) {
  for (size_t g = 0; g <= recipe->group_count; g++) {
    options[g] = options_of(recipe, g);
    if (dtype) options[g].muon.dtype = 0;
  }
}

ad_status ad_recipe_rates(const ad_recipe *recipe, int64_t step, double rates[AD_GROUPS_MAX]) {
  ad_schedule schedule = {.size = sizeof schedule,
                          .warmup = recipe->train.warmup,
                          .steps = recipe->train.steps,
                          .final_fraction = recipe->train.final_lr_fraction};
  for (size_t g = 0; g <= recipe->group_count; g++) {
    const ad_recipe_group *own = group_at(recipe, g);
    schedule.lr = own && own->gives & AD_GIVES_LR ? own->lr : recipe->train.lr;
    AD_TRY(ad_schedule_at(&schedule, step, &rates[g]));
  }
  return AD_OK;
}
