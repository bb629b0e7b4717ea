/* Writes each sample's loss at each evaluation of a run to a file. A resumed training reads this file again. */
#include "step/validation.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/locale.h"
#include "base/memory.h"
#include "files/file.h"
#include "step/lines.h"

/* ---- judging a change ---- */

/* Returns the quantile of Student's t: if nothing changed, the measured change is within this many standard errors in
 * 95 of 100 cases. A series in 1 / (n - 1) around the 1.96 of the normal distribution, right to 2 % from five samples
 * on. */
static double student(double n) { return 1.96 + 2.4 / (n - 1) + 3 / ((n - 1) * (n - 1)); }

static int verdict_of(double change, double standard_error, double n) {
  enum { SAMPLES_MIN = 5 };
  if (n < SAMPLES_MIN || !(fabs(change) > student(n) * standard_error)) return 0;
  return change < 0 ? -1 : 1;
}

/* Returns the change of a sample's loss, in nats summed over its positions. The two counts may differ by a factor,
 * because another mesh has another number of replicas. */
static double difference(const ad_sample_losses *before, const ad_sample_losses *now, size_t i) {
  return now->sums[i] - before->sums[i] / before->counts[i] * now->counts[i];
}

static int counts_in_both(const ad_sample_losses *before, const ad_sample_losses *now, size_t i) {
  return before->counts[i] > 0 && now->counts[i] > 0;
}

ad_validation_change ad_validation_compare(const ad_validation_point *point, const ad_sample_losses *now) {
  const ad_sample_losses *before = &point->noted;
  ad_validation_change out = {.since = point->step, .change = NAN, .standard_error = NAN};
  double sum = 0, counts = 0, squares = 0, n = 0;
  if (before->size != now->size) return out;
  for (size_t i = 0; i < now->size; i++) {
    if (!counts_in_both(before, now, i)) continue;
    sum += difference(before, now, i);
    counts += now->counts[i];
    n++;
  }
  if (n < 2) return out;
  out.change = sum / counts;
  for (size_t i = 0; i < now->size; i++) {
    if (!counts_in_both(before, now, i)) continue;
    double residual = difference(before, now, i) - out.change * now->counts[i];
    squares += residual * residual;
  }
  out.standard_error = sqrt(n / (n - 1) * squares) / counts;
  out.verdict = verdict_of(out.change, out.standard_error, n);
  return out;
}

/* ---- keeping the first evaluation and the best one ---- */

static ad_status copy_losses(const ad_sample_losses *from, ad_sample_losses *to) {
  double *memory;
  AD_TRY(ad_new(2 * from->size, &memory));
  memcpy(memory, from->sums, from->size * sizeof *memory);
  memcpy(memory + from->size, from->counts, from->size * sizeof *memory);
  *to = (ad_sample_losses){.sums = memory, .counts = memory + from->size, .size = from->size};
  return AD_OK;
}

static ad_status keep_point(const ad_validation_point *from, ad_validation_point *to) {
  ad_sample_losses noted;
  AD_TRY(copy_losses(&from->noted, &noted));
  ad_release(to->noted.sums);
  *to = (ad_validation_point){from->step, from->loss, noted};
  return AD_OK;
}

/* Keeps the evaluation if it is the first or the best so far. If the number of samples has changed, it counts as the
 * first. */
static ad_status keep_evaluation(ad_validation *validation, const ad_validation_point *point) {
  int is_first = validation->first.noted.size != point->noted.size;
  if (is_first) AD_TRY(keep_point(point, &validation->first));
  return is_first || point->loss < validation->best.loss ? keep_point(point, &validation->best) : AD_OK;
}

static double mean_of(const ad_sample_losses *noted) {
  double sum = 0, count = 0;
  for (size_t i = 0; i < noted->size; i++) sum += noted->sums[i], count += noted->counts[i];
  return sum / count;
}

/* ---- reading and writing the file ---- */

