/* Draws a table as an SVG picture: ranks as rows; actions over time, in a tone for each kind; transfers as thin
 * lines. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/locale.h"
#include "base/options.h"
#include "base/text_stream.h"
#include "base/unfinished.h"
#include "files/svg.h"
#include "schedule/report.h"

enum { TOP = 108, ROW = 30, BOX = 22, RIGHT = 24, BOTTOM = 24, WIDTH_LEAST = 620, WIDTH_MOST = 8000, LINE = 20 };

typedef struct picture {
  const ad_table_judged *judged;
  ad_table_drawing drawing;
  double scale;  /* pixels for one unit of time */
  int digit;     /* width of a digit in a box, in pixels */
  int left, top; /* where the rows begin, in pixels from the left and the top */
} picture;

static int x_of(const picture *of, double time) { return of->left + (int)lround(time * of->scale); }
static int y_of(const picture *of, int32_t rank) { return of->top + rank * ROW; }

/* ---- names of the picture's rows ---- */

enum { NAME_MAX = 64 };

/* Writes "rank 3", or "ranks 6 to 11" if a row represents several ranks of the world. Returns buffer. */
static const char *row_name(const picture *of, int32_t row, char buffer[NAME_MAX]) {
  long long ranks = of->drawing.ranks_per_row, first = row * ranks;
  if (ranks > 1)
    snprintf(buffer, NAME_MAX, "ranks %lld to %lld", first, first + ranks - 1);
  else
    snprintf(buffer, NAME_MAX, "rank %d", row);
  return buffer;
}

static int names_width(const picture *of) {
  char name[NAME_MAX];
  int width = 34 + 8 * (int)strlen(row_name(of, of->judged->table->ranks - 1, name));
  return width > 90 ? width : 90;
}

/* ---- the picture's size ---- */

/* Returns a time for the scale: the box of an action of this time has just enough width for its number. It is the
 * shortest time of all actions, but at least an eighth of the longest time. */
static double shortest(const ad_table_judged *judged) {
  const ad_table *table = judged->table;
  double least = INFINITY, most = 0;
  for (int32_t r = 0; r < table->ranks; r++)
    for (size_t i = 0; i < table->rows[r].count; i++) {
      double cost = ad_table_cost_of(&judged->times.costs, &table->rows[r].actions[i]);
      if (cost > 0) least = fmin(least, cost);
      most = fmax(most, cost);
    }
  return fmax(least, most / 8);
}

static int label_width(const picture *of, int32_t number) {
  int width = 10;
  for (; number >= 10; number /= 10) width += of->digit;
  return width + of->digit;
}

static double scale_of(const picture *of) {
  double scale = label_width(of, of->judged->table->microbatches - 1) / shortest(of->judged);
  double makespan = of->judged->worth.makespan;
  return makespan * scale > WIDTH_MOST ? WIDTH_MOST / makespan : scale;
}

/* ---- drawing actions ---- */

/* Returns the tone of an action. Each kind has two tones, which the stages of one rank use alternately. */
static const char *tone_of(const ad_table *table, const ad_action *action) {
  static const char *const tones[AD_ACTION_COUNT][2] = {[AD_ACTION_F] = {"cell g0", "cell g6"},
                                                        [AD_ACTION_B] = {"cell g1", "cell g5"},
                                                        [AD_ACTION_I] = {"cell g4", "cell g7"},
                                                        [AD_ACTION_W] = {"cell g2", "cell g3"}};
  return tones[action->kind][action->stage / table->ranks % 2];
}

