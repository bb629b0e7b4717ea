/* Compares which optimizers a checkpoint and a run have, parameter by parameter, and begins states anew. */
#include "step/resumed_states.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "files/json.h"
#include "module/module.h"
#include "optim/record.h"
#include "program/program.h"
#include "recipe/groups.h"

enum { WORDS = AD_MESSAGE_MAX / 2, WORD_SHOWN = 40, ZEROS_SIZE = 128, BEGINS_NOW = -1 };
#define FROZEN "frozen"

static const char *name_of(const ad_run *run, size_t param, char buffer[AD_PROGRAM_NAME_SIZE]) {
  ad_run_param at = ad_run_param_at(run, param);
  return ad_program_param_name(run->program, at.module, at.param, buffer, AD_PROGRAM_NAME_SIZE);
}

/* ---- this run ---- */

ad_optimizer_kind ad_run_optimizer_kind(const ad_run *run, size_t param) {
  char name[AD_PROGRAM_NAME_SIZE];
  return ad_recipe_group_kind(run->recipe, ad_recipe_group_of(run->recipe, name_of(run, param, name)));
}

static int is_frozen(const ad_run *run, size_t param) { return ad_run_param_at(run, param).spec->frozen; }

/* Returns 1 for a parameter of a mirror, which is updated where the mirrored module is. */
static int is_mirrored(const ad_run *run, size_t param) {
  return ad_program_module(run->program, ad_run_param_at(run, param).module)->is_mirror;
}

/* Returns what a recipe calls the optimizer of a parameter, or FROZEN. */
static const char *optimizer_of(const ad_run *run, size_t param) {
  return is_frozen(run, param) ? FROZEN : ad_optimizer_names[ad_run_optimizer_kind(run, param)];
}

static int matches(const char *pattern, const char *name) {
  return !ad_pattern_first((ad_patterns){&pattern, sizeof pattern, 1}, name);
}

static int name_is_fresh(const ad_run *run, const char *name) {
  size_t count = run->options.fresh_state_count;
  return ad_pattern_first((ad_patterns){run->options.fresh_states, sizeof(char *), count}, name) < count;
}

int ad_run_has_fresh_states(const ad_run *run, size_t param) {
  char name[AD_PROGRAM_NAME_SIZE];
  return run->options.fresh_state_count && !is_mirrored(run, param) && name_is_fresh(run, name_of(run, param, name));
}

/* Returns 1 if some optimizer has a state with this name, of `length` bytes. */
static int is_state_name(const char *name, size_t length) {
  const char *state;
  for (int kind = 0; kind < AD_OPTIMIZER_COUNT; kind++)
    for (size_t k = 0; (state = ad_optimizer_state_name((ad_optimizer_kind)kind, k)); k++)
      if (strlen(state) == length && !strncmp(state, name, length)) return 1;
  return 0;
}

static int is_frozen_param(const ad_run *run, const char *name) {
  char own[AD_PROGRAM_NAME_SIZE];
  for (size_t i = 0; i < ad_run_param_count(run); i++)
    if (is_frozen(run, i) && !strcmp(name_of(run, i, own), name)) return 1;
  return 0;
}

int ad_run_discards_state(const ad_run *run, const char *name) {
  size_t length = strcspn(name, ".");
  const char *param = name + length + 1, *master = ad_param_part_name(AD_ADAMW, AD_PART_MASTER);
  if (!name[length] || !name_is_fresh(run, param)) return 0;
  if (strlen(master) == length && !strncmp(master, name, length)) return is_frozen_param(run, param);
  return is_state_name(name, length);
}

ad_status ad_run_check_fresh_states(const ad_run *run) {
  char name[AD_PROGRAM_NAME_SIZE], last[AD_PROGRAM_NAME_SIZE];
  size_t count = ad_run_param_count(run);
  for (size_t p = 0; p < run->options.fresh_state_count; p++) {
    const char *pattern = run->options.fresh_states[p];
    size_t i = 0;
    while (i < count && !(matches(pattern, name_of(run, i, name)) && !is_mirrored(run, i))) i++;
    if (i < count) continue;
    return ad_fail(AD_INVALID,
                   "--fresh-states: the pattern \"%s\" matches no parameter; the parameters are %s to %s, and * is any "
                   "part of a name",
                   pattern, count ? name_of(run, 0, name) : "none", count ? name_of(run, count - 1, last) : "none");
  }
  return AD_OK;
}