static int read_numbers(const json_t *list, double *out) {
  size_t i;
  json_t *number;
  json_array_foreach(list, i, number) {
    if (!json_is_number(number)) return 0;
    out[i] = json_number_value(number);
  }
  return 1;
}

/* Adds one line that an earlier training wrote. An invalid line is skipped. */
static ad_status take_line(ad_validation *validation, const json_t *line) {
  const json_t *sums = json_object_get(line, "sums"), *counts = json_object_get(line, "counts");
  size_t size = json_array_size(sums);
  double *memory;
  if (!size || json_array_size(counts) != size) return AD_OK;
  AD_TRY(ad_new(2 * size, &memory));
  ad_validation_point point = {.step = json_integer_value(json_object_get(line, "step")),
                               .noted = {.sums = memory, .counts = memory + size, .size = size}};
  ad_status status = AD_OK;
  if (read_numbers(sums, memory) && read_numbers(counts, memory + size)) {
    point.loss = mean_of(&point.noted);
    status = keep_evaluation(validation, &point);
  }
  ad_release(memory);
  return status;
}

static ad_status read_earlier(ad_validation *validation) {
  char *text;
  int64_t size;
  ad_status status = AD_OK;
  AD_TRY(ad_file_read(validation->path, INT64_MAX - 1, &text, &size));
  for (char *line = text, *end; !status && (end = strchr(line, '\n')); line = end + 1) {
    json_t *object = json_loadb(line, (size_t)(end - line), 0, NULL);
    status = take_line(validation, object);
    json_decref(object);
  }
  ad_release(text);
  return status;
}

static ad_status open_file(ad_validation *validation, const char *folder, int64_t first_step) {
  AD_TRY(ad_path_in(folder, "validation.jsonl", &validation->path));
  AD_TRY(ad_lines_open(validation->path, first_step, &validation->file));
  return first_step ? read_earlier(validation) : AD_OK;
}

ad_status ad_validation_open(const char *folder, int64_t first_step, ad_validation *out) {
  ad_validation validation = {0};
  ad_status status = open_file(&validation, folder, first_step);
  if (status)
    ad_validation_destroy(&validation);
  else
    *out = validation;
  return status;
}

static void write_list(FILE *file, const char *name, const double *values, size_t count) {
  fprintf(file, ",\"%s\":[", name);
  for (size_t i = 0; i < count; i++) fprintf(file, "%s%.17g", i ? "," : "", values[i]);
  fputs("]", file);
}

static ad_status write_line(const ad_validation *validation, const ad_validation_point *point) {
  FILE *file = validation->file;
  ad_locale locale = ad_locale_enter();
  fprintf(file, "{\"step\":%lld", (long long)point->step);
  write_list(file, "sums", point->noted.sums, point->noted.size);
  write_list(file, "counts", point->noted.counts, point->noted.size);
  ad_locale_leave(locale);
  fputs("}\n", file);
  return fflush(file) || ferror(file) ? ad_cannot_write(validation->path, errno) : AD_OK;
}

ad_status ad_validation_add(ad_validation *validation, int64_t step, const ad_sample_losses *noted,
                            ad_validation_changes *out) {
  ad_validation_point point = {step, mean_of(noted), *noted};
  *out = (ad_validation_changes){ad_validation_compare(&validation->first, noted),
                                 ad_validation_compare(&validation->best, noted)};
  AD_TRY(keep_evaluation(validation, &point));
  return write_line(validation, &point);
}

ad_status ad_validation_close(ad_validation *validation) {
  FILE *file = validation->file;
  validation->file = NULL;
  return file && fclose(file) ? ad_cannot_write(validation->path, errno) : AD_OK;
}

void ad_validation_destroy(ad_validation *validation) {
  if (validation->file) fclose(validation->file);
  ad_release(validation->first.noted.sums);
  ad_release(validation->best.noted.sums);
  ad_release(validation->path);
  *validation = (ad_validation){0};
}