static void draw_action(const picture *of, int32_t rank, size_t place, FILE *file) {
  const ad_table_times_of *times = &of->judged->times;
  const ad_action *action = &of->judged->table->rows[rank].actions[place];
  size_t number = times->index.first[rank] + place;
  int from = x_of(of, times->run.begin[number]), to = x_of(of, times->run.end[number]), y = y_of(of, rank);
  if (ad_action_record_of(action->kind)->part != AD_TABLE_COMPUTE) return;
  ad_svg_box(file, from, y, to > from ? to - from : 1, BOX, tone_of(of->judged->table, action));
  if (to - from >= label_width(of, action->microbatch))
    ad_svg_text(file, (from + to) / 2, y + 15, "small middle", "%d", action->microbatch);
}

static void draw_rows(const picture *of, FILE *file) {
  const ad_table *table = of->judged->table;
  char name[NAME_MAX];
  for (int32_t r = 0; r < table->ranks; r++) {
    ad_svg_text(file, of->left - 10, y_of(of, r) + 15, "end", "%s", row_name(of, r, name));
    for (size_t i = 0; i < table->rows[r].count; i++) draw_action(of, r, i, file);
  }
}

/* ---- drawing transfers ---- */

/* Draws a line from the end of the action that computes a value to the beginning of the action that uses it. */
static void draw_transfer(const picture *of, ad_table_spot giver, ad_table_spot taker, FILE *file) {
  const ad_table_times_of *times = &of->judged->times;
  int down = taker.rank > giver.rank;
  ad_svg_line(file, x_of(of, times->run.end[ad_table_number(&times->index, giver)]),
              y_of(of, giver.rank) + (down ? BOX : 0),
              x_of(of, times->run.begin[ad_table_number(&times->index, taker)]),
              y_of(of, taker.rank) + (down ? 0 : BOX), "cell");
}

static void draw_edge(const picture *of, size_t e, FILE *file) {
  const ad_table_index *index = &of->judged->times.index;
  ad_stage_edge edge = ad_table_edge(index->table, e);
  for (int32_t m = 0; ad_table_edge_crosses(index, e) && m < index->table->microbatches; m++) {
    draw_transfer(of, ad_table_find(index, AD_ACTION_F, edge.from, m), ad_table_find(index, AD_ACTION_F, edge.to, m),
                  file);
    if (edge.way == AD_STAGE_BOTH_WAYS)
      draw_transfer(of, ad_table_find_backward(index, edge.to, m), ad_table_find_backward(index, edge.from, m), file);
  }
}

/* ---- drawing the whole picture, with head and legend ---- */

enum { SUMMARY_MAX = 256 };

static int has_kind(const ad_table *table, ad_action_kind kind) {
  for (int32_t r = 0; r < table->ranks; r++)
    for (size_t i = 0; i < table->rows[r].count; i++)
      if (table->rows[r].actions[i].kind == kind) return 1;
  return 0;
}

/* Draws a box and a name for each kind of action that the table has. If `file` is NULL, draws nothing. Returns where
 * the legend ends, in pixels from the left. */
static int draw_legend(const picture *of, FILE *file) {
  static const struct {
    ad_action_kind kind;
    const char *name;
  } kinds[] = {{AD_ACTION_F, "forward"},
               {AD_ACTION_B, "backward"},
               {AD_ACTION_I, "gradients of inputs"},
               {AD_ACTION_W, "gradients of weights"}};
  static const char next_stage[] = "another tone: a rank's next stage";
  const ad_table *table = of->judged->table;
  int x = of->left, y = of->top - 36;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    ad_action action = {.kind = kinds[i].kind};
    if (!has_kind(table, kinds[i].kind)) continue;
    if (file) ad_svg_box(file, x, y, 14, 14, tone_of(table, &action));
    if (file) ad_svg_text(file, x + 20, y + 12, "small", "%s", kinds[i].name);
    x += 30 + ad_svg_text_width("small", kinds[i].name);
  }
  if (table->stages <= table->ranks) return x;
  if (file) ad_svg_text(file, x, y + 12, "small quiet", next_stage);
  return x + ad_svg_text_width("small", next_stage);
}

