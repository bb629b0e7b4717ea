/* The key `groups`: reads it, holds it against the parameters, and derives each group's optimizer. print.c prints it. */
#include "recipe/groups.h"

#include <string.h>
#include "base/memory.h"
#include "base/nearest.h"
#include "mesh/mesh.h"
#include "optim/stacks.h"
#include "program/program.h"
#include "reduce/plan.h"

#define AT(field) offsetof(ad_recipe_group, field)
#define EXAMPLE "{match: \"*.norm.*\", decay: 0}"
#define KEYS "match, kind, lr, decay and frozen"

enum { MATCH, KIND, LR, DECAY, FROZEN, PATH_SIZE = 96 };

const ad_key ad_group_keys[AD_GROUP_KEYS] = {
    [MATCH] = {"match", AD_KEY_TEXT, .offset = AT(pattern),
               .help = "a pattern of parameter names, such as \"*.norm.*\""},
    [KIND] = {"kind", AD_KEY_BOOLEAN, .offset = AT(kind), .words = ad_optimizer_names,
              .help = "what updates parameters"},
    [LR] = {"lr", AD_KEY_NUMBER, .offset = AT(lr), .least = 0, .most = 1e6},
    [DECAY] = {"decay", AD_KEY_NUMBER, .offset = AT(decay), .least = 0, .most = 1e3},
    [FROZEN] = {"frozen", AD_KEY_BOOLEAN, .offset = AT(frozen)}};

/* The flag of each key in ad_recipe_group.gives; 0: every group gives it. */
static const int flags[AD_GROUP_KEYS] = {
    [KIND] = AD_GIVES_KIND, [LR] = AD_GIVES_LR, [DECAY] = AD_GIVES_DECAY, [FROZEN] = AD_GIVES_FROZEN};

int ad_group_gives(const ad_recipe_group *group, size_t key) { return !flags[key] || group->gives & flags[key]; }

/* ---- reading ---- */

/* Writes "groups[1].decay", or "groups[1]" if `name` is NULL. */
static const char *path_of(size_t index, const char *name, char buffer[PATH_SIZE]) {
  ad_text text = ad_text_on(buffer, PATH_SIZE);
  ad_text_add(&text, "groups[%zu]%s%.60s", index, name ? "." : "", name ? name : "");
  return buffer;
}

static void report_unknown(ad_reading *r, const ad_node *node, const char *path) {
  const char *nearest = NULL;
  int best = ad_name_distance_max(node->key) + 1;
  for (size_t k = 0; k < AD_GROUP_KEYS; k++) {
    int distance = ad_name_distance(ad_group_keys[k].path, node->key);
    if (distance >= best) continue;
    best = distance;
    nearest = ad_group_keys[k].path;
  }
  if (nearest)
    ad_recipe_errors_add(&r->errors, node->place, path,
                         "is an unknown key; did you mean %s? The keys of a group are " KEYS, nearest);
  else
    ad_recipe_errors_add(&r->errors, node->place, path, "is an unknown key; the keys of a group are " KEYS);
}

static int read_key(ad_reading *r, const ad_node *node, size_t index, ad_recipe_group *out) {
  char path[PATH_SIZE];
  path_of(index, node->key, path);
  size_t k = 0;
  while (k < AD_GROUP_KEYS && strcmp(ad_group_keys[k].path, node->key) != 0) k++;
  if (k == AD_GROUP_KEYS) {
    report_unknown(r, node, path);
    return 0;
  }
  out->gives |= flags[k];
  return ad_reading_value(r, &ad_group_keys[k], node, path, (char *)out + ad_group_keys[k].offset);
}

/* Checks a group whose keys were all read. */
static int is_complete(ad_reading *r, const ad_node *map, size_t index, const ad_recipe_group *group) {
  const int others = AD_GIVES_KIND | AD_GIVES_LR | AD_GIVES_DECAY;
  char path[PATH_SIZE];
  if (!group->pattern)
    ad_recipe_errors_add(&r->errors, map->place, path_of(index, "match", path), "is missing; add this key (%s)",
                         ad_group_keys[MATCH].help);
  else if (group->frozen && group->gives & others)
    ad_recipe_errors_add(&r->errors, ad_node_find(map, "frozen")->place, path_of(index, "frozen", path),
                         "is true, so kind, lr and decay have no effect here; leave them out");
  else
    return 1;
  return 0;
}

static int read_group(ad_reading *r, const ad_node *map, size_t index, ad_recipe_group *out) {
  char path[PATH_SIZE];
  if (map->kind != AD_NODE_MAP) {
    ad_reading_must_be(r, map, path_of(index, NULL, path), "a mapping such as " EXAMPLE);
    return 0;
  }
  int good = 1;
  for (const ad_node *node = map->children; node; node = node->next) good &= read_key(r, node, index, out);
  return good && is_complete(r, map, index, out);
}

ad_status ad_groups_read(ad_reading *r, const ad_node *node, int *good) {
  size_t count = node->kind == AD_NODE_LIST ? ad_node_child_count(node) : 0, i = 0;
  *good = ad_node_is_empty(node) || (node->kind == AD_NODE_LIST && count < AD_GROUPS_MAX);
  if (!*good && count)
    ad_recipe_errors_add(&r->errors, node->place, "groups", "has %zu entries, but must have at most %d", count,
                         AD_GROUPS_MAX - 1);
  else if (!*good)
    ad_reading_must_be(r, node, "groups", "a list of mappings, such as [" EXAMPLE "]");
  if (!*good || !count) return AD_OK;
  AD_TRY(ad_new(count, &r->recipe->groups));
  r->recipe->group_count = count;
  for (const ad_node *child = node->children; child; child = child->next, i++)
    *good &= read_group(r, child, i, &r->recipe->groups[i]);
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
  char path[PATH_SIZE], what[512] = "", entries[512] = "";
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

/* Returns 1 if a group excepts parameters from a later one: it has a parameter that a later pattern matches too. A group
 * without parameters also counts, since its pattern is reported. */
static int excepts(const ad_recipe *recipe, const ad_program *program, size_t group) {
  const ad_patterns later = {recipe->groups + group, sizeof *recipe->groups, recipe->group_count - group};
  char name[AD_PROGRAM_NAME_SIZE];
  size_t own = 0;
  for (size_t m = 0; m < ad_program_module_count(program); m++)
    for (size_t i = 0; i < ad_program_module(program, m)->param_count; i++) {
      ad_program_param_name(program, m, i, name, sizeof name);
      if (ad_recipe_group_of(recipe, name) != group) continue;
      if (ad_pattern_first(later, name) < later.count) return 1;
      own++;
    }
  return !own;
}

/* Refuses a group that only has a pattern, unless it keeps parameters out of a later group. */
static void check_gives(ad_reading *r, const ad_program *program, size_t group) {
  char path[PATH_SIZE];
  if (r->recipe->groups[group - 1].gives || excepts(r->recipe, program, group)) return;
  ad_recipe_errors_add(&r->errors, ad_reading_element_place(r, "groups", group - 1), path_of(group - 1, NULL, path),
                       "gives nothing, and no later group has a pattern from which it would except parameters; set "
                       "kind, lr, decay or frozen");
}

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
  for (size_t g = 1; g <= r->recipe->group_count; g++) check_gives(r, program, g);
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
