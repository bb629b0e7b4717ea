/* Checks keys that depend on each other: common keys here, a program's keys by functions of the program's record. The
 * ranges of single values are in the schema. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "optim/record.h"
#include "program/keys.h"
#include "program/program.h"
#include "recipe/groups.h"
#include "recipe/leaves.h"
#include "recipe/precision_policy.h"
#include "recipe/name.h"
#include "recipe/prompts.h"
#include "recipe/reading.h"
#include "recipe/recipe.h"
#include "recipe/recompute.h"
#include "recipe/schedule.h"
#include "recipe/shard_groups.h"
#include "recipe/weights.h"
#include "mesh/mesh.h"

enum { PATH_SIZE = 256 };

/* Returns 1 if all these keys were read without errors; only then can they be judged together. The path of a section
 * means all its keys. */
static int are_read(const ad_reading *r, const char *const *paths, size_t path_count) {
  for (size_t i = 0; i < path_count; i++) {
    size_t length = strlen(paths[i]);
    for (size_t k = 0; k < r->schema.count; k++) {
      const char *path = r->schema.entries[k].key.path;
      if (r->wrong[k] && !strncmp(path, paths[i], length) && (!path[length] || path[length] == '.')) return 0;
    }
  }
  return 1;
}
#define ARE_READ(r, ...) \
  are_read(r, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

#define WRONG(r, path, ...) ad_recipe_errors_add(&(r)->errors, ad_reading_place(r, path), path, __VA_ARGS__)

static void check_name(ad_reading *r) {
  const char *name = r->recipe->name;
  if (ARE_READ(r, "name") && !ad_name_is_good(name))
    WRONG(r, "name",
          "names a folder, so it must have only letters, digits, '.', '_' and '-', not begin with '.' or '-', and have "
          "at most %d bytes, but is '%s'",
          AD_NAME_BYTES, name);
}

static void check_kind(ad_reading *r) {
  char known[PATH_SIZE];
  if (ARE_READ(r, "model.kind") && !r->recipe->program)
    WRONG(r, "model.kind", "must be %s, but is '%s'; load a custom program with --program FILE",
          ad_kinds_known(known, sizeof known), r->recipe->kind);
}

static void check_weights(ad_reading *r) {
  if (r->recipe->from && r->recipe->weights && ARE_READ(r, "model.from", "model.weights"))
    WRONG(r, "model.weights",
          "is set, but model.from, which gives the initial values too, is also set; leave one of the two keys out");
}

static void check_placement(ad_reading *r) {
  const char *placement = r->recipe->placement;
  if (placement && ARE_READ(r, "placement") && strcmp(placement, AD_COLOCATED) != 0 &&
      strcmp(placement, AD_DISJOINT) != 0)
    WRONG(r, "placement", "must be " AD_COLOCATED " or " AD_DISJOINT ", but is '%s'", placement);
}

/* Returns 1 if, with schedule zb, a microbatch before the last has sync `all`. Such a microbatch may end before all
 * gradients of its weights are computed, and the reducer refuses to sum an incomplete gradient over all ranks. */
static int is_all_too_early(const ad_recipe *recipe) {
  int is_early = 0;
  if (!recipe->schedule.kind || strcmp(recipe->schedule.kind, "zb") != 0) return 0;
  for (size_t m = 0; m + 1 < recipe->train.sync_count; m++) is_early |= recipe->train.sync[m] == AD_SYNC_ALL;
  return is_early;
}

static int is_given(const ad_reading *r, const char *path) {
  return r->nodes[ad_schema_find(&r->schema, path) - r->schema.entries] != NULL;
}

static void check_sync(ad_reading *r) {
  const ad_recipe *recipe = r->recipe;
  size_t count = recipe->train.sync_count;
  if (!count || !ARE_READ(r, "train.sync", "train.microbatches")) return;
  if (count != (size_t)recipe->train.microbatches)
    WRONG(r, "train.sync",
          "has %zu entries, but must have one for each microbatch, and train.microbatches is %lld; leave train.sync "
          "out for the default",
          count, (long long)recipe->train.microbatches);
  else if (recipe->train.sync[count - 1] != AD_SYNC_ALL)
    WRONG(r, "train.sync", "must end in 'all', but ends in '%s'", ad_sync_names[recipe->train.sync[count - 1]]);
  else if (is_all_too_early(recipe))
    WRONG(
        r, "train.sync",
        "has 'all' before the last microbatch, which schedule.kind zb does not allow, because it computes gradients of "
        "weights after their microbatch has ended; use 'shard' or 'none' there, or schedule.kind 1f1b or interleaved");
}

static ad_status complete_sync(ad_reading *r) {
  ad_recipe *recipe = r->recipe;
  size_t count = (size_t)recipe->train.microbatches;
  int is_left_out = !recipe->train.sync_count;
  if (is_left_out) {
    // The leaves of a rank are the same for all parameters, and so is how far a leaf's gradients are reduced.
    int64_t zero = recipe->train.leaves ? ad_recipe_highest_zero(recipe) : recipe->shard.zero;
    AD_TRY(ad_new(count, &recipe->train.sync));
    for (size_t i = 0; i < count; i++) recipe->train.sync[i] = i + 1 < count ? ad_usual_sync(zero) : AD_SYNC_ALL;
    recipe->train.sync_count = count;
  }
  return r->errors.status ? AD_OK : ad_shard_groups_complete_sync(r, !is_left_out);
}

static void check_warmup(ad_reading *r) {
  long long warmup = r->recipe->train.warmup, steps = r->recipe->train.steps;
  if (ARE_READ(r, "train.warmup", "train.steps") && warmup > steps)
    WRONG(r, "train.warmup",
          "must be at most train.steps, which is %lld, but is %lld, so the learning rate would never reach train.lr; "
          "set train.warmup to at most %lld, or train.steps to at least %lld",
          steps, warmup, steps, warmup);
}

/* ---- the optimizer ---- */

/* Returns where in ad_optimizer_options a key's value is, or 0 if it is not an option of an optimizer. */
static size_t option_of(const ad_schema_entry *entry) {
  size_t first = offsetof(ad_recipe, optimizer), offset = entry->key.offset;
  return entry->home == AD_HOME_RECIPE && offset > first && offset < first + sizeof(ad_optimizer_options)
             ? offset - first
             : 0;
}

static const ad_schema_entry *entry_of_option(const ad_reading *r, size_t option) {
  size_t i = 0;
  while (option_of(&r->schema.entries[i]) != option) i++;
  return &r->schema.entries[i];
}

/* Returns the first kind of optimizer that reads an option and, if `used` is 1, that the recipe uses;
 * AD_OPTIMIZER_COUNT if there is none. */
static ad_optimizer_kind kind_with(const ad_recipe *recipe, size_t option, int used) {
  int kind = 0;
  while (kind < AD_OPTIMIZER_COUNT &&
         ((used && !ad_recipe_uses(recipe, (ad_optimizer_kind)kind)) ||
          !ad_optimizer_option_at(ad_optimizer_record_of((ad_optimizer_kind)kind), option)))
    kind++;
  return (ad_optimizer_kind)kind;
}

/* Refuses an option that no optimizer of the recipe reads. */
static void report_unread(ad_reading *r, const ad_schema_entry *entry) {
  const char *reader = ad_optimizer_names[kind_with(r->recipe, option_of(entry), 0)];
  if (r->recipe->group_count)
    WRONG(r, entry->key.path,
          "is set, but no parameter is updated by %s, which alone reads it; leave this key out, or give optimizer.kind "
          "or a group the kind '%s'",
          reader, reader);
  else
    WRONG(r, entry->key.path,
          "is set, but optimizer.kind is '%s', which does not read it; leave this key out, or set "
          "optimizer.kind to '%s'",
          ad_optimizer_names[r->recipe->optimizer.kind], reader);
}

/* Refuses an option that no optimizer of the recipe reads, or that has an effect only together with another option. An
 * option with its default is not refused, because a printed recipe has every key. */
static ad_status check_option(ad_reading *r, const ad_schema_entry *entry) {
  ad_optimizer_kind kind = kind_with(r->recipe, option_of(entry), 1);
  const ad_optimizer_record *record = ad_optimizer_record_of(kind);
  char *value;
  AD_TRY(ad_recipe_print_key(r->recipe, &r->schema, entry, &value));
  int is_default = ad_key_is_default(&entry->key, value);
  ad_release(value);
  if (is_default) return AD_OK;
  const ad_option_record *option = record ? ad_optimizer_option_at(record, option_of(entry)) : NULL;
  if (!option) {
    report_unread(r, entry);
  } else if (ad_optimizer_option_is_missing(record, option->needs, &r->recipe->optimizer)) {
    const char *needed = entry_of_option(r, option->needs)->key.path;
    WRONG(r, entry->key.path, "is set, but has no effect where %s is 0; set %s above 0, or leave this key out", needed,
          needed);
  }
  return AD_OK;
}

static ad_status check_optimizer(ad_reading *r) {
  if (!ARE_READ(r, "optimizer", "groups")) return AD_OK;
  for (size_t i = 0; i < r->schema.count; i++) {
    const ad_schema_entry *entry = &r->schema.entries[i];
    if (option_of(entry) && option_of(entry) != offsetof(ad_optimizer_options, kind) && !r->wrong[i] && r->nodes[i])
      AD_TRY(check_option(r, entry));
  }
  return AD_OK;
}

/* ---- precision ---- */

/* Returns the path of the key that most likely made a precision policy invalid. */
static const char *policy_path(const ad_reading *r) {
  static const char *const paths[] = {"precision.accumulate", "precision.reduce", "precision.grad"};
  for (int i = 0; i < 3; i++)
    if (r->nodes[ad_schema_find(&r->schema, paths[i]) - r->schema.entries]) return paths[i];
  return "precision";
}

/* Checks the recipe's precision policy, and the policy of each override. */
static void check_policies(ad_reading *r) {
  if (!ARE_READ(r, "precision.param", "precision.grad", "precision.reduce", "precision.accumulate", "precision.compute",
                "precision.overrides"))
    return;
  ad_precision_policy whole = r->recipe->precision.policy;
  if (ad_recipe_complete(r->recipe, &whole)) {
    WRONG(r, policy_path(r), "%s", ad_last_error());
    return;
  }
  for (size_t i = 0; i < r->recipe->precision.override_count; i++) {
    const ad_recipe_override *override = &r->recipe->precision.overrides[i];
    ad_precision_policy policy = ad_precision_policy_merge(r->recipe->precision.policy, override->policy);
    if (ad_recipe_complete(r->recipe, &policy))
      WRONG(r, "precision.overrides", "for the pattern \"%s\": %s", override->pattern, ad_last_error());
  }
}

static void check_compute(ad_reading *r) {
  ad_dtype compute = r->recipe->precision.compute;
  ad_dtype residual = r->recipe->precision.residual;
  if (!ARE_READ(r, "precision.compute", "precision.residual")) return;
  if (residual && residual != compute && residual != ad_dtype_wide(compute))
    WRONG(r, "precision.residual", "must be auto%s%s where precision.compute is %s, but is %s",
          compute == AD_BF16 ? ", f32 or " : " or ", ad_dtype_name(compute), ad_dtype_name(compute),
          ad_dtype_name(residual));
}

/* Returns where a key that a program names is written: the element for "data.text[1]", the key for "data.text". */
static ad_recipe_place take_place(const ad_reading *r, const char *key, char path[PATH_SIZE]) {
  ad_text text = ad_text_on(path, PATH_SIZE);
  ad_text_add(&text, "%.*s", (int)strcspn(key, "["), key);
  return key[text.used] ? ad_reading_element_place(r, path, strtoul(key + text.used + 1, NULL, 10))
                        : ad_reading_place(r, path);
}

/* Adds a complaint (of the program, or of another check) to the recipe's errors. */
static void complain(void *context, const char *key, ad_status status, const char *message) {
  ad_reading *r = context;
  char path[PATH_SIZE];
  ad_recipe_place place = take_place(r, key, path);
  if (!ARE_READ(r, path)) return; /* an error was added when this key was read */
  if (status == AD_MEMORY)
    r->errors.status = AD_MEMORY;
  else if (status == AD_IO)
    ad_recipe_errors_add_io(&r->errors, place, path, "%s", message);
  else
    ad_recipe_errors_add(&r->errors, place, path, "%s", message);
}

static ad_complaints complaints_of(ad_reading *r) { return (ad_complaints){complain, r}; }

/* Refuses blocks whose sizes depend on the number of ranks where bits must not, and a way to make matrices whole that
 * blocks do not take. */
static void check_blocks(ad_reading *r) {
  const ad_muon_options *muon = &r->recipe->optimizer.muon;
  if (muon->blockwise && muon->way != AD_WAY_CHEAPEST && ad_recipe_uses(r->recipe, AD_MUON) &&
      ARE_READ(r, "optimizer", "groups"))
    WRONG(r, "optimizer.muon.way",
          "is set, but has no effect where optimizer.muon.blockwise is true; leave one of the two keys out");
  if (r->recipe->train.leaves && r->recipe->optimizer.muon.blockwise && ARE_READ(r, "optimizer.muon", "train.leaves"))
    WRONG(
        r, "optimizer.muon.blockwise",
        "does not work with train.leaves, because updates would depend on how many ranks share a matrix; leave one of "
        "the two keys out");
}

/* Adds the library's last error to the recipe's errors. AD_MEMORY is returned instead. */
static ad_status take_failure(ad_reading *r, const char *path, ad_status status) {
  if (status == AD_MEMORY) return status;
  WRONG(r, path, "%s", ad_last_error());
  return AD_OK;
}

/* Returns 1 if the recipe gives this key a value other than its default. A key with its default does not count, because
 * a printed recipe has every key. */
static int asks(const ad_reading *r, const ad_schema_entry *entry) {
  int64_t value;
  memcpy(&value, ad_schema_base(entry, r->recipe) + entry->key.offset, sizeof value);
  return r->nodes[entry - r->schema.entries] && value && value != strtoll(entry->key.fallback, NULL, 10);
}

/* If there is no validation data, adds an error for each key of `evaluate` that would be ignored. */
static void check_evaluated(ad_reading *r, const ad_program *program) {
  static const char *const paths[] = {"evaluate.samples", "evaluate.every", "evaluate.lines"};
  int has_key = ad_schema_find(&r->schema, "data.validation") != NULL;
  if (ad_program_has_validation(program)) return;
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    const ad_schema_entry *entry = ad_schema_find(&r->schema, paths[i]);
    if (!entry || !asks(r, entry)) continue;
    WRONG(r, paths[i], "is set, but there is no validation data; %s",
          has_key ? "set data.validation above 0, or leave this key out"
                  : "this program has no validation data, so leave this key out");
  }
}

