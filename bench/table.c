/* The document of a run as a table for people: addend's times, and how many times as long the others take. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static void print_bytes(char *out, size_t size, json_int_t bytes) {
  if (bytes >= 1 << 20)
    snprintf(out, size, "%.4g MiB", (double)bytes / (1 << 20));
  else
    snprintf(out, size, "%lld KiB", (long long)bytes / 1024);
}

static void print_seconds(char *out, size_t size, double seconds) {
  if (seconds >= 1)
    snprintf(out, size, "%.3g s", seconds);
  else if (seconds >= 1e-3)
    snprintf(out, size, "%.3g ms", seconds * 1e3);
  else
    snprintf(out, size, "%.3g us", seconds * 1e6);
}

static void print_spread(FILE *to, const json_t *row) {
  char median[32], least[32], most[32];
  print_seconds(median, sizeof median, json_number_value(json_object_get(row, "seconds_median")));
  print_seconds(least, sizeof least, json_number_value(json_object_get(row, "seconds_min")));
  print_seconds(most, sizeof most, json_number_value(json_object_get(row, "seconds_max")));
  fprintf(to, " %9s  %9s .. %-9s", median, least, most);
}

/* Times relative to addend's: above 1, addend is faster. */
static void print_ratio(FILE *to, const json_t *row, const json_t *other) {
  double own = json_number_value(json_object_get(row, "seconds_median"));
  if (json_is_number(other) && own > 0)
    fprintf(to, " %13.2f", json_number_value(other) / own);
  else
    fprintf(to, " %13s", "-");
}

static void print_head(FILE *to, const json_t *row) {
  const char *name;
  json_t *seconds;
  fprintf(to, "%-18s %-5s %-10s %9s %5s %-8s %-3s %9s  %22s %7s", "op", "dtype", "storage", "size", "ranks", "memory",
          "in", "median", "min .. max", "x floor");
  json_object_foreach(json_object_get(row, "peers"), name, seconds) fprintf(to, " %13s", name);
  fprintf(to, "\n");
}

static void print_row(FILE *to, const json_t *row) {
  const char *op, *dtype, *storage, *memory, *name;
  json_int_t bytes;
  int ranks, in_place;
  char size[32];
  json_t *seconds;
  json_unpack((json_t *)(size_t)row, "{ss ss ss sI si ss sb}", "op", &op, "dtype", &dtype, "storage", &storage, "bytes",
              &bytes, "ranks", &ranks, "memory", &memory, "in_place", &in_place);
  print_bytes(size, sizeof size, bytes);
  fprintf(to, "%-18s %-5s %-10s %9s %5d %-8s %-3s", op, dtype, storage, size, ranks, memory, in_place ? "yes" : "no");
  print_spread(to, row);
  const json_t *floor = json_object_get(row, "floor_ratio");
  if (json_is_number(floor))
    fprintf(to, " %7.2f", json_number_value(floor));
  else
    fprintf(to, " %7s", "-");
  json_object_foreach(json_object_get(row, "peers"), name, seconds) print_ratio(to, row, seconds);
  fprintf(to, "\n");
}

static void print_products(FILE *to, const json_t *products) {
  double share, rate, own;
  if (json_unpack((json_t *)(size_t)products, "{sF sF sF}", "gemm_share", &share, "gemm_gflops", &rate,
                  "openblas_gflops", &own))
    return;
  fprintf(to,
          "matrix products: %.0f %% of a step on one rank, %.1f GFLOP/s; OpenBLAS alone on the same shapes %.1f (%.0f "
          "%%)\n",
          100 * share, rate, own, 100 * rate / own);
}

/* What is planned, what is held, and by how much they differ. */
static void print_bytes_held(FILE *to, const json_t *row, const char *planned_key, const char *held_key) {
  double planned = json_number_value(json_object_get(row, planned_key));
  const json_t *held = json_object_get(row, held_key);
  fprintf(to, " %11.1f", planned / (1 << 20));
  if (json_is_number(held))
    fprintf(to, " %9.1f %+8.1f %%", json_number_value(held) / (1 << 20), 100 * (json_number_value(held) / planned - 1));
  else
    fprintf(to, " %9s %10s", "-", "-");
}

static void print_memory_head(FILE *to, const json_t *row) {
  fprintf(to, "memory of ranks that train, MiB\n%-26s %-7s %-5s %-10s %11s %9s %10s %11s %9s %10s\n", "mesh", "storage",
          "dtype", "checkpoint", "rank: plan", "held", "differs", "node: plan", "held", "differs");
}

static void print_memory(FILE *to, const json_t *row) {
  fprintf(to, "%-26s %-7s %-5s %-10s", json_string_value(json_object_get(row, "mesh")),
          json_string_value(json_object_get(row, "storage")), json_string_value(json_object_get(row, "dtype")),
          json_is_true(json_object_get(row, "checkpoint")) ? "each step" : "-");
  print_bytes_held(to, row, "planned_rank_bytes", "pss_rank_bytes");
  print_bytes_held(to, row, "planned_node_bytes", "pss_node_bytes");
  fprintf(to, "\n");
}

static void print_error_head(FILE *to, const json_t *row) {
  fprintf(to, "from a rank's mistake until every other rank has the error\n%-10s %5s %6s %9s %9s\n", "mistake", "ranks",
          "trials", "median", "worst");
}

