/* Prints a run's JSON document as a readable table: addend's times, and the others' times relative to addend's. */
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

/* Prints another program's time divided by addend's: above 1, addend is faster. */
static void print_ratio(FILE *to, const json_t *row, const json_t *other, int width) {
  double own = json_number_value(json_object_get(row, "seconds_median"));
  if (json_is_number(other) && own > 0)
    fprintf(to, " %*.2f", width, json_number_value(other) / own);
  else
    fprintf(to, " %*s", width, "-");
}

/* Returns 1 for a peer that has a column only in the table of training steps. */
static int trains_only(const char *peer) { return strstr(peer, "_compiled") || strstr(peer, "_bf16"); }

static void print_head(FILE *to, const json_t *row) {
  const char *name;
  json_t *seconds;
  fprintf(to, "%-18s %-5s %-10s %9s %5s %-8s %-3s %9s  %22s %7s", "op", "dtype", "storage", "size", "ranks", "memory",
          "in", "median", "min .. max", "x floor");
  json_object_foreach(json_object_get(row, "peers"), name, seconds) if (!trains_only(name)) fprintf(to, " %13s", name);
  fprintf(to, "\n");
}

/* Prints the last column of a pipeline's row: the share of a step that ranks spend in transfers. */
static void print_transfers(FILE *to, const json_t *row) {
  const json_t *seconds = json_object_get(row, "transfer_seconds");
  double step = json_number_value(json_object_get(row, "seconds_median"));
  if (seconds) fprintf(to, "  transfers %.1f %%", 100 * json_number_value(seconds) / step);
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
  json_object_foreach(json_object_get(row, "peers"), name, seconds) if (!trains_only(name))
      print_ratio(to, row, seconds, 13);
  print_transfers(to, row);
  fprintf(to, "\n");
}

static void print_alone(FILE *to, const char *library, const json_t *alone, double rate) {
  double own = json_number_value(alone);
  if (own > 0) fprintf(to, "; %s %.1f (%.0f %%)", library, own, 100 * rate / own);
}

static void print_products(FILE *to, const json_t *products) {
  const char *dtype, *by, *instructions;
  double share, rate;
  if (json_unpack((json_t *)(size_t)products, "{ss ss ss sF sF}", "dtype", &dtype, "products_by", &by, "instructions",
                  &instructions, "gemm_share", &share, "gemm_gflops", &rate))
    return;
  fprintf(to,
          "matrix products of a step in %s on one rank, %s, %s: %.0f %% of it, %.1f GFLOP/s; alone on the same shapes",
          dtype, by, instructions, 100 * share, rate);
  print_alone(to, "OpenBLAS f32", json_object_get(products, "openblas_gflops"), rate);
  if (strcmp(dtype, "f32") != 0)
    print_alone(to, "oneDNN in its dtype", json_object_get(products, "onednn_gflops"), rate);
  print_alone(to, "oneDNN f32", json_object_get(products, "onednn_f32_gflops"), rate);
  fprintf(to, "\n");
}

static void print_activations(FILE *to, const char *name, const json_t *of) {
  double f32, bf16, ratio;
  if (json_unpack((json_t *)(size_t)of, "{sF sF sF}", "f32_bytes", &f32, "bf16_bytes", &bf16, "ratio", &ratio)) return;
  fprintf(to, "activations of a batch on a rank, MiB, %s: f32 %.1f, bf16 %.1f, %.1f %% of it\n", name, f32 / (1 << 20),
          bf16 / (1 << 20), 100 * ratio);
}

/* Prints planned bytes, measured bytes, and the difference in percent. */
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
  fprintf(to, "memory of ranks that train, MiB; gradients: buckets and sums, of all ranks\n");
  fprintf(to, "%-26s %-7s %-5s %-7s %5s %-10s %11s %9s %10s %11s %9s %10s %10s %11s %9s %10s\n", "mesh", "storage",
          "dtype", "compute", "batch", "checkpoint", "rank: plan", "held", "differs", "node: plan", "held", "differs",
          "bucket_mib", "grads: plan", "held", "differs");
}