/* Refuses a parameter of a recipe with leaves whose sums are sent in a dtype other than that in which they are added.
 * They would be rounded between ranks, so the result would depend on the number of ranks. */
static void check_leaf_sums(ad_reading *r, const ad_program *program) {
  for (size_t i = 0; r->recipe->train.leaves && i < ad_program_module(program, 0)->param_count; i++) {
    char name[AD_PROGRAM_NAME_SIZE];
    ad_precision_policy policy, whole = r->recipe->precision.policy;
    ad_program_param_name(program, 0, i, name, sizeof name);
    if (ad_recipe_precision_policy(r->recipe, name, &policy)) return;  // reported by check_policies
    if (ad_recipe_complete(r->recipe, &whole)) return;
    if (policy.reduce == policy.accumulate) continue;
    WRONG(r, "train.leaves",
          "needs gradients that are sent in the dtype in which sums form, so that nothing is rounded on the way, but "
          "for `%s` precision.reduce is %s and precision.accumulate is %s; set `reduce` to %s %s",
          name, ad_dtype_name(policy.reduce), ad_dtype_name(policy.accumulate), ad_dtype_name(policy.accumulate),
          whole.reduce == whole.accumulate ? "in its entry of precision.overrides" : "in `precision`");
    return;
  }
}

/* Notes whether ZeRO shards the gradient of any parameter over dp_shard. The reducer's deal of leaves depends on it, too
 * (ad_leaf_deal). */
