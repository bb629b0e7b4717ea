/* Prints a plan as tables. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/text_stream.h"
#include "files/json.h"
#include "plan/exchanges.h"
#include "plan/pools.h"
#include "plan/schedule.h"
#include "plan/updates.h"
#include "recipe/sharding.h"

enum { RANKS_SHOWN = 8 /* at most this many ranks of each pool are shown */, NODES_SHOWN = 8 };

static double mib(const json_t *object, const char *key) { return (double)ad_integer_of(object, key) / (1 << 20); }

/* Writes a layout without its axes of size 1, on which the type makes no difference. Returns `out`. */
static const char *short_layout(const ad_mesh *mesh, const char *text, char *out, size_t size) {
  size_t length = 0;
  out[0] = 0;
  for (const char *word = text; *word; word += strcspn(word, " "), word += strspn(word, " ")) {
    size_t name = strcspn(word, "="), whole = strcspn(word, " ");
    for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
      const char *axis_name = ad_axis_name((ad_axis)axis);
      if (strlen(axis_name) != name || strncmp(word, axis_name, name) || ad_mesh_axis_size(mesh, (ad_axis)axis) == 1)
        continue;
      length += (size_t)snprintf(out + length, size - length, "%s%.*s", length ? " " : "", (int)whole, word);
    }
  }
  return length ? out : "-";
}

static int is_gather(const json_t *step) { return !strcmp(ad_text_of(step, "op"), ad_move_name(AD_MOVE_ALL_GATHER)); }
static int is_when(const json_t *step, const char *when) { return !strcmp(ad_text_of(step, "when"), when); }

/* Returns 1 if a gather has the same operation, axes and dtype as `first`, so that it may be the same gather again:
 * with ZeRO 3 a unit is gathered for forward and gathered again for backward. */
static int is_again(const json_t *step, const json_t *first) {
  static const char *const keys[] = {"op", "axes", "dtype"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (strcmp(ad_text_of(step, keys[i]), ad_text_of(first, keys[i])) != 0) return 0;
  return is_when(first, "forward") && is_when(step, "backward") &&
         ad_integer_of(step, "bucket") == ad_integer_of(first, "bucket");
}

static const char *when_of_gather(const json_t *step, const json_t *next) {
  if (next && is_again(next, step)) return ", forward and backward";
  return is_when(step, "step") ? ", after the update" : is_when(step, "forward") ? ", forward" : ", backward";
}

/* Prints the collectives that take a parameter from its gradient to its storage layout, without those of updates. */
static void print_path(FILE *file, const json_t *path) {
  const json_t *step;
  size_t i, printed = 0;
  json_array_foreach(path, i, step) {
    if (is_when(step, "update") || (i && is_again(step, json_array_get(path, i - 1)))) continue;
    int gathers = is_gather(step);
    fprintf(file, "%s%s over %s in %s %lld%s", printed++ ? "; " : "", ad_text_of(step, "op"), ad_text_of(step, "axes"),
            gathers ? "unit" : "bucket", ad_integer_of(step, "bucket"),
            gathers ? when_of_gather(step, json_array_get(path, i + 1)) : "");
  }
  fprintf(file, "%s\n", printed ? "" : "nothing");
}

/* Makes the mesh of a parameter. Keeps *mesh, the mesh of the previous parameter, if it is the same. */
static ad_status follow_mesh(const json_t *param, ad_mesh **mesh) {
  const char *text = ad_text_of(param, "mesh");
  if (*mesh && !strcmp(ad_mesh_text(*mesh), text)) return AD_OK;
  ad_mesh_destroy(*mesh);
  *mesh = NULL;
  return ad_mesh_create(text, mesh);
}

/* Writes a precision policy: "f32" if its four dtypes are the same, else "bf16/bf16/f32/f32" for parameter, gradient,
 * reduction and accumulation. Returns `out`. */
static const char *short_policy(const json_t *policy, char *out, size_t size) {
  static const char *const parts[] = {"param", "grad", "reduce", "accumulate"};
  size_t length = 0;
  int identical = 1;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    identical &= !strcmp(ad_text_of(policy, parts[i]), ad_text_of(policy, "param"));
    length += (size_t)snprintf(out + length, size - length, "%s%s", i ? "/" : "", ad_text_of(policy, parts[i]));
  }
  return identical ? ad_text_of(policy, "param") : out;
}

