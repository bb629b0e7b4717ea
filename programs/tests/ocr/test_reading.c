/* Tests how ocr reads lines, on logits that the test makes up: what each pass sees, which characters are taken, and the
 * error rates, counted from the definition of the edit distance. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>
#include "addend/data.h"
#include "ocr/ocr.h"
#include "ocr/keys.h"
#include "ocr/reading.h"

static void must(ad_status status) {
  if (status) fail_msg("%s", ad_last_error());
}

enum { BATCH = 5, MICROBATCHES = 2, CHARS = 6, PATCHES = 4, SEQ = PATCHES + CHARS, LINES = 2 * BATCH + 2 };
enum { PASSES_OF_BATCH = CHARS * MICROBATCHES, PASSES = 2 * (2 * PASSES_OF_BATCH + CHARS) };

/* ---- the lines, and what is read ---- */

typedef struct line {
  char truth[CHARS + 1], read[CHARS + 1];
  size_t font;
} line;

/* Makes each kind of misreading in turn; a newline ends the reading if it is shorter than the longest possible. */
static void misread(line *l, int64_t number) {
  size_t length = strlen(l->truth);
  char *read = l->read;
  memcpy(read, l->truth, sizeof l->read);
  if (number % 6 == 1) read[1] = '#';                             // a wrong character
  if (number % 6 == 2) memmove(read, read + 1, length);           // one character missing
  for (; number % 6 == 3 && strlen(read) < CHARS; read[0] = '#')  // as many characters added as fit
    memmove(read + 1, read, strlen(read) + 1);
  if (number % 6 == 4) read[0] = 0;  // nothing was read
  if (number % 6 == 5) memmove(read, read + 1, length - 1), read[length - 1] = '#';
}

/* The edit distance by its definition: the two last characters are matched, or one of them is an edit. */
static int edits(const char *a, size_t n, const char *b, size_t m) {
  if (!n || !m) return (int)(n + m);
  int kept = edits(a, n - 1, b, m - 1) + (a[n - 1] != b[m - 1]);
  int dropped = edits(a, n - 1, b, m) + 1, added = edits(a, n, b, m - 1) + 1;
  int fewer = dropped < added ? dropped : added;
  return kept < fewer ? kept : fewer;
}

/* ---- a program that reads these lines ---- */

typedef struct made {
  ad_ocr_batch *batch;
  line lines[LINES];
  float logits[BATCH * SEQ * AD_VOCABULARY_BYTES];
  ad_array array;
  int64_t passes, reported, of;
} made;

/* How far reading is: the batch, whether pictures are blank, and the next character's place. */
typedef struct progress {
  int64_t step, at;
  int is_blank;
} progress;

static progress progress_of(int64_t passes) {
  int64_t step = passes / (2 * PASSES_OF_BATCH), within = passes % (2 * PASSES_OF_BATCH);
  int64_t one = step < 2 ? PASSES_OF_BATCH : CHARS;  // the last two lines share a microbatch
  return (progress){step, within % CHARS, within >= one};
}

/* The character that is read next; of blank pictures a single "?" is read. */
static int character_of(const made *m, progress p, int64_t number, int64_t at) {
  const char *read = p.is_blank ? "?" : m->lines[number].read;
  return at < (int64_t)strlen(read) ? read[at] : '\n';
}

/* Checks a pass's input: characters read so far are in their places, the true ones nowhere, and pictures are blank or
 * not. */
static void assert_sees(const made *m, progress p, const ad_ocr_microbatch *one, int64_t row, int64_t number) {
  const int32_t *tokens = (const int32_t *)one->tokens.data + row * SEQ;
  const float *pixels = one->patches.data;
  size_t of_line = ad_array_numel(&one->patches) / (size_t)one->lines.count, ink = 0;
  for (int64_t at = 0; at < CHARS; at++)
    assert_int_equal(tokens[PATCHES + at], at < p.at ? character_of(m, p, number, at) : '\n');
  for (size_t k = 0; k < of_line; k++) ink += pixels[(size_t)row * of_line + k] > 0.5f;
  assert_int_equal(ink > 0, !p.is_blank);
}

/* Makes `character` the most likely; character 255 gets the same logit, and the lower of the two must be taken. */
static void put_logits(made *m, int64_t row, int64_t position, int character) {
  float *to = m->logits + (row * SEQ + position) * AD_VOCABULARY_BYTES;
  for (int c = 0; c < AD_VOCABULARY_BYTES; c++) to[c] = c == character || c == 255 ? 2.0f : -1.0f - (float)(c % 7);
}

static ad_status pass(void *context, size_t microbatch) {
  made *m = context;
  const ad_ocr_microbatch *one = &m->batch->microbatches[microbatch];
  progress p = progress_of(m->passes++);
  for (size_t k = 0; k < sizeof m->logits / sizeof *m->logits; k++) m->logits[k] = (float)(k % 5);
  for (int64_t row = 0; row < one->lines.count; row++) {
    int64_t number = p.step * BATCH + one->lines.first + row;
    if (number >= LINES) continue;  // this row fills the microbatch and is not judged
    assert_sees(m, p, one, row, number);
    put_logits(m, row, PATCHES + p.at - 1, character_of(m, p, number, p.at));
  }
  m->array.shape = m->array.local = (ad_shape){3, {one->lines.count, SEQ, AD_VOCABULARY_BYTES}};
  return AD_OK;
}

