/* report.html: the run in numbers, its curves, one step on all ranks, the proof. The curves are drawn in plot.c, the
 * proof's table in report_proof.c. */
#include "train/report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "io/file.h"
#include "io/unfinished.h"
#include "recipe/locale.h"
#include "train/plot.h"
#include "train/run.h"

static const char head[] =
    "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\n"
    "<style>\nbody{font:15px/1.5 system-ui,sans-serif;max-width:940px;margin:2em auto;padding:0 1em;color:#222;"
    "background:#fff}\nh1{font-size:1.6em;margin-bottom:0}h2{margin-top:2em;border-bottom:1px solid #ddd}\n"
    "table{border-collapse:collapse;font-size:13px}td,th{text-align:left;padding:2px 10px 2px 0;border-bottom:1px "
    "solid #eee;vertical-align:top}\n.n{text-align:right;font-variant-numeric:tabular-nums}.wide{overflow-x:auto}\n"
    ".no{color:#b00020;font-weight:600}p.yes{color:#1a7f37;font-weight:600}\n"
    "svg{width:100%;height:auto}pre{background:#f6f6f6;padding:1em;overflow-x:auto}\n</style>\n";

void ad_report_text(FILE *page, const char *text) {
  for (; *text; text++) {
    switch (*text) {
      case '<':
        fputs("&lt;", page);
        break;
      case '>':
        fputs("&gt;", page);
        break;
      case '&':
        fputs("&amp;", page);
        break;
      case '"':
        fputs("&quot;", page);
        break;
      default:
        fputc(*text, page);
    }
  }
}

static void row(FILE *page, const char *name, const char *format, ...) AD_PRINTF(3, 4);
static void row(FILE *page, const char *name, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(page, "<tr><th>%s<td>", name);
  ad_report_text(page, text);
  fputs("</tr>\n", page);
}

static int64_t element_count(const ad_run *run) {
  int64_t numel = 0;
  for (size_t i = 0; i < run->param_count; i++) numel += ad_shape_numel(&ad_run_param_at(run, i).spec->shape);
  return numel;
}