static ad_status print_params(FILE *file, const json_t *plan) {
  const json_t *param;
  size_t i;
  char layout[160], gradient[160], policy[64];
  ad_mesh *mesh = NULL;
  fprintf(file, "  %-24s %12s  %-28s %-28s %-18s %s\n", "parameter", "elements", "layout", "gradient", "precision",
          "reduced by");
  json_array_foreach(json_object_get(plan, "params"), i, param) {
    AD_TRY(follow_mesh(param, &mesh)); /* on failure *mesh is NULL */
    fprintf(file, "  %-24s %12lld  %-28s %-28s %-18s ", ad_text_of(param, "name"), ad_integer_of(param, "numel"),
            short_layout(mesh, ad_text_of(param, "layout"), layout, sizeof layout),
            short_layout(mesh, ad_text_of(param, "gradient_layout"), gradient, sizeof gradient),
            short_policy(json_object_get(param, "precision"), policy, sizeof policy));
    print_path(file, json_object_get(param, "path"));
  }
  ad_mesh_destroy(mesh);
  return AD_OK;
}

/* ---- printing pools and stages ---- */

static int has_pools(const json_t *plan) { return json_array_size(json_object_get(plan, "pools")) > 1; }
static int starts_pool(const json_t *before, const json_t *entry) {
  return !before || ad_integer_of(before, "pool") != ad_integer_of(entry, "pool");
}

static void print_names(FILE *file, const json_t *modules) {
  const json_t *module;
  size_t i;
  json_array_foreach(modules, i, module) fprintf(file, "%s%s", i ? ", " : "  ", json_string_value(module));
}

static void print_stages(FILE *file, const json_t *stages) {
  const json_t *stage;
  size_t i;
  fprintf(file, "  stage%s", json_array_size(stages) > 1 ? "s" : "");
  json_array_foreach(stages, i, stage) fprintf(file, "%s %lld", i ? "," : "", (long long)json_integer_value(stage));
}

/* Prints the modules or the stages of the pool that `entry` names. */
static void print_pool(FILE *file, const json_t *plan, const json_t *entry) {
  const json_t *pool = json_array_get(json_object_get(plan, "pools"), (size_t)ad_integer_of(entry, "pool"));
  const json_t *stages = json_object_get(pool, "stages");
  if (stages)
    print_stages(file, stages);
  else
    print_names(file, json_object_get(pool, "modules"));
}

/* Writes the module that an entry names or, in a pipeline, its stage. Returns buffer. */
enum { MODULE_MAX = 80 };
static const char *module_text(const json_t *entry, char buffer[MODULE_MAX]) {
  if (json_object_get(entry, "stage"))
    snprintf(buffer, MODULE_MAX, "stage %lld", ad_integer_of(entry, "stage"));
  else
    snprintf(buffer, MODULE_MAX, "%s", ad_text_of(entry, "module"));
  return buffer;
}

/* ---- printing the table of collectives ---- */

/* A row of the table of collectives: a reduction, or all gathers of one unit, forward and backward. */
typedef struct launch {
  const json_t *first;
  long long bytes; /* bytes of each call */
  /* number of parameters */
  size_t params;
  int again; /* 1: the gather is repeated in the backward pass */
} launch;

typedef struct launches {
  launch *list;
  size_t count;
} launches;

static int has_same(const json_t *a, const json_t *b, const char *key) {
  const json_t *one = json_object_get(a, key), *other = json_object_get(b, key);
  return (!one && !other) || json_equal(one, other);
}

/* Returns 1 if a gather belongs to this row. Several collectives may gather the parameters of one unit; they are one
 * row. */
