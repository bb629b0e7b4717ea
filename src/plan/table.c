/* A plan as tables for people. */
#include <stdio.h>

#include "base/error.h"
#include "plan/plan.h"

static const char *text_of(const json_t *object, const char *key) {
  return json_string_value(json_object_get(object, key));
}

static long long integer_of(const json_t *object, const char *key) {
  return json_integer_value(json_object_get(object, key));
}

static double mib(const json_t *object, const char *key) { return (double)integer_of(object, key) / (1 << 20); }

static void print_params(FILE *file, const json_t *plan) {
  const json_t *param;
  size_t i;
  fprintf(file, "  %-24s %10s  %-34s %-34s %s\n", "parameter", "elements", "compute layout", "gradient layout",
          "reduced by");
  json_array_foreach(json_object_get(plan, "params"), i, param) {
    const json_t *path = json_object_get(param, "path"), *step;
    size_t j;
    fprintf(file, "  %-24s %10lld  %-34s %-34s", text_of(param, "name"), integer_of(param, "numel"),
            text_of(param, "layout"), text_of(param, "gradient_layout"));
    json_array_foreach(path, j, step) fprintf(file, " %s over %s in bucket %lld", text_of(step, "op"),
                                              text_of(step, "axes"), integer_of(step, "bucket"));
    fprintf(file, "%s\n", json_array_size(path) ? "" : " nothing");
  }
}

static void print_collectives(FILE *file, const json_t *plan) {
  const json_t *step;
  size_t i;
  fprintf(file, "\n  %-6s %-15s %-26s %6s %-6s %12s %-16s %s\n", "launch", "operation", "over", "ranks", "dtype",
          "bytes", "when", "parameters");
  json_array_foreach(json_object_get(plan, "collectives"), i, step)
      fprintf(file, "  %-6zu %-15s %-26s %6lld %-6s %12lld %-16s %zu\n", i, text_of(step, "op"), text_of(step, "axes"),
              integer_of(step, "group_size"), text_of(step, "dtype"), integer_of(step, "bytes"), text_of(step, "when"),
              json_array_size(json_object_get(step, "params")));
}

static void print_memory(FILE *file, const json_t *plan) {
  const json_t *rank;
  size_t i;
  fprintf(file, "\n  MiB per rank: %9s %9s %9s %9s %9s %9s %11s\n", "params", "gathered", "buckets", "optimizer", "runtime",
          "peak", "activations");
  json_array_foreach(json_object_get(plan, "memory_per_rank"), i, rank) {
    if (i == 8) {
      fprintf(file, "  ... and %zu more (--json lists them)\n",
              json_array_size(json_object_get(plan, "memory_per_rank")) - i);
      break;
    }
    fprintf(file, "  rank %-8lld %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %11.2f\n", integer_of(rank, "rank"), mib(rank, "params"),
            mib(rank, "gathered"), mib(rank, "buckets"), mib(rank, "optimizer"), mib(rank, "runtime"), mib(rank, "peak"),
            mib(rank, "activations"));
  }
}

ad_status ad_plan_table(const ad_recipe *recipe, char **out) {
  json_t *plan;
  AD_TRY(ad_plan_document(recipe, &plan));
  char *text = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&text, &size);
  if (file) {
    fprintf(file, "%s: %lld ranks, mesh %s; nothing ran\n\n", recipe->name, integer_of(plan, "world"), recipe->mesh);
    print_params(file, plan);
    print_collectives(file, plan);
    print_memory(file, plan);
    fclose(file);
  }
  json_decref(plan);
  if (!text) return ad_fail(AD_MEMORY, "no memory for the table of the plan");
  *out = text;
  return AD_OK;
}
