/* Compares the plans of one recipe with several values of one key: the memory of the rank that needs most, the bytes
 * that ranks move in a step, and, for pipelines, the bubble and the memory of each schedule. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text_stream.h"
#include "files/json.h"
#include "base/options.h"
#include "plan/plan.h"

/* ---- reading the compared numbers from one plan ---- */

/* Returns the entry whose integer at `key` is largest. */
static json_t *largest_by(const json_t *entries, const char *key) {
  json_t *largest = NULL, *entry;
  size_t i;
  json_array_foreach(entries, i, entry) if (!largest || ad_integer_of(entry, key) > ad_integer_of(largest, key))
      largest = entry;
  return largest;
}

/* Moves whose values at these keys are the same are added up to one row. */
static const char *const identities[] = {"what", "op", "axes"};
enum { IDENTITIES = sizeof identities / sizeof *identities };

static int is_same_move(const json_t *a, const json_t *b) {
  for (size_t i = 0; i < IDENTITIES; i++)
    if (strcmp(ad_text_of(a, identities[i]), ad_text_of(b, identities[i])) != 0) return 0;
  return 1;
}

/* Adds the bytes of `move` to the entry that has the same values at `identities`, or appends `move` as an entry. Takes
 * ownership of `move`. */
static void add_move(json_t *moves, json_t *move) {
  json_t *entry;
  size_t i;
  json_array_foreach(moves, i, entry) {
    if (!is_same_move(entry, move)) continue;
    json_object_set_new(entry, "bytes", json_integer(ad_integer_of(entry, "bytes") + ad_integer_of(move, "bytes")));
    json_decref(move);
    return;
  }
  json_array_append_new(moves, move);
}

static json_t *move_of(const char *what, const json_t *step, json_int_t bytes) {
  return json_pack("{s:s, s:s, s:s, s:I}", "what", what, "op", ad_text_of(step, "op"), "axes", ad_text_of(step, "axes"),
                   "bytes", bytes);
}

/* Returns the bytes that a bridge moves in a step, forward and backward together. */
static json_int_t sent_over(const json_t *bridge) {
  static const char *const ways[] = {"forward", "backward"};
  json_int_t bytes = 0;
  for (size_t i = 0; i < 2; i++) bytes += ad_integer_of(json_object_get(bridge, ways[i]), "bytes");
  return bytes * ad_integer_of(bridge, "times");
}

/* Returns the mean over all ranks of the world, if each rank of the pool that `step` names moves `bytes`. */
static json_int_t mean_of(const json_t *plan, const json_t *step, json_int_t bytes) {
  const json_t *pool = json_array_get(json_object_get(plan, "pools"), (size_t)ad_integer_of(step, "pool"));
  json_int_t ranks = ad_integer_of(pool, "ranks"), world = ad_integer_of(plan, "world");
  return ranks == world ? bytes : (json_int_t)((double)bytes * (double)ranks / (double)world);
}

/* Returns the plan's reductions that sum leaves; NULL if the recipe has no leaves. Their bytes are listed separately,
 * because a rank may submit several sums of one gradient, and fewer in rounds in which some rank has no leaf. */
static const json_t *leaf_reductions(const json_t *plan) {
  return json_object_get(json_object_get(plan, "leaves"), "reductions");
}

static int sums_leaves(const json_t *plan, const json_t *step) {
  const json_t *reduction;
  size_t i;
  json_array_foreach(leaf_reductions(plan), i, reduction) {
    if (json_equal(json_object_get(reduction, "op"), json_object_get(step, "op")) &&
        json_equal(json_object_get(reduction, "axes"), json_object_get(step, "axes")))
      return 1;
  }
  return 0;
}