static int compare_seconds(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static ad_status median_seconds(const ad_metrics *metrics, double *out) {
  double *seconds;
  AD_TRY(ad_new(metrics->count, &seconds));
  for (size_t i = 0; i < metrics->count; i++) seconds[i] = metrics->list[i].report.seconds;
  qsort(seconds, metrics->count, sizeof *seconds, compare_seconds);
  *out = metrics->count ? seconds[metrics->count / 2] : 0;
  ad_release(seconds);
  return AD_OK;
}

static double last_held_out(const ad_metrics *metrics) {
  for (size_t i = metrics->count; i-- > 0;) {
    if (!isnan(metrics->list[i].held_out_loss)) return metrics->list[i].held_out_loss;
  }
  return NAN;
}

static void write_speed(FILE *page, const ad_report *report, double seconds) {
  const ad_program *program = report->run->program;
  const ad_program_kind *kind = ad_program_kind_of(program);
  if (!(seconds > 0)) return;
  const ad_metric *last = &report->metrics->list[report->metrics->count - 1];
  row(page, "speed", "%.1f ms a step (median), %.0f tokens a second, %.2f GFLOP/s in matrix products on all ranks",
      seconds * 1e3, (double)last->report.count / seconds,
      kind->flops(ad_program_own(program), report->run->recipe->train.global_batch) / seconds * 1e-9);
}

static void write_losses(FILE *page, const ad_metrics *metrics) {
  if (!metrics->count) return;
  const ad_step_report *first = &metrics->list[0].report, *last = &metrics->list[metrics->count - 1].report;
  row(page, "loss", "%.4f at step %lld, %.4f at step %lld (a uniform guess: %.4f)", first->loss, (long long)first->step,
      last->loss, (long long)last->step, log(AD_VOCABULARY_BYTES));
  if (!isnan(last_held_out(metrics))) row(page, "held out", "%.4f", last_held_out(metrics));
}

static void write_memory(FILE *page, const ad_metrics *metrics) {
  ad_run_memory most = {0};
  for (size_t i = 0; i < metrics->count; i++)
    if (metrics->list[i].memory.all_bytes > most.all_bytes) most = metrics->list[i].memory;
  if (!most.all_bytes) return;
  row(page, "memory", "%.1f MiB on all ranks, %.1f MiB on the one that holds most (proportional set size)",
      (double)most.all_bytes / (1 << 20), (double)most.rank_bytes / (1 << 20));
}

/* What the program has to say of its data. */
static void write_facts(FILE *page, const ad_run *run) {
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  char text[256];
  const char *name;
  for (size_t i = 0; kind->fact && (name = kind->fact(ad_program_own(run->program), i, text, sizeof text)); i++)
    row(page, name, "%s", text);
}

static ad_status write_summary(FILE *page, const ad_report *report) {
  const ad_run *run = report->run;
  const ad_recipe *recipe = run->recipe;
  double seconds;
  AD_TRY(median_seconds(report->metrics, &seconds));
  fputs("<table>\n", page);
  char mesh[256];
  row(page, "mesh", "%s: %lld ranks on engine %s", ad_recipe_mesh_text(recipe, mesh, sizeof mesh),
      (long long)ad_comm_size(run->comm), ad_comm_engine(run->comm));
  row(page, "model", "%s, %zu parameters with %lld elements", recipe->kind, run->param_count,
      (long long)element_count(run));
  write_facts(page, run);
  row(page, "steps", "%zu of %lld", report->metrics->count, (long long)recipe->train.steps);
  write_losses(page, report->metrics);
  write_speed(page, report, seconds);
  write_memory(page, report->metrics);
  fputs("</table>\n", page);
  return AD_OK;
}

// Takes the drawing; one that failed leaves its reason on the page.
static void write_plot(FILE *page, const char *title, ad_status status, char *svg) {
  fprintf(page, "<h2>%s</h2>\n", title);
  if (status) {
    fputs("<p>Not drawn: ", page);
    ad_report_text(page, ad_last_error());
    fputs("</p>\n", page);
    return;
  }
  fputs(svg, page);
  ad_release(svg);
}

// The last step of which every span is there; the first ones still touch fresh memory. -1: no step was taken.
static int64_t shown_step(const ad_timeline *timeline) {
  int64_t step = -1;
  for (int64_t i = 0; timeline->ranks && i < timeline->counts[0]; i++) {
    const ad_trace_event *event = &timeline->events[i];
    if (event->kind == AD_TRACE_STEP && event->end) step = event->step;
  }
  return step;
}

static void write_plots(FILE *page, const ad_report *report) {
  char *svg = NULL;
  if (!report->metrics->count) return;
  ad_status status = ad_plot_loss(report->metrics, &svg);
  write_plot(page, "Loss", status, svg);
  status = ad_plot_throughput(report->metrics, &svg);
  write_plot(page, "Throughput", status, svg);
  int64_t step = shown_step(report->timeline);
  if (step < 0) return;
  char title[64];
  snprintf(title, sizeof title, "Step %lld on all ranks", (long long)step);
  status = ad_plot_timeline(report->timeline, step, &svg);
  write_plot(page, title, status, svg);
  fputs("<p><code>trace.json</code> beside this page holds the first steps; ui.perfetto.dev opens it.</p>\n", page);
}

static ad_status write_recipe(FILE *page, const ad_recipe *recipe) {
  char *text;
  AD_TRY(ad_recipe_print(recipe, &text));
  fputs("<h2>Recipe</h2>\n<pre>", page);
  ad_report_text(page, text);
  fputs("</pre>\n", page);
  free(text);
  return AD_OK;
}

static ad_status write_page(FILE *page, const ad_report *report) {
  const char *name = report->run->recipe->name;
  fputs(head, page);
  fputs("<title>", page);
  ad_report_text(page, name);
  fputs("</title></head><body>\n<h1>", page);
  ad_report_text(page, name);
  fputs("</h1>\n", page);
  AD_TRY(write_summary(page, report));
  write_plots(page, report);
  ad_report_proof(page, report->folder);
  AD_TRY(write_recipe(page, report->run->recipe));
  fputs("</body></html>\n", page);
  return AD_OK;
}

static ad_status write_unfinished(const char *path, const ad_report *report) {
  FILE *page = fopen(path, "w");
  if (!page) return ad_fail(AD_IO, "%s: the report cannot be written: %s", path, strerror(errno));
  ad_status status = write_page(page, report);
  int failed = ferror(page);
  failed |= fclose(page);
  if (!status && failed) status = ad_fail(AD_IO, "%s: the report could not be written whole", path);
  return status;
}

static ad_status write_file(const char *path, const ad_report *report) {
  char *unfinished;
  AD_TRY(ad_unfinished_path(path, &unfinished));
  ad_status status = ad_unfinished_end(unfinished, path, write_unfinished(unfinished, report));
  ad_release(unfinished);
  return status;
}

ad_status ad_report_write(const ad_report *report) {
  char *path;
  AD_TRY(ad_path_in(report->folder, "report.html", &path));
  ad_locale locale = ad_locale_enter();
  ad_status status = write_file(path, report);
  ad_locale_leave(locale);
  ad_release(path);
  return status;
}