static void find_scattered(ad_recipe *recipe, const ad_program *program) {
  for (size_t i = 0; i < ad_program_module(program, 0)->param_count; i++) {
    const ad_param_spec *spec = &ad_program_module(program, 0)->params[i];
    char name[AD_PROGRAM_NAME_SIZE];
    int is_sharded = ad_recipe_shard_of(recipe, ad_program_param_name(program, 0, i, name, sizeof name)).zero > 0;
    recipe->train.scatters |= is_sharded && !spec->frozen && spec->shape.ndim && spec->sharded & AD_AXES(AD_DP_SHARD);
  }
}

static void check_params(ad_reading *r, const ad_program *program) {
  ad_patterns_check(r, program, ad_recipe_overrides(r->recipe), "precision.overrides", NULL);
  ad_recipe_warn_of_overrides(r->recipe, program);
  ad_groups_check(r, program);
  ad_shard_groups_check(r, program);
  ad_recompute_check(r, program);
  check_evaluated(r, program);
  check_leaf_sums(r, program);
  find_scattered(r->recipe, program);
}

/* If there are no errors so far, creates the program, and checks what depends on its parameters. */
static ad_status check_made(ad_reading *r, const ad_comm *comm) {
  ad_program *program;
  if (r->errors.status) return AD_OK;
  ad_status status = ad_recipe_declare(r->recipe, comm, 0, &program);
  if (status) return take_failure(r, "model", status);
  status = ad_recipe_specify(r->recipe, program, 0);
  if (!status) check_params(r, program);
  ad_program_destroy(program);
  return status;
}