static void print_error(FILE *to, const json_t *row) {
  char median[32], worst[32];
  print_seconds(median, sizeof median, json_number_value(json_object_get(row, "seconds_median")));
  print_seconds(worst, sizeof worst, json_number_value(json_object_get(row, "seconds_max")));
  fprintf(to, "%-10s %5lld %6lld %9s %9s\n", json_string_value(json_object_get(row, "mistake")),
          json_integer_value(json_object_get(row, "ranks")), json_integer_value(json_object_get(row, "rounds")), median,
          worst);
}

static void print_attention_head(FILE *to, const json_t *row) {
  fprintf(to,
          "attention alone, forward and backward; arithmetic is of all ranks\n%-11s %5s %6s %9s %22s  %10s %7s %7s\n",
          "variant", "ranks", "tokens", "median", "min .. max", "arithmetic", "balance", "exposed");
}

static void print_attention(FILE *to, const json_t *row) {
  char arithmetic[32];
  print_seconds(arithmetic, sizeof arithmetic, json_number_value(json_object_get(row, "arithmetic_seconds")));
  fprintf(to, "%-11s %5lld %6lld", json_string_value(json_object_get(row, "variant")),
          json_integer_value(json_object_get(row, "ranks")), json_integer_value(json_object_get(row, "seq")));
  print_spread(to, row);
  fprintf(to, "  %10s %7.2f %5.1f %%\n", arithmetic, json_number_value(json_object_get(row, "balance")),
          100 * json_number_value(json_object_get(row, "exposed")));
}

static void print_products_head(FILE *to, const json_t *row) {
  fprintf(to, "matrix products of one rank, GFLOP/s; oneDNN has %s\n%-14s %17s %-12s %8s %9s %8s %8s %11s %6s\n",
          json_is_string(json_object_get(row, "instructions")) ? json_string_value(json_object_get(row, "instructions"))
                                                               : "nothing: addend was built without it",
          "product", "m x n x k", "dtypes", "addend", "OpenBLAS", "oneDNN", "widened", "oneDNN's own", "of it");
}

static double product_rate(const json_t *row, const char *seconds) {
  double work = 2e-9;
  for (int i = 0; i < 3; i++) work *= json_number_value(json_object_get(row, (const char *[]){"m", "n", "k"}[i]));
  double took = json_number_value(json_object_get(row, seconds));
  return took > 0 ? work / took : 0;
}

static void print_rate(FILE *to, int width, double rate) {
  if (rate > 0)
    fprintf(to, " %*.1f", width, rate);
  else
    fprintf(to, " %*s", width, "-");
}

static void print_product(FILE *to, const json_t *row) {
  char shape[64], names[32];
  snprintf(shape, sizeof shape, "%lld x %lld x %lld", json_integer_value(json_object_get(row, "m")),
           json_integer_value(json_object_get(row, "n")), json_integer_value(json_object_get(row, "k")));
  snprintf(names, sizeof names, "%s to %s", json_string_value(json_object_get(row, "dtype")),
           json_string_value(json_object_get(row, "result")));
  double ours = product_rate(row, "seconds_min"), own = product_rate(row, "onednn_own_seconds");
  fprintf(to, "%-14s %17s %-12s", json_string_value(json_object_get(row, "variant")), shape, names);
  print_rate(to, 8, ours);
  print_rate(to, 9, product_rate(row, "openblas_seconds"));
  print_rate(to, 8, product_rate(row, "onednn_seconds"));
  print_rate(to, 8, product_rate(row, "widened_seconds"));
  print_rate(to, 12, own);
  fprintf(to, own > 0 ? " %5.2f\n" : "\n", ours / (own > 0 ? own : 1));
}

/* Rows that have columns of their own; all others are times beside those of a floor and of peers. */
typedef struct row_kind {
  const char *op;
  void (*head)(FILE *to, const json_t *row);
  void (*row)(FILE *to, const json_t *row);
} row_kind;

/* The last is of every other operation. */
static const row_kind kinds[] = {{"attention", print_attention_head, print_attention},
                                 {"products", print_products_head, print_product},
                                 {"errors", print_error_head, print_error},
                                 {"memory", print_memory_head, print_memory},
                                 {NULL, print_head, print_row}};

static int kind_of(const json_t *row) {
  int kind = 0;
  while (kinds[kind].op && strcmp(json_string_value(json_object_get(row, "op")), kinds[kind].op) != 0) kind++;
  return kind;
}

/* Rows of a kind stand together, below its head. */
static void print_rows(FILE *to, const json_t *rows) {
  size_t i;
  json_t *row;
  int last = -1;
  json_array_foreach((json_t *)(size_t)rows, i, row) {
    int kind = kind_of(row);
    if (kind != last) kinds[kind].head(to, row);
    kinds[kind].row(to, row);
    last = kind;
  }
}

static void print_document(FILE *to, const json_t *document) {
  const json_t *rows = json_object_get(document, "rows"), *machine = json_object_get(document, "machine");
  fprintf(to, "%s, %lld cores, copies at %.1f GB/s; peers: their time over addend's\n",
          json_string_value(json_object_get(machine, "cpu")), json_integer_value(json_object_get(machine, "cores")),
          json_number_value(json_object_get(document, "copy_gbps")));
  print_rows(to, rows);
  if (json_object_get(document, "products")) print_products(to, json_object_get(document, "products"));
}

char *bench_table(const char *json) {
  char *text = NULL;
  size_t size;
  json_t *document = json_loads(json, 0, NULL);
  FILE *to = document ? open_memstream(&text, &size) : NULL;
  if (to) {
    print_document(to, document);
    if (fclose(to)) text = NULL;
  }
  json_decref(document);
  return text;
}