static int is_of_unit(const json_t *step, const launch *of) {
  static const char *const keys[] = {"pool", "module", "stage", "axes", "group_size", "dtype", "bucket", "when"};
  int same = is_gather(step) && is_gather(of->first);
  for (size_t i = 0; same && i < sizeof keys / sizeof *keys; i++) same = has_same(step, of->first, keys[i]);
  return same;
}

/* Returns 1 if the gather repeats the row's gather in the backward pass. */
static int is_unit_again(const json_t *step, const launch *of) {
  return is_gather(step) && is_again(step, of->first) && has_same(step, of->first, "pool") &&
         has_same(step, of->first, "module") && has_same(step, of->first, "stage");
}

/* Adds a collective to the row to which it belongs, or to a new row if there is none. */
static void take_step(launches *rows, const json_t *step) {
  size_t params = json_array_size(json_object_get(step, "params"));
  for (size_t i = rows->count; i-- > 0;) {
    launch *row = &rows->list[i];
    if (is_unit_again(step, row)) {
      row->again = 1;
      return;
    }
    if (!is_of_unit(step, row)) continue;
    row->bytes += ad_integer_of(step, "bytes");
    row->params += params;
    return;
  }
  rows->list[rows->count++] = (launch){.first = step, .bytes = ad_integer_of(step, "bytes"), .params = params};
}

static ad_status list_launches(const json_t *plan, launches *out) {
  const json_t *steps = json_object_get(plan, "collectives"), *step;
  size_t i;
  out->count = 0;
  AD_TRY(ad_new(json_array_size(steps), &out->list));
  json_array_foreach(steps, i, step) take_step(out, step);
  return AD_OK;
}

static void print_launch(FILE *file, const json_t *plan, const launch *row, size_t number) {
  const json_t *step = row->first;
  char module[MODULE_MAX];
  fprintf(file, "  %-6zu %-15s %-26s %6lld %-6s %12lld %-17s ", number, ad_text_of(step, "op"),
          ad_text_of(step, "axes"), ad_integer_of(step, "group_size"), ad_text_of(step, "dtype"), row->bytes,
          row->again ? "forward, backward" : ad_text_of(step, "when"));
  if (has_pools(plan))
    fprintf(file, "%-10zu  %s\n", row->params, module_text(step, module));
  else
    fprintf(file, "%zu\n", row->params);
}

/* Prints the rows. Collectives are numbered separately in each pool. */
static ad_status print_collectives(FILE *file, const json_t *plan) {
  launches rows;
  size_t number = 0;
  AD_TRY(list_launches(plan, &rows));
  fprintf(file, "\n  %-6s %-15s %-26s %6s %-6s %12s %-17s %s%s\n", "launch", "operation", "over", "ranks", "dtype",
          "bytes", "when", "parameters", has_pools(plan) ? "  of" : "");
  for (size_t i = 0; i < rows.count; i++) {
    if (starts_pool(i ? rows.list[i - 1].first : NULL, rows.list[i].first)) number = 0;
    print_launch(file, plan, &rows.list[i], number++);
  }
  ad_release(rows.list);
  return AD_OK;
}

/* ---- printing bridges and exchanges ---- */

static long long way_bytes(const json_t *rank, const char *way, const char *what) {
  return ad_integer_of(json_object_get(rank, way), what);
}

static void print_bridge(FILE *file, const json_t *plan, const json_t *bridge) {
  const json_t *rank, *before = NULL;
  char from[MODULE_MAX], to[MODULE_MAX];
  size_t i, shown = 0;
  fprintf(file, "\n  %s, from %s to %s: %lld rows, %lld times\n", ad_text_of(bridge, "site"),
          module_text(json_object_get(bridge, "from"), from), module_text(json_object_get(bridge, "to"), to),
          ad_integer_of(bridge, "rows"), ad_integer_of(bridge, "times"));
  fprintf(file, "  %-13s %14s %12s %15s %12s\n", "bytes a time", "forward: sends", "receives", "backward: sends",
          "receives");
  json_array_foreach(json_object_get(bridge, "bytes_per_rank"), i, rank) {
    if (starts_pool(before, rank)) shown = 0;
    before = rank;
    if (shown++ >= RANKS_SHOWN) continue;
    fprintf(file, "  rank %-8lld %14lld %12lld %15lld %12lld", ad_integer_of(rank, "rank"),
            way_bytes(rank, "forward", "sends"), way_bytes(rank, "forward", "receives"),
            way_bytes(rank, "backward", "sends"), way_bytes(rank, "backward", "receives"));
    if (has_pools(plan)) print_pool(file, plan, rank);
    fprintf(file, "\n");
  }
}