/* Checks views and prompts, and calls the program's own checks of its options. */
static void check_rules(ad_reading *r, const ad_program_setting *setting, const ad_mesh *const *meshes,
                        const ad_complaints *to) {
  const ad_program_kind *program = r->recipe->program;
  if (ARE_READ(r, "mesh")) ad_keys_check_views(program, r->recipe->options, meshes[0], to);
  if (program->rules.check)
    AD_GUEST_VOID(program, "check", program->rules.check(r->recipe->options, setting, meshes, to));
  if (ARE_READ(r, "evaluate", "model.vocabulary", "data")) ad_prompts_check(r->recipe, to);
}

/* Makes the mesh of the first stage. If that fails, makes a mesh of one rank instead; the error was added before. */
static ad_status make_stage(ad_reading *r, const ad_mesh *mesh, ad_mesh **out) {
  ad_status status = ad_mesh_create_stage(mesh, 0, out);
  if (!status || status == AD_MEMORY) return status;
  r->wrong[ad_schema_find(&r->schema, "mesh") - r->schema.entries] = 1;
  return ad_mesh_create("", out);
}

/* Checks the schedule of a program with stages, and then the program's rules on the mesh of one stage. */
static ad_status check_stages(ad_reading *r, ad_program_setting *setting, const ad_mesh *mesh,
                              const ad_complaints *to) {
  ad_mesh *stage;
  if (ARE_READ(r, "mesh")) ad_recipe_check_schedule(r->recipe, mesh, to, &setting->stages);
  AD_TRY(make_stage(r, mesh, &stage));
  check_rules(r, setting, (const ad_mesh *const[]){stage}, to);
  ad_mesh_destroy(stage);
  return AD_OK;
}