/* Lists what ranks move in one step, with the bytes as a mean over the ranks. */
static json_t *moves_of(const json_t *plan) {
  json_t *moves = json_array();
  const json_t *step, *bridge;
  size_t i;
  json_array_foreach(json_object_get(plan, "collectives"), i, step) {
    if (sums_leaves(plan, step)) continue;
    add_move(moves, move_of(ad_plan_carried_by(step), step,
                            mean_of(plan, step, ad_integer_of(step, "bytes") * ad_integer_of(step, "times"))));
  }
  json_array_foreach(leaf_reductions(plan), i, step)
      add_move(moves, move_of(ad_plan_carried_by(step), step, ad_integer_of(step, "bytes")));
  json_array_foreach(json_object_get(plan, "activations"), i, step) {
    json_int_t ranks = ad_integer_of(step, "group_size");
    json_int_t bytes = ad_integer_of(step, "bytes") * ad_integer_of(step, "times") / ranks;
    add_move(moves, move_of("activations", step, mean_of(plan, step, bytes)));
  }
  json_array_foreach(json_object_get(plan, "bridges"), i, bridge)
      add_move(moves, json_pack("{s:s, s:s, s:s, s:I}", "what", "bridge", "op", ad_text_of(bridge, "site"), "axes", "",
                                "bytes", sent_over(bridge) / ad_integer_of(plan, "world")));
  return moves;
}

/* Copies from a plan those numbers of its schedule that are compared. `activations` is the largest number of bytes of
 * activations on one rank. Returns NULL if the plan has no pipeline. */
static json_t *schedule_of(const json_t *plan) {
  static const char *const keys[] = {"kind", "stages", "microbatches", "makespan", "bubble", "in_flight", "deferred"};
  const json_t *schedule = json_object_get(plan, "schedule");
  const json_t *most = largest_by(json_object_get(plan, "memory_per_rank"), "activations");
  if (!schedule) return NULL;
  json_t *kept = json_object();
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    json_object_set(kept, keys[i], json_object_get(schedule, keys[i]));
  json_object_set(kept, "activations", json_object_get(most, "activations"));
  return kept;
}

/* Returns why "interleaved" does not fit a plan, or NULL. With one stage on each rank, "interleaved" is the same as
 * "1f1b". */
static const char *unfit_of(const json_t *plan) {
  const json_t *schedule = json_object_get(plan, "schedule");
  size_t pools = json_array_size(json_object_get(plan, "pools"));
  if (strcmp(ad_text_of(schedule, "kind"), "interleaved") != 0 || (size_t)ad_integer_of(schedule, "stages") > pools)
    return NULL;
  return "with one stage a rank it is 1f1b: give it several, schedule={kind: interleaved, stages: N}";
}

static json_t *unfit_entry(const char *value, const char *why) {
  return json_pack("{s:s, s:s}", "value", value, "unfit", why);
}

static json_t *entry_of(const json_t *plan, const char *value) {
  const json_t *node = largest_by(json_object_get(plan, "memory_per_node"), "peak");
  json_t *entry = json_pack("{s:s, s:O, s:O, s:o, s:I}", "value", value, "world", json_object_get(plan, "world"),
                            "rank", largest_by(json_object_get(plan, "memory_per_rank"), "peak"), "moved",
                            moves_of(plan), "node_peak", ad_integer_of(node, "peak"));
  json_t *schedule = schedule_of(plan);
  if (schedule) json_object_set_new(entry, "schedule", schedule);
  return entry;
}

/* Adds the plan for the key's value i, or the reason why the recipe cannot have this value. */
static ad_status add_plan(const ad_plan_comparison *of, size_t i, json_t *plans) {
  json_t *plan;
  if (of->unfit && of->unfit[i]) {
    json_array_append_new(plans, unfit_entry(of->values[i], of->unfit[i]));
    return AD_OK;
  }
  ad_status status = ad_plan_document(of->recipes[i], of->options, &plan);
  if (status) return ad_fail_in(status, "with %s: %s", of->key, of->values[i]);
  const char *unfit = unfit_of(plan);
  json_array_append_new(plans, unfit ? unfit_entry(of->values[i], unfit) : entry_of(plan, of->values[i]));
  json_decref(plan);
  return AD_OK;
}

/* Returns the recipe's name, read with the first value that the recipe can have. */
static const char *name_of(const ad_plan_comparison *of) {
  size_t i = 0;
  while (i + 1 < of->count && !of->recipes[i]) i++;
  return of->recipes[i] ? of->recipes[i]->name : "";
}