static void print_exchanges(FILE *file, const ad_exchanges *exchanges) {
  char name[256], from[64], to[64];
  fprintf(file, "\n  %-32s %-16s %-16s %14s %-6s %14s %s\n", "exchange", "from", "to", "bytes a step", "dtype",
          "gradient", "dtype");
  for (size_t i = 0; i < exchanges->count; i++) {
    const ad_exchange *exchange = &exchanges->list[i];
    fprintf(file, "  %-32s %-16s %-16s %14lld %-6s %14lld %s\n", ad_exchange_text(exchange, name, sizeof name),
            ad_party_text(&exchanges->parties[exchange->from], from, sizeof from),
            ad_party_text(&exchanges->parties[exchange->to], to, sizeof to), (long long)exchange->bytes[0],
            ad_exchange_dtype(exchange, 0), (long long)exchange->bytes[1], ad_exchange_dtype(exchange, 1));
  }
}

/* Prints each bridge rank by rank. If modules send each other several values, prints exchanges instead; then only
 * --json lists the ranks. */
static ad_status print_bridges(FILE *file, const json_t *plan) {
  const json_t *bridge;
  size_t i;
  ad_exchanges exchanges;
  AD_TRY(ad_exchanges_of(plan, &exchanges));
  if (ad_exchanges_join_values(&exchanges))
    print_exchanges(file, &exchanges);
  else
    json_array_foreach(json_object_get(plan, "bridges"), i, bridge) print_bridge(file, plan, bridge);
  ad_exchanges_release(&exchanges);
  return AD_OK;
}

/* ---- printing the memory of ranks ---- */

static int has_column(const json_t *ranks, int k) {
  return json_object_get(json_array_get(ranks, 0), ad_plan_parts[k]) != NULL;
}

static int column_width(int k) { return strlen(ad_plan_parts[k]) > 12 ? (int)strlen(ad_plan_parts[k]) : 12; }

static void print_rank(FILE *file, const json_t *plan, const json_t *rank) {
  fprintf(file, "  rank %-8lld", ad_integer_of(rank, "rank"));
  for (int k = 0; k < AD_PLAN_PARTS; k++)
    if (has_column(json_object_get(plan, "memory_per_rank"), k))
      fprintf(file, " %*.2f", column_width(k), mib(rank, ad_plan_parts[k]));
  if (has_pools(plan)) print_pool(file, plan, rank);
  if (ad_integer_of(rank, "ranks") > 1) fprintf(file, "  and %lld more like it", ad_integer_of(rank, "ranks") - 1);
  fprintf(file, "\n");
}

static void print_memory(FILE *file, const json_t *plan) {
  const json_t *ranks = json_object_get(plan, "memory_per_rank"), *rank, *before = NULL;
  size_t i, shown = 0, left_out = 0;
  fprintf(file, "\n  MiB per rank ");
  for (int k = 0; k < AD_PLAN_PARTS; k++)
    if (has_column(ranks, k)) fprintf(file, " %*s", column_width(k), ad_plan_parts[k]);
  fprintf(file, "\n");
  json_array_foreach(ranks, i, rank) {
    if (starts_pool(before, rank)) shown = 0;
    before = rank;
    if (shown++ < RANKS_SHOWN)
      print_rank(file, plan, rank);
    else
      left_out++;
  }
  if (left_out) fprintf(file, "  ... and %zu more (--json lists them)\n", left_out);
}

/* ---- printing the memory that gradients share ---- */

