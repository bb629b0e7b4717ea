/* What the report draws, as gnuplot scripts with their data inside. Running gnuplot is in gnuplot.c. */
#include "train/plot.h"

#include <math.h>
#include "train/gnuplot.h"

enum { POINTS_MAX = 2000, WIDTH = 900 };

static size_t stride_of(const ad_metrics *metrics) { return metrics->count / POINTS_MAX + 1; }

static void begin_plot(FILE *script, const char *name, int height) {
  fprintf(script, "set terminal svg size %d,%d dynamic noenhanced font 'sans-serif,13' name '%s'\n", WIDTH, height,
          name);
  fputs(
      "set border 3 lc rgb '#888888'\nset tics nomirror out textcolor rgb '#444444'\n"
      "set grid ytics lc rgb '#dddddd' lw 1 lt 1\nset key top right textcolor rgb '#444444'\n",
      script);
}

static void write_points(FILE *script, const char *block, const ad_metrics *metrics,
                         double (*value)(const ad_metric *)) {
  fprintf(script, "$%s << END\n", block);
  for (size_t i = 0; i < metrics->count; i += stride_of(metrics)) {
    fprintf(script, "%lld %.9g\n", (long long)metrics->list[i].report.step, value(&metrics->list[i]));
  }
  fputs("END\n", script);
}

static double loss_of(const ad_metric *metric) { return metric->report.loss; }

// Every one is kept: they are few.
static int write_held_out(FILE *script, const ad_metrics *metrics) {
  int count = 0;
  fputs("$held_out << END\n", script);
  for (size_t i = 0; i < metrics->count; i++) {
    const ad_metric *metric = &metrics->list[i];
    if (isnan(metric->held_out_loss)) continue;
    fprintf(script, "%lld %.9g\n", (long long)metric->report.step, metric->held_out_loss);
    count++;
  }
  fputs("END\n", script);
  return count;
}

static void script_loss(FILE *script, const void *data) {
  const ad_metrics *metrics = data;
  begin_plot(script, "loss", 340);
  write_points(script, "loss", metrics, loss_of);
  int held_out = write_held_out(script, metrics);
  fputs(
      "set xlabel 'step'\nset ylabel 'loss, nats per token'\n"
      "plot $loss with lines lw 1.5 lc rgb '#2060c0' title 'training'",
      script);
  if (held_out) fputs(", $held_out with linespoints pt 7 ps 0.5 lw 1.5 lc rgb '#d07020' title 'held out'", script);
  fputs("\n", script);
}

static void script_throughput(FILE *script, const void *data) {
  begin_plot(script, "throughput", 260);
  write_points(script, "rate", data, ad_metric_tokens_per_second);
  fputs(
      "set xlabel 'step'\nset ylabel 'tokens per second'\nset yrange [0:*]\n"
      "plot $rate with lines lw 1.2 lc rgb '#208050' notitle\n",
      script);
}

typedef struct shown_step {
  const ad_timeline *timeline;
  int64_t step;
} shown_step;

static const struct {
  ad_trace_kind kind;
  const char *colour;
} bars[] = {{AD_TRACE_READ, "#999999"},     {AD_TRACE_FORWARD, "#4a90d9"}, {AD_TRACE_BACKWARD, "#2b5c9e"},
            {AD_TRACE_WAIT, "#d9534a"},     {AD_TRACE_NORM, "#b08ad0"},    {AD_TRACE_UPDATE, "#55a868"},
            {AD_TRACE_REDUCTION, "#e8a33d"}};
enum { BARS = sizeof bars / sizeof *bars, LANES = 4 };

static int64_t first_time(const shown_step *shown) {
  const ad_trace_event *event = shown->timeline->events;
  int64_t first = INT64_MAX;
  for (int64_t rank = 0; rank < shown->timeline->ranks; rank++) {
    for (int64_t i = 0; i < shown->timeline->counts[rank]; i++, event++) {
      if (event->step == shown->step && event->begin < first) first = event->begin;
    }
  }
  return first;
}

// Work above; reductions under way below, where those that overlap lie in lanes of their own.
static void write_bar(FILE *script, const ad_trace_event *event, int64_t rank, int64_t origin) {
  int is_reduction = event->kind == AD_TRACE_REDUCTION;
  double low = (double)rank + (is_reduction ? 0.16 + 0.07 * (double)(event->index % LANES) : -0.36);
  double high = is_reduction ? low + 0.06 : (double)rank + 0.12;
  double begin = (double)(event->begin - origin) / 1e6, end = (double)(event->end - origin) / 1e6;
  fprintf(script, "%.6f %.3f %.6f %.6f %.3f %.3f\n", (begin + end) / 2, (low + high) / 2, begin, end, low, high);
}

static int write_bars(FILE *script, const shown_step *shown, size_t which, int64_t origin) {
  const ad_trace_event *event = shown->timeline->events;
  int count = 0;
  fprintf(script, "$bars%zu << END\n", which);
  for (int64_t rank = 0; rank < shown->timeline->ranks; rank++) {
    for (int64_t i = 0; i < shown->timeline->counts[rank]; i++, event++) {
      if (event->step != shown->step || event->kind != (int64_t)bars[which].kind || !event->end) continue;
      write_bar(script, event, rank, origin);
      count++;
    }
  }
  fputs("END\n", script);
  return count;
}

static void script_timeline(FILE *script, const void *data) {
  const shown_step *shown = data;
  int drawn[BARS];
  int64_t ranks = shown->timeline->ranks;
  begin_plot(script, "timeline", 130 + 46 * (int)(ranks < 64 ? ranks : 64));
  for (size_t i = 0; i < BARS; i++) drawn[i] = write_bars(script, shown, i, first_time(shown));
  fprintf(script, "set yrange [%lld.5:-0.5]\nset ytics 1\nset format y 'rank %%.0f'\n", (long long)ranks - 1);
  fputs("set xlabel 'milliseconds'\nset style fill solid 1 noborder\nset key outside top center horizontal\nplot ",
        script);
  for (size_t i = 0, first = 1; i < BARS; i++) {
    if (!drawn[i]) continue;
    fprintf(script, "%s$bars%zu using 1:2:3:4:5:6 with boxxyerror lc rgb '%s' title '%s'", first ? "" : ", ", i,
            bars[i].colour, ad_trace_kind_name(bars[i].kind));
    first = 0;
  }
  fputs("\n", script);
}

ad_status ad_plot_loss(const ad_metrics *metrics, char **svg) { return ad_gnuplot(script_loss, metrics, svg); }

ad_status ad_plot_throughput(const ad_metrics *metrics, char **svg) {
  return ad_gnuplot(script_throughput, metrics, svg);
}

ad_status ad_plot_timeline(const ad_timeline *timeline, int64_t step, char **svg) {
  shown_step shown = {timeline, step};
  return ad_gnuplot(script_timeline, &shown, svg);
}