static ad_status document_of(const char *call, const ad_plan_comparison *given, json_t **out) {
  ad_plan_comparison taken, *of = &taken;
  AD_TRY(ad_options_take(of, sizeof *of, given, "ad_plan_comparison"));
  AD_NEED_OF(call, of->key, of->values, of->recipes);
  if (!of->count) return ad_fail(AD_INVALID, "there are no plans to compare; give at least one value of %s", of->key);
  json_t *plans = json_array();
  ad_status status = AD_OK;
  for (size_t i = 0; i < of->count && !status; i++) status = add_plan(of, i, plans);
  if (status)
    json_decref(plans);
  else
    *out = json_pack("{s:s, s:s, s:o}", "recipe", name_of(of), "key", of->key, "plans", plans);
  return status;
}

/* ---- printing the table of memory and traffic ---- */

enum { LABEL = 48, COLUMN = 12 };

static int width_of(const json_t *plan) {
  int width = (int)strlen(ad_text_of(plan, "value"));
  return width > COLUMN ? width : COLUMN;
}

/* Returns the value of one plan in a row of the table, or NULL if the plan has none. */
typedef const json_t *row_cell(const json_t *plan, const json_t *row);

static void print_row(FILE *file, const char *label, const json_t *plans, row_cell *cell, const json_t *row) {
  const json_t *plan;
  size_t i;
  fprintf(file, "  %-*s", LABEL, label);
  json_array_foreach(plans, i, plan) {
    const json_t *bytes = cell(plan, row);
    if (bytes)
      fprintf(file, " %*.2f", width_of(plan), (double)json_integer_value(bytes) / (1 << 20));
    else
      fprintf(file, " %*s", width_of(plan), "-");
  }
  fprintf(file, "\n");
}

static void print_heads(FILE *file, const char *label, const json_t *plans) {
  const json_t *plan;
  size_t i;
  fprintf(file, "\n  %-*s", LABEL, label);
  json_array_foreach(plans, i, plan) fprintf(file, " %*s", width_of(plan), ad_text_of(plan, "value"));
  fprintf(file, "\n");
}

static const json_t *part_of_rank(const json_t *plan, const json_t *row) {
  return json_object_get(json_object_get(plan, "rank"), json_string_value(row));
}

static const json_t *node_peak(const json_t *plan, const json_t *row) { return json_object_get(plan, "node_peak"); }

static void print_memory(FILE *file, const json_t *plans) {
  print_heads(file, "MiB of the rank that needs most", plans);
  for (size_t k = 0; k < AD_PLAN_PARTS; k++) {
    json_t *row = json_string(ad_plan_parts[k]);
    const json_t *plan;
    size_t i, have = 0;
    json_array_foreach(plans, i, plan) have += part_of_rank(plan, row) != NULL;
    if (have) print_row(file, ad_plan_parts[k], plans, part_of_rank, row);
    json_decref(row);
  }
  print_row(file, "the largest node's peak", plans, node_peak, NULL);
}

static const json_t *bytes_of_move(const json_t *plan, const json_t *row) {
  const json_t *move;
  size_t i;
  json_array_foreach(json_object_get(plan, "moved"), i, move) if (is_same_move(move, row)) return json_object_get(
      move, "bytes");
  return NULL;
}

/* Lists the rows of the table: every collective or transfer of any plan, each once, in the order in which they first
 * occur. */
static json_t *rows_of(const json_t *plans) {
  json_t *rows = json_array();
  const json_t *plan, *move;
  size_t i, k;
  json_array_foreach(plans, i, plan) json_array_foreach(json_object_get(plan, "moved"), k, move)
      add_move(rows, json_deep_copy(move));
  return rows;
}

/* Prints the bytes that ranks move, with a row for each collective or transfer and a column for each plan. */
static void print_moves(FILE *file, const json_t *plans) {
  json_t *rows = rows_of(plans);
  const json_t *row;
  size_t i;
  print_heads(file, "MiB that a rank submits, or gathers, a step", plans);
  json_array_foreach(rows, i, row) {
    char label[128];
    const char *axes = ad_text_of(row, "axes");
    snprintf(label, sizeof label, "%s: %s%s%s", ad_text_of(row, "what"), ad_text_of(row, "op"), *axes ? " over " : "",
             axes);
    print_row(file, label, plans, bytes_of_move, row);
  }
  if (!i) fprintf(file, "  nothing\n");
  json_decref(rows);
}