static void print_memory(FILE *to, const json_t *row) {
  fprintf(to, "%-26s %-7s %-5s %-7s %5lld %-10s", json_string_value(json_object_get(row, "mesh")),
          json_string_value(json_object_get(row, "storage")), json_string_value(json_object_get(row, "dtype")),
          json_string_value(json_object_get(row, "compute")),
          json_integer_value(json_object_get(json_object_get(row, "model"), "batch")),
          json_is_true(json_object_get(row, "checkpoint")) ? "each step" : "-");
  print_bytes_held(to, row, "planned_rank_bytes", "pss_rank_bytes");
  print_bytes_held(to, row, "planned_node_bytes", "pss_node_bytes");
  fprintf(to, " %10g", json_number_value(json_object_get(row, "bucket_mib")));
  print_bytes_held(to, row, "planned_gradient_bytes", "gradient_bytes");
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

static void print_rate(FILE *to, int width, int digits, double rate) {
  if (rate > 0)
    fprintf(to, " %*.*f", width, digits, rate);
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
  print_rate(to, 8, 1, ours);
  print_rate(to, 9, 1, product_rate(row, "openblas_seconds"));
  print_rate(to, 8, 1, product_rate(row, "onednn_seconds"));
  print_rate(to, 8, 1, product_rate(row, "widened_seconds"));
  print_rate(to, 12, 1, own);
  fprintf(to, own > 0 ? " %5.2f\n" : "\n", ours / (own > 0 ? own : 1));
}

/* The peers that can run training steps. */
static const char *const trainers[] = {"torch_ddp", "torch_fsdp", "torch_ddp_compiled", "torch_ddp_bf16",
                                       "torch_ddp_bf16_compiled"};
enum { TRAINERS = sizeof trainers / sizeof *trainers };

static void print_training_head(FILE *to, const json_t *row) {
  fprintf(to, "training steps\n%6s %7s %-5s %5s %9s  %22s %9s", "layers", "d_model", "dtype", "ranks", "median",
          "min .. max", "tokens/s");
  for (int i = 0; i < TRAINERS; i++) fprintf(to, " %*s", (int)strlen(trainers[i]), trainers[i]);
  fprintf(to, "  products\n");
}

static void print_training(FILE *to, const json_t *row) {
  const json_t *model = json_object_get(row, "model"), *peers = json_object_get(row, "peers");
  fprintf(to, "%6lld %7lld %-5s %5lld", json_integer_value(json_object_get(model, "layers")),
          json_integer_value(json_object_get(model, "d_model")), json_string_value(json_object_get(row, "dtype")),
          json_integer_value(json_object_get(row, "ranks")));
  print_spread(to, row);
  fprintf(to, " %9.0f", json_number_value(json_object_get(row, "tokens_per_second")));
  for (int i = 0; i < TRAINERS; i++)
    print_ratio(to, row, json_object_get(peers, trainers[i]), (int)strlen(trainers[i]));
  fprintf(to, "  %s, %s\n", json_string_value(json_object_get(row, "products_by")),
          json_string_value(json_object_get(row, "instructions")));
}

static void print_between_head(FILE *to, const json_t *row) {
  const char *name;
  json_t *seconds;
  fprintf(to,
          "between hosts; sent: by all hosts, over the least that the order of sums allows; of link: the network's own "
          "time "
          "for the least, over addend's; CPU: the processor's seconds of all ranks for 1 GB sent\n");
  fprintf(to, "%-7s %-14s %-7s %9s %9s  %22s %7s %5s %6s", "hosts", "op", "storage", "size", "median", "min .. max",
          "of link", "sent", "CPU");
  json_object_foreach(json_object_get(row, "peers"), name, seconds) fprintf(to, " %14s %5s %6s", name, "sent", "CPU");
  fprintf(to, "\n");
}

/* Prints the sent bytes relative to the least possible, and the processor seconds per GB sent. */
static void print_sent(FILE *to, const json_t *row, const char *name) {
  double least = json_number_value(json_object_get(row, "least_bytes"));
  double sent = json_number_value(json_object_get(json_object_get(row, "sent_bytes"), name));
  double busy = json_number_value(json_object_get(json_object_get(row, "processor_seconds"), name));
  if (sent > 0)
    fprintf(to, " %5.2f %6.2f", sent / least, busy / sent * 1e9);
  else
    fprintf(to, " %5s %6s", "-", "-");
}

static void print_between(FILE *to, const json_t *row) {
  char size[32], world[32];
  const char *name;
  json_t *seconds;
  double own = json_number_value(json_object_get(row, "seconds_median"));
  snprintf(world, sizeof world, "%lld x %lld", json_integer_value(json_object_get(row, "hosts")),
           json_integer_value(json_object_get(row, "ranks_per_host")));
  print_bytes(size, sizeof size, json_integer_value(json_object_get(row, "bytes")));
  fprintf(to, "%-7s %-14s %-7s %9s", world, json_string_value(json_object_get(row, "op")),
          json_string_value(json_object_get(row, "storage")), size);
  print_spread(to, row);
  fprintf(to, " %5.0f %%", 100 * json_number_value(json_object_get(row, "link_seconds")) / own);
  print_sent(to, row, "addend");
  if (json_object_get(row, "wait_seconds"))
    fprintf(to, "  waits %.1f %%", 100 * json_number_value(json_object_get(row, "wait_seconds")) / own);
  json_object_foreach(json_object_get(row, "peers"), name, seconds) {
    print_ratio(to, row, seconds, 14);
    print_sent(to, row, name);
  }
  fprintf(to, "\n");
}

static void print_group_head(FILE *to, const json_t *row) {
  fprintf(
      to,
      "through torch.distributed: addend's process group, gloo; addend: the C call, or its own training step; over C: "
      "what the group takes beyond it; x: its and DeepSpeed's time over addend's\n"
      "%-15s %-5s %-8s %9s %5s %-8s %9s  %22s %9s %9s %6s %13s %13s\n",
      "op", "dtype", "storage", "size", "ranks", "memory", "addend", "min .. max", "group", "over C", "x",
      "gloo / group", "deepspeed x");
}

static void print_group_time(FILE *to, const json_t *row, const json_t *group) {
  double own = json_number_value(json_object_get(row, "seconds_median")), through = json_number_value(group);
  char time[32], over[32];
  if (!json_is_number(group)) {
    fprintf(to, " %9s %9s", "-", "-");
    return;
  }
  print_seconds(time, sizeof time, through);
  print_seconds(over, sizeof over, through > own ? through - own : 0);
  fprintf(to, " %9s %9s", time, over);
}

static void print_group(FILE *to, const json_t *row) {
  const json_t *peers = json_object_get(row, "peers");
  const json_t *group = json_object_get(peers, "torch_group"), *gloo = json_object_get(peers, "gloo");
  char size[32];
  print_bytes(size, sizeof size, json_integer_value(json_object_get(row, "bytes")));
  fprintf(to, "%-15s %-5s %-8s %9s %5lld %-8s", json_string_value(json_object_get(row, "variant")),
          json_string_value(json_object_get(row, "dtype")), json_string_value(json_object_get(row, "storage")), size,
          json_integer_value(json_object_get(row, "ranks")), json_string_value(json_object_get(row, "memory")));
  print_spread(to, row);
  print_group_time(to, row, group);
  print_ratio(to, row, group, 6);
  if (json_is_number(group) && json_is_number(gloo))
    fprintf(to, " %13.2f", json_number_value(gloo) / json_number_value(group));
  else
    fprintf(to, " %13s", "-");
  print_ratio(to, row, json_object_get(peers, "deepspeed"), 13);
  fprintf(to, "\n");
}

/* The same step without leaves: with a microbatch for each leaf, and with one microbatch. */
static const char *const without_leaves[] = {"addend_microbatches", "addend_whole"};

static void print_leaves_head(FILE *to, const json_t *row) {
  fprintf(to,
          "training steps with a leaf for each sample; beside them, the step's time without leaves over that with "
          "leaves, with as many microbatches and with one, then the same of processor seconds\n"
          "%-5s %-8s %9s %5s %9s  %22s %12s %6s %12s %6s\n",
          "dtype", "storage", "size", "ranks", "median", "min .. max", "microbatches", "one", "processor", "one");
}

static void print_leaves(FILE *to, const json_t *row) {
  const json_t *peers = json_object_get(row, "peers"), *busy = json_object_get(row, "processor_seconds");
  double own = json_number_value(json_object_get(busy, "addend"));
  char size[32];
  print_bytes(size, sizeof size, json_integer_value(json_object_get(row, "bytes")));
  fprintf(to, "%-5s %-8s %9s %5lld", json_string_value(json_object_get(row, "dtype")),
          json_string_value(json_object_get(row, "storage")), size, json_integer_value(json_object_get(row, "ranks")));
  print_spread(to, row);
  for (int i = 0; i < 2; i++) print_ratio(to, row, json_object_get(peers, without_leaves[i]), i ? 6 : 12);
  for (int i = 0; i < 2; i++)
    print_rate(to, i ? 6 : 12, 2, own > 0 ? json_number_value(json_object_get(busy, without_leaves[i])) / own : 0);
  fprintf(to, "\n");
}

/* A kind of row with its own columns. All other rows have the usual columns: times of addend, floor and peers. */
typedef struct row_kind {
  const char *op;
  void (*head)(FILE *to, const json_t *row);
  void (*row)(FILE *to, const json_t *row);
} row_kind;

/* The kinds of rows by operation. Rows between hosts are one kind whatever the operation; the last entry is for every
 * other row. */
static const row_kind kinds[] = {{"train_step", print_training_head, print_training},
                                 {"attention", print_attention_head, print_attention},
                                 {"products", print_products_head, print_product},
                                 {"errors", print_error_head, print_error},
                                 {"memory", print_memory_head, print_memory},
                                 {"torch_group", print_group_head, print_group},
                                 {"hosts", print_between_head, print_between},
                                 {"leaves", print_leaves_head, print_leaves},
                                 {NULL, print_head, print_row}};

static int kind_of(const json_t *row) {
  const char *op = json_object_get(row, "hosts") ? "hosts" : json_string_value(json_object_get(row, "op"));
  int kind = 0;
  while (kinds[kind].op && strcmp(op, kinds[kind].op) != 0) kind++;
  return kind;
}

/* Prints the rows, with a new head whenever their kind changes. */
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

static const char *instructions_of(const json_t *machine) {
  const json_t *instructions = json_object_get(machine, "instructions");
  return json_is_string(instructions) ? json_string_value(instructions) : "no oneDNN";
}

static void print_document(FILE *to, const json_t *document) {
  const json_t *rows = json_object_get(document, "rows"), *machine = json_object_get(document, "machine");
  fprintf(to, "%s, %s, %lld cores, copies at %.1f GB/s; peers: their time over addend's\n",
          json_string_value(json_object_get(machine, "cpu")), instructions_of(machine),
          json_integer_value(json_object_get(machine, "cores")),
          json_number_value(json_object_get(document, "copy_gbps")));
  print_rows(to, rows);
  print_products(to, json_object_get(document, "products"));
  print_products(to, json_object_get(document, "products_bf16"));
  print_activations(to, "planned", json_object_get(json_object_get(document, "activations"), "planned"));
  print_activations(to, "measured", json_object_get(json_object_get(document, "activations"), "pss"));
}

char *bench_table(const char *json) {
  char *text = NULL;
  size_t size;
  json_t *document = json_loads(json, 0, NULL);
  FILE *to = document ? open_memstream(&text, &size) : NULL;
  if (to) {
    print_document(to, document);
    if (fclose(to)) free(text), text = NULL;
  }
  json_decref(document);
  return text;
}