/* ---- facts that a checkpoint stores ---- */

/* Adds a fact if the object has members. Takes the object, which is NULL if there was no memory. */
static ad_status add_object(const char *key, json_t *object, int failed, ad_checkpoint_fact *facts, size_t *count) {
  char *text = NULL, *copy = NULL;
  if (object && !failed && !json_object_size(object)) return json_decref(object), AD_OK;
  if (object && !failed) text = json_dumps(object, JSON_COMPACT);
  json_decref(object);
  ad_status status =
      text ? ad_copy_string(text, &copy) : ad_fail(AD_MEMORY, "no memory to list the optimizers of parameters");
  free(text);
  if (!status) facts[(*count)++] = (ad_checkpoint_fact){key, copy};
  return status;
}

ad_status ad_run_add_state_facts(const ad_run *run, ad_checkpoint_fact *facts, size_t *count) {
  const char *usual = ad_optimizer_names[run->recipe->optimizer.kind];
  json_t *optimizers = json_object(), *began = json_object();
  char name[AD_PROGRAM_NAME_SIZE];
  int failed = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const char *own = optimizer_of(run, i);
    if (is_mirrored(run, i)) continue;
    if (strcmp(own, usual) != 0) failed |= json_object_set_new(optimizers, name_of(run, i, name), json_string(own));
    if (run->began && run->began[i] > 0)
      failed |= json_object_set_new(began, name_of(run, i, name), json_integer(run->began[i]));
  }
  ad_status status = add_object(AD_FACT_OPTIMIZERS, optimizers, failed, facts, count);
  if (status) return json_decref(began), status;
  return add_object(AD_FACT_BEGAN, began, failed, facts, count);
}

/* ---- what a checkpoint says ---- */

static const char *find_fact(const ad_checkpoint_fact *facts, size_t count, const char *key) {
  for (size_t i = 0; i < count; i++)
    if (!strcmp(facts[i].key, key)) return facts[i].value;
  return NULL;
}

static ad_status read_object(const ad_checkpoint_fact *facts, size_t count, const char *key, json_t **out) {
  const char *text = find_fact(facts, count, key);
  json_error_t error;
  *out = NULL;
  if (!text) return AD_OK;
  AD_TRY(ad_json_parse(text, strlen(text), JSON_REJECT_DUPLICATES, out, &error));
  if (json_is_object(*out)) return AD_OK;
  return ad_fail(AD_IO,
                 "index.json: the fact `%s` is not a list of parameters, so the checkpoint was changed; use another "
                 "checkpoint",
                 key);
}

ad_status ad_earlier_states_read(const ad_schema *schema, const ad_checkpoint_fact *facts, size_t count,
                                 ad_earlier_states *out) {
  ad_earlier_states read = {.kind = find_fact(facts, count, "optimizer.kind"), .facts = facts, .fact_count = count};
  /* Before recipes had the key, all parameters had the optimizer that is the default now. */
  if (!read.kind) read.kind = ad_schema_find(schema, "optimizer.kind")->key.fallback;
  ad_status status = read_object(facts, count, AD_FACT_OPTIMIZERS, &read.optimizers);
  if (!status) status = read_object(facts, count, AD_FACT_BEGAN, &read.began);
  if (status)
    ad_earlier_states_release(&read);
  else
    *out = read;
  return status;
}

void ad_earlier_states_release(ad_earlier_states *earlier) {
  json_decref(earlier->optimizers);
  json_decref(earlier->began);
  *earlier = (ad_earlier_states){0};
}

static const char *earlier_optimizer(const ad_earlier_states *earlier, const char *name) {
  const char *own = json_string_value(json_object_get(earlier->optimizers, name));
  return own ? own : earlier->kind;
}

