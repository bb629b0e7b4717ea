/* Prints the collectives of a dump's document as a table. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "addend/diff.h"
#include "base/error.h"
#include "base/text.h"
#include "files/printed.h"

enum { CELL = 160 };

/* A column of the table; `fill` prints a call's cell. */
typedef struct ad_calls_column {
  const char *head;
  int is_number;
  void (*fill)(const json_t *document, const json_t *call, ad_text *cell);
} ad_calls_column;

/* Adds a number with a space after each three digits. */
static void add_number(ad_text *cell, long long number) {
  if (number >= 1000) {
    add_number(cell, number / 1000);
    ad_text_add(cell, " %03lld", number % 1000);
  } else {
    ad_text_add(cell, "%lld", number);
  }
}

static void fill_operation(const json_t *document, const json_t *call, ad_text *cell) {
  ad_text_add(cell, "%s", ad_text_of(call, "operation"));
}

/* Adds ranks: "0, 2" or, with runs of them in one, "0-3, 8". */
static void add_ranks(ad_text *cell, const json_t *ranks) {
  size_t count = json_array_size(ranks);
  for (size_t i = 0; i < count; i++) {
    long long first = json_integer_value(json_array_get(ranks, i)), last = first;
    size_t begin = i;
    while (i + 1 < count && json_integer_value(json_array_get(ranks, i + 1)) == last + 1) last++, i++;
    ad_text_add(cell, "%s%lld", begin ? ", " : "", first);
    if (last > first) ad_text_add(cell, "%s%lld", last == first + 1 ? ", " : "-", last);
  }
}

static void fill_over(const json_t *document, const json_t *call, ad_text *cell) {
  const json_t *ranks = json_object_get(call, "ranks");
  ad_text_add(cell, "%s", json_array_size(ranks) ? "ranks " : ad_text_of(call, "axes"));
  add_ranks(cell, ranks);
}

static void fill_dtype(const json_t *document, const json_t *call, ad_text *cell) {
  ad_text_add(cell, "%s", ad_text_of(call, "dtype"));
}

static void fill_bytes(const json_t *document, const json_t *call, ad_text *cell) {
  add_number(cell, ad_integer_of(call, "bytes"));
}

static void fill_needed(const json_t *document, const json_t *call, ad_text *cell) {
  if (json_is_integer(json_object_get(call, "needed")))
    add_number(cell, ad_integer_of(call, "needed"));
  else
    ad_text_add(cell, "-");
}

static void fill_times(const json_t *document, const json_t *call, ad_text *cell) {
  add_number(cell, ad_integer_of(call, "count"));
}

static void fill_where(const json_t *document, const json_t *call, ad_text *cell) {
  const char *line = ad_text_of(call, "line"), *phase = ad_text_of(call, "phase");
  if (*line)
    ad_text_add(cell, "%s", line);
  else
    ad_text_add(cell, "%s", !strcmp(phase, "after") ? "after the last backward" : phase);
}

static void fill_sums(const json_t *document, const json_t *call, ad_text *cell) {
  enum { NAMED = 3 };
  const json_t *params = json_object_get(call, "params"), *name;
  size_t i;
  json_array_foreach(params, i, name) if (i < NAMED) ad_text_add(cell, "%s%s", i ? ", " : "", json_string_value(name));
  if (i > NAMED) ad_text_add(cell, " and %zu more", i - NAMED);
  if (!i) ad_text_add(cell, "-");
}

static void fill_ranks(const json_t *document, const json_t *call, ad_text *cell) {
  const json_t *made_by = json_object_get(call, "made_by");
  if ((long long)json_array_size(made_by) == ad_integer_of(document, "world"))
    ad_text_add(cell, "all");
  else
    add_ranks(cell, made_by);
}

static const ad_calls_column columns[] = {
    {"operation", 0, fill_operation}, {"over", 0, fill_over},     {"dtype", 0, fill_dtype},
    {"bytes", 1, fill_bytes},         {"needed", 1, fill_needed}, {"times", 1, fill_times},
    {"ranks", 0, fill_ranks},         {"sums", 0, fill_sums},     {"where", 0, fill_where},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

/* Prints the cell of a call in a column, or the column's head if `call` is NULL. Returns its width, in characters. */
static int print_cell(const json_t *document, const json_t *call, size_t column, char *buffer) {
  ad_text cell = ad_text_on(buffer, CELL);
  if (call)
    columns[column].fill(document, call, &cell);
  else
    ad_text_add(&cell, "%s", columns[column].head);
  int width = 0;
  for (size_t i = 0; i < cell.used; i++)
    width += (buffer[i] & 0xc0) != 0x80; /* bytes that begin a character of UTF-8 */
  return width;
}

static void print_line(FILE *file, const json_t *document, const json_t *call, const int *widths) {
  char cell[CELL];
  for (size_t column = 0; column < COLUMNS; column++) {
    int is_last = column + 1 == COLUMNS, is_number = columns[column].is_number;
    int blank = is_last ? 0 : widths[column] - print_cell(document, call, column, cell);
    if (is_last) print_cell(document, call, column, cell);
    fprintf(file, "  %*s%s%*s", is_number ? blank : 0, "", cell, is_number ? 0 : blank, "");
  }
  fprintf(file, "\n");
}

static void print_calls(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *calls = json_object_get(document, "calls"), *call, *why;
  int widths[COLUMNS];
  char cell[CELL];
  size_t i;
  for (size_t column = 0; column < COLUMNS; column++) {
    widths[column] = print_cell(document, NULL, column, cell);
    json_array_foreach(calls, i, call) {
      int width = print_cell(document, call, column, cell);
      if (width > widths[column]) widths[column] = width;
    }
  }
  fprintf(file, "%s%lld rank%s%s, mesh %s: %zu kind%s of calls\n", paint->bold, ad_integer_of(document, "world"),
          ad_plural(ad_integer_of(document, "world")), paint->off, ad_text_of(document, "mesh"), json_array_size(calls),
          ad_plural((long long)json_array_size(calls)));
  if (json_array_size(calls)) print_line(file, document, NULL, widths);
  json_array_foreach(calls, i, call) print_line(file, document, call, widths);
  const char *before = "";
  json_array_foreach(calls, i, call) {
    const char *text = ad_text_of(call, "text");
    if (*text && strcmp(text, before) != 0) fprintf(file, "  %snote%s %s\n", paint->dim, paint->off, text);
    before = text;
  }
  json_array_foreach(json_object_get(document, "calls_unseen"), i, why)
      fprintf(file, "  there may be more: %s\n", json_string_value(why));
}

/* Prints the calls of a dump, or of each of its modules. */
static void print_all(FILE *file, const json_t *document, const void *context) {
  const ad_paint *paint = context;
  const json_t *modules = json_object_get(document, "modules"), *module;
  size_t i;
  if (!modules && !json_object_get(document, "calls"))
    fprintf(file, "no calls were noted: the dump's files have no addend.calls, which addend.torch writes\n");
  else if (!modules)
    print_calls(file, document, paint);
  json_array_foreach(modules, i, module) {
    fprintf(file, "%s%s`%s`%s: ", i ? "\n" : "", paint->bold, ad_text_of(module, "module"), paint->off);
    print_all(file, module, context);
  }
}

ad_status ad_diff_calls(const char *json, ad_text_style style, char **out) {
  AD_NEED(json, out);
  return ad_document_print(json, "dump", print_all, ad_paint_of(style), out);
}