/* Prints a bucket that needs a separate slot of memory. */
static void print_open(FILE *file, const json_t *bucket) {
  const json_t *params = json_object_get(bucket, "params");
  size_t count = json_array_size(params);
  fprintf(file, "    %s", json_string_value(json_array_get(params, 0)));
  if (count > 1) fprintf(file, " and %zu more", count - 1);
  fprintf(file, " (%.2f MiB) stays open with %lld others: its own slot\n", mib(bucket, "bytes"),
          ad_integer_of(bucket, "beside"));
}

/* Prints how gradients share memory; they do so only with ZeRO 2 and 3. */
static void print_gradients(FILE *file, const json_t *plan) {
  const json_t *row, *bucket;
  size_t i, k;
  char over[128], module[MODULE_MAX];
  fprintf(file, "\n  %-45s %8s %6s %12s\n", "gradients in memory", "buckets", "slots", "MiB");
  json_array_foreach(json_object_get(plan, "gradient_memory"), i, row) {
    const char *why = ad_text_of(row, "full_because");
    const char *axes = ad_text_of(row, "axes");
    snprintf(over, sizeof over, "%s%s%s", *axes ? ad_text_of(row, "op") : "not reduced", *axes ? " over " : "", axes);
    fprintf(file, "  %-38s %-6s %8lld %6lld %12.2f", over, ad_text_of(row, "dtype"), ad_integer_of(row, "buckets"),
            ad_integer_of(row, "slots"), mib(row, "bytes"));
    if (has_pools(plan)) fprintf(file, "  %s", module_text(row, module));
    if (json_object_get(row, "shard_group")) fprintf(file, "  %s", ad_text_of(row, "shard_group"));
    fprintf(file, "%s%s\n", *why ? "  whole: " : "", why);
    json_array_foreach(json_object_get(row, "open"), k, bucket) print_open(file, bucket);
  }
}

static void print_nodes(FILE *file, const json_t *plan) {
  const json_t *nodes = json_object_get(plan, "memory_per_node"), *node;
  size_t i;
  fprintf(file, "\n  MiB per node  %12s\n", "peak");
  json_array_foreach(nodes, i, node) {
    if (i == NODES_SHOWN) break;
    fprintf(file, "  node %-8lld %12.2f", ad_integer_of(node, "node"), mib(node, "peak"));
    const char *what = json_is_true(json_object_get(node, "is_a_bound")) ? "at most, on any" : "the most";
    if (ad_integer_of(node, "nodes") > 1) fprintf(file, "  %s of %lld", what, ad_integer_of(node, "nodes"));
    fprintf(file, "\n");
  }
  if (i < json_array_size(nodes)) fprintf(file, "  ... and %zu more (--json lists them)\n", json_array_size(nodes) - i);
}

static ad_status print_plan(FILE *file, const ad_recipe *recipe, const json_t *plan) {
  char mesh[1024];
  fprintf(file, "%s: %lld rank%s, mesh %s; nothing ran\n", recipe->name, ad_integer_of(plan, "world"),
          ad_plural(ad_integer_of(plan, "world")), ad_recipe_mesh_text(recipe, mesh, sizeof mesh));
  ad_plan_print_schedule(file, plan);
  fprintf(file, "\n");
  AD_TRY(print_params(file, plan));
  AD_TRY(print_collectives(file, plan));
  AD_TRY(print_bridges(file, plan));
  print_memory(file, plan);
  print_nodes(file, plan);
  ad_plan_print_updates(file, plan);
  if (ad_recipe_highest_zero(recipe) >= 2) print_gradients(file, plan);
  ad_plan_print_leaves(file, plan);
  return AD_OK;
}

static ad_status table_of(const ad_recipe *recipe, const json_t *plan, char **out) {
  ad_text_stream to;
  AD_TRY(ad_text_stream_open("the table of the plan", &to));
  return ad_text_stream_close(&to, print_plan(to.file, recipe, plan), out);
}

ad_status ad_plan_table(const ad_recipe *recipe, const ad_plan_options *options, char **out) {
  AD_NEED(recipe, out);
  json_t *plan;
  AD_TRY(ad_plan_document(recipe, options, &plan));
  ad_status status = table_of(recipe, plan, out);
  json_decref(plan);
  return status;
}