/* Calls the checks of the program that the recipe names, and then creates the program on backend dry. */
static ad_status check_program(ad_reading *r, const ad_mesh *const *meshes) {
  ad_comm *comm;
  ad_status status = AD_OK;
  if (!r->recipe->program) return AD_OK;
  AD_TRY(ad_comm_open_dry(0, ad_recipe_ranks(r->recipe, meshes), &comm));
  ad_program_setting setting = ad_recipe_setting(r->recipe, comm, 0);
  ad_complaints to = complaints_of(r);
  if (r->recipe->program->has_stages)
    status = check_stages(r, &setting, meshes[0], &to);
  else
    check_rules(r, &setting, meshes, &to);
  if (!status) status = check_made(r, comm);
  ad_comm_close(comm);
  return status;
}

/* ---- checking the modules' meshes ---- */

/* Makes a module's mesh. If the mesh cannot be made, adds an error and makes a mesh of one rank instead, so that the
 * other checks can continue. */
static ad_status make_mesh(ad_reading *r, size_t entry, size_t module, int64_t first, ad_mesh **out) {
  const char *text = r->recipe->meshes[module].text;
  ad_status status = r->wrong[entry] ? AD_INVALID : ad_mesh_create_pool(text, first, out);
  if (!status) return AD_OK;
  if (!r->wrong[entry]) AD_TRY(take_failure(r, r->schema.entries[entry].key.path, status));
  r->wrong[entry] = 1;
  return ad_mesh_create_pool("", first, out);
}

