/* Prints the schedule of a plan as a table, one row for each pool. */
#include "plan/picture.h"
#include "plan/schedule.h"

enum { ROWS_SHOWN = 16, LIST_MAX = 48 };

static double real_of(const json_t *object, const char *key) { return json_number_value(json_object_get(object, key)); }

static void print_head(FILE *file, const json_t *schedule) {
  long long in_flight = ad_integer_of(schedule, "in_flight"), deferred = ad_integer_of(schedule, "deferred");
  fprintf(file,
          "\n  schedule %s: %lld microbatches through %lld stages; bubble %.1f %% of %.4g; activations in flight: %lld "
          "at most",
          ad_text_of(schedule, "kind"), (long long)ad_integer_of(schedule, "microbatches"),
          (long long)ad_integer_of(schedule, "stages"), 100 * real_of(schedule, "bubble"),
          real_of(schedule, "makespan"), in_flight);
  if (deferred) fprintf(file, "; operands held for W: %lld", deferred);
  fprintf(file, "\n");
}

static const char *unit_of(const json_t *schedule) {
  const char *by = ad_text_of(json_object_get(schedule, "costs"), "by");
  return *by == 't' ? "seconds, as a run measured them"
                    : "1 is the forward pass of the mean stage, by its matrix products";
}

static const char *ranks_text(const json_t *pool, char *buffer, size_t size) {
  long long first = ad_integer_of(pool, "first_rank"), ranks = ad_integer_of(pool, "ranks");
  if (ranks == 1)
    snprintf(buffer, size, "%lld", first);
  else
    snprintf(buffer, size, "%lld to %lld", first, first + ranks - 1);
  return buffer;
}

/* Writes the pool's stages, cut off if there are many, and returns buffer. */
static const char *stages_text(const json_t *row, char *buffer, size_t size) {
  const json_t *stages = json_object_get(row, "stages"), *stage;
  size_t i, length = 0;
  buffer[0] = 0;
  json_array_foreach(stages, i, stage) {
    if (length + 8 < size)
      length += (size_t)snprintf(buffer + length, size - length, "%s%lld", i ? ", " : "",
                                 (long long)json_integer_value(stage));
  }
  return buffer;
}

static void print_row(FILE *file, const json_t *plan, const json_t *row) {
  char ranks[64], stages[LIST_MAX];
  double busy = real_of(row, "busy"), idle = real_of(row, "idle");
  fprintf(file, "  %-20s %-16s %12.4g %8.1f %10lld %12lld\n", ranks_text(ad_pool_of(plan, row), ranks, sizeof ranks),
          stages_text(row, stages, sizeof stages), busy, 100 * idle / (busy + idle),
          (long long)ad_integer_of(row, "in_flight"), (long long)ad_integer_of(row, "deferred"));
}

void ad_plan_print_schedule(FILE *file, const json_t *plan) {
  const json_t *schedule = json_object_get(plan, "schedule"), *rows = json_object_get(schedule, "per_pool"), *row;
  size_t i;
  if (!schedule) return;
  print_head(file, schedule);
  fprintf(file, "  %-20s %-16s %12s %8s %10s %12s\n", "ranks", "stages", "busy", "idle %", "in flight", "held for W");
  json_array_foreach(rows, i, row) {
    if (i < ROWS_SHOWN) print_row(file, plan, row);
  }
  if (i > ROWS_SHOWN) fprintf(file, "  ... and %zu more (--json lists them)\n", i - ROWS_SHOWN);
  fprintf(file, "  busy: %s\n", unit_of(schedule));
}