static void print_summary(const picture *of, char *buffer, size_t size) {
  const ad_table_worth *worth = &of->judged->worth;
  int used = snprintf(buffer, size, "bubble %.1f %% of %g; activations in flight: %d at most", 100 * worth->bubble,
                      worth->makespan, worth->in_flight);
  if (worth->deferred) snprintf(buffer + used, size - (size_t)used, "; operands held for W: %d", worth->deferred);
}

static void draw_head(const picture *of, FILE *file) {
  const char *subtitle = of->drawing.subtitle;
  char summary[SUMMARY_MAX];
  print_summary(of, summary, sizeof summary);
  ad_svg_text(file, of->left, 34, "title", "%s", of->drawing.title);
  if (subtitle) ad_svg_text(file, of->left, 34 + LINE, "code quiet", "%s", subtitle);
  ad_svg_text(file, of->left, of->top - 50, "quiet", "%s", summary);
  draw_legend(of, file);
}

static int larger(int a, int b) { return a > b ? a : b; }

/* Returns the width of the picture, in which all rows and each line above them fit. */
static int width_of(const picture *of) {
  const char *subtitle = of->drawing.subtitle;
  char summary[SUMMARY_MAX];
  print_summary(of, summary, sizeof summary);
  int words = larger(ad_svg_text_width("title", of->drawing.title), ad_svg_text_width("quiet", summary));
  if (subtitle) words = larger(words, ad_svg_text_width("code", subtitle));
  int lines = larger(of->left + words, draw_legend(of, NULL));
  return larger(WIDTH_LEAST, larger(lines, x_of(of, of->judged->worth.makespan)) + RIGHT);
}

static void draw_table(const picture *of, FILE *file) {
  ad_svg_begin(file, width_of(of), y_of(of, of->judged->table->ranks) + BOTTOM, of->drawing.title);
  draw_head(of, file);
  for (size_t e = 0; e < of->judged->times.index.edges; e++) draw_edge(of, e, file);
  draw_rows(of, file);
  ad_svg_end(file);
}

static picture picture_of(const ad_table_judged *judged, const ad_table_drawing *drawing) {
  picture of = {.judged = judged, .drawing = *drawing, .digit = 7, .top = drawing->subtitle ? TOP + LINE : TOP};
  of.scale = scale_of(&of);
  of.left = names_width(&of);
  return of;
}

/* Makes the picture as a text in *out, which the caller frees with free(). */
static ad_status print_picture(const picture *of, char **out) {
  ad_text_stream to;
  AD_TRY(ad_text_stream_open("the picture of a table", &to));
  ad_locale locale = ad_locale_enter();
  draw_table(of, to.file);
  ad_locale_leave(locale);
  return ad_text_stream_close(&to, AD_OK, out);
}

ad_status ad_table_svg(const ad_table *table, const ad_table_options *options, const ad_table_drawing *given,
                       char **out) {
  ad_table_judged judged;
  ad_table_drawing drawing;
  AD_NEED(table, given, out);
  AD_TRY(ad_options_take(&drawing, sizeof drawing, given, "ad_table_drawing"));
  AD_NEED(drawing.title);
  AD_TRY(ad_table_judged_create(table, options, &judged));
  if (!judged.holds) return ad_fail(AD_INVALID, "%s", judged.faults.list[0].text);
  picture of = picture_of(&judged, &drawing);
  ad_status status = print_picture(&of, out);
  ad_table_judged_destroy(&judged);
  return status;
}

static ad_status write_text(FILE *file, void *context) {
  fputs(context, file);
  return AD_OK;
}

ad_status ad_table_picture(const ad_table *table, const ad_table_options *options, const char *title,
                           const char *path) {
  ad_table_drawing drawing = {.size = sizeof drawing, .title = title};
  char *text;
  AD_NEED(table, title, path);
  AD_TRY(ad_table_svg(table, options, &drawing, &text));
  ad_status status = ad_unfinished_write(path, write_text, text, NULL);
  free(text);
  return status;
}