int ad_earlier_is_frozen(const ad_run *run, const ad_earlier_states *earlier, size_t param) {
  char name[AD_PROGRAM_NAME_SIZE];
  return !strcmp(earlier_optimizer(earlier, name_of(run, param, name)), FROZEN);
}

/* Returns the key of recipes that must not be 0 for an optimizer to keep a state; NULL if the state is always kept. */
static const ad_key *find_needed_key(const ad_schema *schema, const ad_state_record *state) {
  size_t offset = offsetof(ad_recipe, optimizer) + state->needs;
  for (size_t i = 0; state->needs && i < schema->count; i++)
    if (schema->entries[i].home == AD_HOME_RECIPE && schema->entries[i].key.offset == offset)
      return &schema->entries[i].key;
  return NULL;
}

/* Writes, for each state that an optimizer does not keep by these facts, the key that is 0: " with optimizer.momentum 0".
 * If the texts of two optimizers of one kind are the same, both keep the same states. */
static void list_zeros(const char *optimizer, const ad_schema *schema, const ad_checkpoint_fact *facts, size_t count,
                       char buffer[ZEROS_SIZE]) {
  ad_text text = ad_text_on(buffer, ZEROS_SIZE);
  int kind = 0;
  while (kind < AD_OPTIMIZER_COUNT && strcmp(ad_optimizer_names[kind], optimizer) != 0) kind++;
  const ad_optimizer_record *record = ad_optimizer_record_of((ad_optimizer_kind)kind); /* NULL if it is FROZEN */
  for (const ad_state_record *state = record ? record->states : NULL; state && state->name; state++) {
    const ad_key *key = find_needed_key(schema, state);
    const char *value = key ? find_fact(facts, count, key->path) : NULL;
    if (key && ad_key_means(key, value ? value : key->fallback, "0")) ad_text_add(&text, " with %s 0", key->path);
  }
}

/* Returns AD_INVALID if parameters whose states do not begin anew have another optimizer than before, or one that keeps
 * other states. */
static ad_status check_optimizers(const ad_run *run, const ad_fingerprint *here, const ad_earlier_states *earlier) {
  char words[WORDS] = "", name[AD_PROGRAM_NAME_SIZE], first[AD_PROGRAM_NAME_SIZE] = "";
  ad_text text = ad_text_on(words, WORDS);
  size_t count = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const char *before = earlier_optimizer(earlier, name_of(run, i, name)), *now = optimizer_of(run, i);
    char zeros_before[ZEROS_SIZE] = "", zeros_now[ZEROS_SIZE] = "";
    if (is_mirrored(run, i) || name_is_fresh(run, name)) continue;
    if (!strcmp(before, now)) {
      list_zeros(before, &here->schema, earlier->facts, earlier->fact_count, zeros_before);
      list_zeros(now, &here->schema, here->facts, here->count, zeros_now);
      if (!strcmp(zeros_before, zeros_now)) continue;
    }
    if (!count) memcpy(first, name, sizeof first);
    ad_text_list(&text, &count, "", "`%s` (checkpoint: %.*s%s, recipe: %s%s)", name, WORD_SHOWN, before, zeros_before,
                 now, zeros_now);
  }
  if (!count) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the recipe gives %zu parameter%s another optimizer than the checkpoint: %s; give %s "
                 "the optimizer of the checkpoint, or let the states begin anew (--fresh-states PATTERN, such as "
                 "--fresh-states \"%s\")",
                 count, ad_plural((long long)count), words, count == 1 ? "it" : "them", first);
}

