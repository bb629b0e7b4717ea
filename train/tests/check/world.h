/* A small world for checks in which sums easily go wrong: token counts differ between ranks, one rank has none; and
 * memory that the ranks share with the test. */
#ifndef TESTS_CHECK_WORLD_H
#define TESTS_CHECK_WORLD_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "check/mutants.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

/* A small recipe. `data` and `train` continue their YAML maps, such as ", valid: [1, 0.5]". */
static inline ad_recipe *small_recipe(const char *mesh, const char *data, const char *train) {
  char text[1024];
  snprintf(text, sizeof text,
           "name: small\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
           "data: {text: [/usr/share/common-licenses], seq: 12%s}\nmesh: \"%s\"\n"
           "train: {seed: 4, global_batch: 12, steps: 5, lr: 1e-2, weight_decay: 0.1, clip: 0.5%s}\n",
           data, mesh, train);
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "small.yaml", NULL, 0, &recipe));
  return recipe;
}

/* The last line of a table, which is its verdict, without its end; in memory that the next call uses again. */
static inline const char *last_line(const char *table) {
  static char line[1024];
  size_t length = strlen(table);
  assert_true(length && table[length - 1] == '\n');
  const char *at = table + length - 1;
  while (at > table && at[-1] != '\n') at--;
  snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
  return line;
}

/* The first line of `table` after `from` that `other` does not have, without its end; NULL if there is none. In memory
 * that the next call uses again. *from is set to the end of the line. */
static inline const char *next_line_beyond(const char **from, const char *other) {
  static char line[1024];
  for (const char *at = *from; *at; at = *from) {
    size_t length = strcspn(at, "\n");
    *from = at + length + (at[length] == '\n');
    snprintf(line, sizeof line, "%.*s\n", (int)length, at);
    if (strstr(other, line)) continue;
    line[length] = 0;
    return line;
  }
  return NULL;
}

#define UNEQUAL ", valid: [1, 0.5, 0.25, 1, 0, 0, 0.75, 0.125, 1, 0.5, 0, 0]"

#endif