/* ---- schedules: one row for each plan ---- */

static json_int_t moved_by(const json_t *entry) {
  json_int_t bytes = 0;
  const json_t *move;
  size_t i;
  json_array_foreach(json_object_get(entry, "moved"), i, move) bytes += ad_integer_of(move, "bytes");
  return bytes;
}

static double mebibytes(json_int_t bytes) { return (double)bytes / (1 << 20); }

static void print_schedule(FILE *file, const json_t *entry) {
  const json_t *schedule = json_object_get(entry, "schedule");
  const json_t *rank = json_object_get(entry, "rank");
  fprintf(file, "  %-*s", LABEL, ad_text_of(entry, "value"));
  if (json_object_get(entry, "unfit")) {
    fprintf(file, "  %s\n", ad_text_of(entry, "unfit"));
    return;
  }
  fprintf(file, " %10.1f %10lld %10lld %12.2f %12.2f %12.2f\n",
          100 * json_number_value(json_object_get(schedule, "bubble")), (long long)ad_integer_of(schedule, "in_flight"),
          (long long)ad_integer_of(schedule, "deferred"), mebibytes(ad_integer_of(schedule, "activations")),
          mebibytes(ad_integer_of(rank, "peak")), mebibytes(moved_by(entry)));
}

static int has_any(const json_t *plans, const char *key) {
  const json_t *entry;
  size_t i;
  json_array_foreach(plans, i, entry) if (json_object_get(entry, key)) return 1;
  return 0;
}

static void print_schedules(FILE *file, const json_t *plans) {
  const json_t *entry;
  size_t i;
  if (!has_any(plans, "schedule") && !has_any(plans, "unfit")) return;
  fprintf(file, "\n  %-*s %10s %10s %10s %12s %12s %12s\n", LABEL, "schedule; MiB of the rank that has most",
          "bubble %", "in flight", "held for W", "activations", "peak", "moved");
  json_array_foreach(plans, i, entry) print_schedule(file, entry);
}

/* Returns the plans of those values that the recipe can have. */
static json_t *fitting(const json_t *plans) {
  json_t *list = json_array(), *entry;
  size_t i;
  json_array_foreach(plans, i, entry) if (!json_object_get(entry, "unfit")) json_array_append(list, entry);
  return list;
}

static void print_worlds(FILE *file, const json_t *plans) {
  const json_t *plan;
  size_t i;
  print_heads(file, "", plans);
  fprintf(file, "  %-*s", LABEL, "ranks");
  json_array_foreach(plans, i, plan) fprintf(file, " %*lld", width_of(plan), (long long)ad_integer_of(plan, "world"));
  fprintf(file, "\n");
}

static ad_status table_of(const json_t *document, char **out) {
  ad_text_stream to;
  AD_TRY(ad_text_stream_open("the table of plans", &to));
  json_t *plans = fitting(json_object_get(document, "plans"));
  fprintf(to.file, "%s with several %s; nothing ran\n", ad_text_of(document, "recipe"), ad_text_of(document, "key"));
  print_schedules(to.file, json_object_get(document, "plans"));
  print_worlds(to.file, plans);
  print_memory(to.file, plans);
  print_moves(to.file, plans);
  json_decref(plans);
  return ad_text_stream_close(&to, AD_OK, out);
}

ad_status ad_plan_compare_json(const ad_plan_comparison *of, char **out) {
  json_t *document;
  AD_NEED(of, out);
  AD_TRY(document_of(__func__, of, &document));
  *out = ad_json_dumps(document);
  json_decref(document);
  return *out ? AD_OK : ad_fail(AD_MEMORY, "no memory for the JSON document of plans");
}

ad_status ad_plan_compare_table(const ad_plan_comparison *of, char **out) {
  json_t *document;
  AD_NEED(of, out);
  AD_TRY(document_of(__func__, of, &document));
  ad_status status = table_of(document, out);
  json_decref(document);
  return status;
}