static const ad_array *logits_of(void *own) { return &((made *)own)->array; }

static void report(void *context, const char *what, int64_t done, int64_t of) {
  made *m = context;
  assert_int_equal(done, ++m->reported);
  m->of = of;
}

static void draw_lines(made *m) {
  for (int64_t i = 0; i < LINES; i++) {
    ad_line drawn;
    must(ad_ocr_batch_draw(m->batch, AD_VALIDATION_SET, i, &drawn));
    assert_in_range(drawn.count, 2, CHARS);
    memcpy(m->lines[i].truth, m->batch->characters, (size_t)drawn.count);
    m->lines[i].font = drawn.font;
    misread(&m->lines[i], i);
  }
}

/* ---- error rates ---- */

/* The error rate of the lines in font `font`; for blank pictures that of all lines. */
static double rate_of(const made *m, size_t font, int is_blank) {
  double wrong = 0, characters = 0;
  for (int i = 0; i < LINES; i++) {
    const line *l = &m->lines[i];
    const char *read = is_blank ? "?" : l->read;
    if (!is_blank && l->font != font) continue;
    wrong += edits(l->truth, strlen(l->truth), read, strlen(read));
    characters += (double)strlen(l->truth);
  }
  return wrong / characters;
}

static void assert_number(const json_t *document, const char *name, double wanted) {
  assert_true(fabs(json_number_value(json_object_get(document, name)) - wanted) < 1e-12);
}

static void assert_sample(const json_t *sample, const line *l) {
  assert_string_equal(json_string_value(json_object_get(sample, "text")), l->truth);
  assert_string_equal(json_string_value(json_object_get(sample, "read")), l->read);
  assert_int_equal(json_is_true(json_object_get(sample, "validation_font")), l->font == 1);
}

static void judge(const made *m, const char *text) {
  double characters = 0;
  size_t of_validation = 0;
  json_t *document = json_loads(text, 0, NULL);
  assert_non_null(document);
  for (int i = 0; i < LINES; i++) {
    if (m->lines[i].font == 0) characters += (double)strlen(m->lines[i].truth);
    of_validation += m->lines[i].font == 1;
    assert_sample(json_array_get(json_object_get(document, "samples"), (size_t)i), &m->lines[i]);
  }
  assert_true(of_validation > 1 && of_validation < LINES - 1);
  assert_int_equal(json_array_size(json_object_get(document, "samples")), LINES);
  assert_number(document, "lines", LINES);
  assert_number(document, "characters", characters);
  assert_number(document, "character_error_rate", rate_of(m, 0, 0));
  assert_number(document, "validation_font", rate_of(m, 1, 0));
  assert_number(document, "blank", rate_of(m, 0, 1));
  json_decref(document);
}

static void read_with(made *m, ad_comm *comm, const ad_mesh *mesh) {
  ad_forward forward = {pass, m, ad_mesh_group(mesh, AD_AXES_ALL, 0), report};
  ad_ocr_reader reader = {m->batch, logits_of, m, mesh, &forward, comm};
  char *text;
  m->array = (ad_array){.dtype = AD_F32, .layout = ad_layout_all(mesh, AD_R), .data = m->logits};
  draw_lines(m);
  must(ad_ocr_read_lines(&reader, &text));
  assert_int_equal(m->passes, PASSES);
  assert_int_equal(m->reported, PASSES);
  assert_int_equal(m->of, PASSES);
  judge(m, text);
  free(text);
}

static void lines_are_read_as_the_logits_say_and_each_edit_counts_once(void **state) {
  char *fonts[] = {(char[]){"/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"}};
  char *texts[] = {(char[]){"/usr/share/common-licenses"}};
  double sizes[] = {9, 9};
  const ad_ocr_options options = {
      .decoder = {.data = {.seq = SEQ}},
      .patch = 8,
      .read = LINES,
      .lines = {.text = texts,
                .text_count = 1,
                .validation = 0.1,
                .fonts = fonts,
                .font_count = 1,
                .validation_font = (char[]){"/usr/share/fonts/truetype/dejavu/DejaVuSansMono.ttf"},
                .chars = CHARS,
                .height = 12,
                .width = 8 * PATCHES,
                .sizes = sizes,
                .size_count = 2}};
  static made m;
  ad_ocr_batch batch;
  ad_mesh *mesh;
  ad_program_setting setting = {.global_batch = BATCH, .microbatches = MICROBATCHES, .seed = 3, .evaluated = LINES};
  must(ad_comm_open_alone((ad_comm **)&setting.comm));
  must(ad_mesh_create("dp=1", &mesh));
  must(ad_ocr_batch_create(&setting, &options, mesh, mesh, &batch));
  must(ad_ocr_batch_open(&batch));
  m = (made){.batch = &batch};
  read_with(&m, (ad_comm *)(uintptr_t)setting.comm, mesh);
  ad_ocr_batch_destroy(&batch);
  ad_mesh_destroy(mesh);
  ad_comm_close((ad_comm *)(uintptr_t)setting.comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lines_are_read_as_the_logits_say_and_each_edit_counts_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