/* Returns AD_INVALID if a pattern of fresh_states matches only parameters that are frozen now and were before. */
static ad_status check_patterns(const ad_run *run, const ad_earlier_states *earlier) {
  char name[AD_PROGRAM_NAME_SIZE];
  size_t count = ad_run_param_count(run);
  for (size_t p = 0; p < run->options.fresh_state_count; p++) {
    const char *pattern = run->options.fresh_states[p];
    size_t i = 0;
    for (; i < count; i++) {
      if (is_mirrored(run, i) || !matches(pattern, name_of(run, i, name))) continue;
      if (!is_frozen(run, i) || !ad_earlier_is_frozen(run, earlier, i)) break;
    }
    if (i < count) continue;
    return ad_fail(AD_INVALID,
                   "--fresh-states: the pattern \"%s\" matches only parameters that are frozen and were frozen before, "
                   "so that they have no states; leave the pattern out",
                   pattern);
  }
  return AD_OK;
}

/* Sets run->began to when the states of each parameter began, or BEGINS_NOW. Leaves it NULL if all began with the first
 * step. Warns of states that begin anew a second time, which the same command, given again, would do. */
static ad_status take_began(ad_run *run, const ad_earlier_states *earlier) {
  char words[WORDS] = "", name[AD_PROGRAM_NAME_SIZE];
  ad_text again = ad_text_on(words, WORDS);
  size_t count = 0;
  ad_release(run->began);
  run->began = NULL;
  if (!run->options.fresh_state_count && !earlier->began) return AD_OK;
  AD_TRY(ad_new(ad_run_param_count(run), &run->began));
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    run->began[i] = json_integer_value(json_object_get(earlier->began, name_of(run, i, name)));
    if (run->began[i] < 0)
      return ad_fail(AD_IO,
                     "index.json: the states of `%s` began after %" PRId64
                     " steps, so the checkpoint was changed; use another checkpoint",
                     name, run->began[i]);
    if (is_frozen(run, i)) run->began[i] = 0;
    if (is_frozen(run, i) || !ad_run_has_fresh_states(run, i)) continue;
    if (run->began[i]) ad_text_list(&again, &count, "", "%s", name);
    run->began[i] = BEGINS_NOW;
  }
  if (count && ad_run_is_first(run))
    ad_log(AD_LOG_WARNING,
           "the optimizer states of %zu parameter%s began anew before the checkpoint already, and do so again "
           "(--fresh-states): %s; to keep the states since then, resume without --fresh-states",
           count, ad_plural((long long)count), words);
  return AD_OK;
}

ad_status ad_earlier_states_judge(ad_run *run, const ad_fingerprint *here, const ad_earlier_states *earlier) {
  AD_TRY(check_optimizers(run, here, earlier));
  AD_TRY(check_patterns(run, earlier));
  return take_began(run, earlier);
}

/* ---- beginning anew ---- */

static void report_fresh(const ad_run *run, int64_t steps) {
  char words[WORDS] = "", name[AD_PROGRAM_NAME_SIZE];
  ad_text text = ad_text_on(words, WORDS);
  size_t count = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++)
    if (run->began[i] == BEGINS_NOW) ad_text_list(&text, &count, "", "%s", name_of(run, i, name));
  if (count && ad_run_is_first(run))
    ad_log(AD_LOG_INFO,
           "the optimizer states of %zu parameter%s begin anew after %" PRId64 " steps (--fresh-states): %s", count,
           ad_plural((long long)count), steps, words);
}

static ad_status begin_states_of(ad_run *run, size_t param) {
  ad_run_param at = ad_run_param_at(run, param);
  ad_optimizer *optimizer = at.held ? ad_module_optimizer(at.held) : NULL;
  return optimizer ? ad_optimizer_begin_states(optimizer, at.param, run->began[param]) : AD_OK;
}

ad_status ad_run_begin_states(ad_run *run, int64_t steps) {
  char name[AD_PROGRAM_NAME_SIZE];
  if (!run->began) return AD_OK;
  report_fresh(run, steps);
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    if (run->began[i] == BEGINS_NOW) run->began[i] = steps;
    if (run->began[i] > steps)
      return ad_fail(AD_IO,
                     "the checkpoint is damaged, since the states of `%s` began after %" PRId64
                     " steps, but only %" PRId64 " were taken; use another checkpoint",
                     name_of(run, i, name), run->began[i], steps);
    AD_TRY(begin_states_of(run, i));
  }
  return AD_OK;
}