/* Makes the meshes of all modules. Disjoint meshes follow each other: each begins after the ranks of the one before. */
static ad_status make_meshes(ad_reading *r, ad_mesh **meshes) {
  size_t module = 0;
  int64_t first = 0;
  for (size_t i = 0; i < r->schema.count; i++) {
    if (r->schema.entries[i].home != AD_HOME_MESHES) continue;
    AD_TRY(make_mesh(r, i, module, first, &meshes[module]));
    if (ad_recipe_is_disjoint(r->recipe)) first += ad_mesh_size(meshes[module]);
    module++;
  }
  return AD_OK;
}

/* Completes train.microbatches and train.sync, and checks the keys that leaves need. */
static ad_status check_parts(ad_reading *r, const ad_mesh *mesh) {
  ad_recipe *recipe = r->recipe;
  ad_complaints to = complaints_of(r);
  int has_leaves =
      recipe->program && recipe->train.leaves &&
      ARE_READ(r, "mesh", "shard.zero", "shard.groups", "schedule", "train.leaves", "train.microbatches", "train.sync");
  if (has_leaves && !is_given(r, "train.microbatches") && !is_given(r, "train.sync"))
    recipe->train.microbatches = ad_recipe_usual_microbatches(recipe, mesh);
  if (has_leaves) ad_recipe_check_leaves(recipe, mesh, &to);
  return complete_sync(r);
}

static ad_status check_on(ad_reading *r, ad_mesh **meshes) {
  const ad_mesh *const *made = (const ad_mesh *const *)meshes;
  AD_TRY(make_meshes(r, meshes));
  if (ARE_READ(r, "mesh")) {
    ad_status status = ad_recipe_check_sizes(r->recipe, made);
    if (status) AD_TRY(take_failure(r, "mesh", status));
  }
  AD_TRY(check_parts(r, made[0]));
  return check_program(r, made);
}

static void check_outer(ad_reading *r) {
  if (!ARE_READ(r, "shard.zero", "shard.outer_zero", "shard.groups")) return;
  if (ad_recipe_highest_zero(r->recipe) || !r->recipe->shard.outer_zero) return;
  WRONG(r, "shard.outer_zero",
        "is 1, but shard.zero is 0, so that no parameter is sharded over dp_shard, inside of which dp_replicate would "
        "shard; set shard.zero to 1, 2 or 3, or outer_zero to 0");
}

static ad_status check_meshes(ad_reading *r) {
  ad_mesh **meshes;
  AD_TRY(ad_new(r->recipe->mesh_count, &meshes));
  ad_status status = check_on(r, meshes);
  for (size_t i = 0; i < r->recipe->mesh_count; i++) ad_mesh_destroy(meshes[i]);
  ad_release(meshes);
  return status;
}

/* ---- running all checks ---- */

ad_status ad_reading_check(ad_reading *r) {
  check_name(r);
  check_kind(r);
  check_weights(r);
  check_placement(r);
  check_sync(r);
  if (ARE_READ(r, "shard.groups", "train.microbatches")) ad_shard_groups_check_sync(r);
  check_warmup(r);
  check_compute(r);
  check_policies(r);
  check_outer(r);
  AD_TRY(check_optimizer(r));
  check_blocks(r);
  return check_meshes(r);
}

void ad_reading_check_files(ad_reading *r, int with_values) {
  const ad_program_kind *program = r->recipe->program;
  ad_complaints to = complaints_of(r);
  if (ARE_READ(r, "model.from", "model.weights"))
    ad_recipe_check_weights(r->recipe, r->config.architecture,
                            (ad_weights_asked){.fit = !r->errors.status, .values = with_values || r->recipe->weights},
                            &to);
  if (program && program->rules.check_files)
    AD_GUEST_VOID(program, "check_files", program->rules.check_files(r->recipe->options, &to));
}
