/* Tests token files as training data: which window of tokens a sample reads, whichever rank reads it; loss masks;
 * several files; and what is reserved for validation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "allocations.h"
#include "addend/data.h"
#include "base/random.h"
#include "base/memory.h"
#include "data/permutation.h"
#include "says.h"
#include "data/text.h"

#define must(call)                                        \
  do {                                                    \
    if ((call) != AD_OK) fail_msg("%s", ad_last_error()); \
  } while (0)

enum { FILES_MAX = 4, SEQ = 5, VOCABULARY = 65536 };
static char folder[64], path_of[2 * FILES_MAX][96];

static void write_npy(const char *path, const char *descr, const void *data, size_t width, int64_t count) {
  char header[128];
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  int length = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (%lld,), }\n", descr,
                        (long long)count);
  fwrite("\x93NUMPY\1\0", 1, 8, file);
  fputc(length, file);
  fputc(0, file);
  fwrite(header, 1, (size_t)length, file);
  fwrite(data, width, (size_t)count, file);
  fclose(file);
}

/* Token i of file f is 1000 f + i in the even files, which are u16, and 60000 more in the odd ones, which are u32. */
static uint32_t token(int f, int64_t i) { return (uint32_t)(1000 * f + i + (f % 2 ? 60000 : 0)); }
static int is_masked(int f, int64_t i) { return (i * 7 + f) % 3 == 0; }

static const int64_t counts[FILES_MAX] = {23, 5, 41, 6}; /* windows of 5 tokens: 4, none, 8, 1 */

static int make_files(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-tokens-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  for (int f = 0; f < FILES_MAX; f++) {
    uint16_t narrow[64] = {0};
    uint32_t wide[64] = {0};
    uint8_t mask[64] = {0};
    for (int64_t i = 0; i < counts[f]; i++) narrow[i] = (uint16_t)(wide[i] = token(f, i));
    for (int64_t i = 0; i < counts[f]; i++) mask[i] = !is_masked(f, i);
    snprintf(path_of[f], sizeof path_of[f], "%s/%d.npy", folder, f);
    snprintf(path_of[FILES_MAX + f], sizeof path_of[f], "%s/%d.mask.npy", folder, f);
    write_npy(path_of[f], f % 2 ? "<u4" : "<u2", f % 2 ? (void *)wide : narrow, f % 2 ? 4 : 2, counts[f]);
    write_npy(path_of[FILES_MAX + f], "|u1", mask, 1, counts[f]);
  }
  return 0;
}

static int remove_files(void **state) {
  for (int i = 0; i < 2 * FILES_MAX; i++) remove(path_of[i]);
  char other[96];
  snprintf(other, sizeof other, "%s/other.npy", folder);
  remove(other);
  return rmdir(folder);
}

static const char *const tokens_paths[] = {path_of[0], path_of[1], path_of[2], path_of[3]};
static const char *const mask_paths[] = {path_of[4], path_of[5], path_of[6], path_of[7]};

static ad_token_options all_files(double validation, int masked) {
  return (ad_token_options){.size = sizeof(ad_token_options),
                            .tokens = tokens_paths,
                            .masks = masked ? mask_paths : NULL,
                            .count = FILES_MAX,
                            .seq = SEQ,
                            .validation = validation,
                            .vocabulary = VOCABULARY};
}

static ad_text_data *open_all(double validation, int masked) {
  ad_token_options options = all_files(validation, masked);
  ad_text_data *text;
  must(ad_text_data_open_tokens(&options, &text));
  return text;
}

/* ---- windows of tokens ---- */

/* The file and the first token of a window. */
typedef struct place {
  int file;
  int64_t first;
} place;

static place place_of(int64_t w, double validation, int is_of_validation) {
  for (int f = 0; f < FILES_MAX; f++) {
    int64_t kept = (int64_t)((double)counts[f] * validation), part = is_of_validation ? kept : counts[f] - kept;
    int64_t windows = part > 0 ? (part - 1) / SEQ : 0;
    if (w < windows) return (place){f, w * SEQ + (is_of_validation ? counts[f] - kept : 0)};
    w -= windows;
  }
  return (place){-1, 0};
}

static void is_window(const int32_t *tokens, const int32_t *targets, place at, int64_t valid, int masked) {
  for (int64_t i = 0; i < SEQ; i++) {
    int counted = i < valid && !(masked && is_masked(at.file, at.first + i + 1));
    assert_int_equal(tokens[i], token(at.file, at.first + i));
    assert_int_equal(targets[i], counted ? (int32_t)token(at.file, at.first + i + 1) : -1);
  }
}

/* Checks that every sample of four epochs is the window that data.h says, computed here by the permutation alone. */
static void check_epochs(double validation, int is_of_validation, int64_t windows, int masked) {
  enum { BATCH = 7 };
  const double valid[] = {1, 0.4, 0.61};
  const int64_t first_tokens[] = {5, 2, 3};
  ad_text_data *text = open_all(validation, masked);
  ad_batch_options options = {.size = sizeof options,
                              .seed = 9,
                              .global_batch = BATCH,
                              .valid = valid,
                              .valid_count = 3,
                              .validation = is_of_validation};
  uint64_t stream = ad_random_stream(is_of_validation ? "tokens held out" : "tokens");
  assert_int_equal(ad_text_data_samples(text, (ad_data_part)is_of_validation), windows);
  for (int64_t step = 0; step * BATCH < 4 * windows; step++) {
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    int64_t counted, sum = 0;
    must(ad_text_data_rows(text, &options, step, 0, BATCH, tokens, targets, &counted));
    for (int64_t row = 0; row < BATCH; row++) {
      int64_t i = step * BATCH + row;
      uint64_t key = ad_random_bits(9, stream, (uint64_t)(i / windows));
      place at = place_of(ad_permuted(key, windows, i % windows), validation, is_of_validation);
      is_window(tokens + row * SEQ, targets + row * SEQ, at, first_tokens[row % 3], masked);
    }
    for (int i = 0; i < BATCH * SEQ; i++) sum += targets[i] >= 0;
    assert_int_equal(counted, sum);
  }
  ad_text_data_close(text);
}

static void samples_are_windows_in_the_order_of_a_permutation(void **state) {
  for (int masked = 0; masked < 2; masked++) {
    check_epochs(0, 0, 13, masked);
    check_epochs(0.4, 0, 2 + 0 + 4 + 0, masked);
    check_epochs(0.4, 1, 1 + 0 + 3 + 0, masked);
  }
}

static void an_epoch_has_every_window_once_and_epochs_differ(void **state) {
  enum { WINDOWS = 13, EPOCHS = 6 };
  ad_text_data *text = open_all(0, 0);
  ad_batch_options options = {.size = sizeof options, .seed = 1, .global_batch = WINDOWS};
  int32_t tokens[EPOCHS][WINDOWS][SEQ];
  int64_t counted;
  for (int e = 0; e < EPOCHS; e++) {
    int64_t sum = 0, expected = 0;
    must(ad_text_data_rows(text, &options, e, 0, WINDOWS, tokens[e][0], NULL, &counted));
    for (int w = 0; w < WINDOWS; w++) {
      place at = place_of(w, 0, 0);
      expected += token(at.file, at.first);
      sum += tokens[e][w][0];
      for (int other = 0; other < w; other++) assert_int_not_equal(tokens[e][w][0], tokens[e][other][0]);
    }
    assert_int_equal(sum, expected);
    for (int other = 0; other < e; other++) assert_memory_not_equal(tokens[e], tokens[other], sizeof tokens[e]);
  }
  options.seed = 2;
  int32_t seeded[WINDOWS][SEQ];
  must(ad_text_data_rows(text, &options, 0, 0, WINDOWS, seeded[0], NULL, &counted));
  assert_memory_not_equal(seeded, tokens[0], sizeof seeded);
  ad_text_data_close(text);
}

/* Rows and positions read in any parts have the numbers of the whole, and counts that add up; also tokens and targets
 * read separately. */
static void a_sample_is_the_same_however_the_batch_is_cut(void **state) {
  enum { BATCH = 11 };
  ad_text_data *text = open_all(0, 1);
  ad_batch_options options = {.size = sizeof options, .seed = 4, .global_batch = BATCH};
  int32_t whole[2][BATCH][SEQ], part[2][BATCH][SEQ];
  int64_t all, counted;
  must(ad_text_data_rows(text, &options, 3, 0, BATCH, whole[0][0], whole[1][0], &all));
  const ad_span spans[2][2] = {{{0, 1}, {4, 1}}, {{1, 3}, {0, 0}}};
  for (int64_t cut = 0; cut <= BATCH; cut++) {
    int64_t sum = 0;
    for (int half = 0; half < 2; half++) {
      for (int s = 0; s < 2; s++) {
        ad_batch_options sharded_options = options;
        sharded_options.spans = spans[s];
        sharded_options.span_count = s ? 1 : 2;
        int64_t first = half ? cut : 0, count = half ? BATCH - cut : cut, width = s ? 3 : 2;
        must(ad_text_data_rows(text, &sharded_options, 3, first, count, part[0][0], NULL, &counted));
        must(ad_text_data_rows(text, &sharded_options, 3, first, count, NULL, part[1][0], &counted));
        sum += counted;
        for (int64_t row = 0; row < count; row++)
          for (int64_t i = 0; i < width; i++)
            for (int k = 0; k < 2; k++)
              assert_int_equal((&part[k][0][0])[row * width + i], whole[k][first + row][s ? i + 1 : 4 * i]);
      }
    }
    assert_int_equal(sum, all);
  }
  ad_text_data_close(text);
}

static void the_validation_set_is_every_window_of_the_last_part(void **state) {
  enum { WINDOWS = 4 };
  ad_text_data *text = open_all(0.4, 0);
  ad_batch_options options = {.size = sizeof options, .seed = 4, .global_batch = 3, .validation = 1, .set = WINDOWS};
  int32_t tokens[2][3][SEQ], targets[2][3][SEQ];
  int64_t counted[2];
  int seen[WINDOWS] = {0};
  for (int step = 0; step < 2; step++)
    must(ad_text_data_rows(text, &options, step, 0, 3, tokens[step][0], targets[step][0], &counted[step]));
  for (int i = 0; i < WINDOWS; i++)
    for (int w = 0; w < WINDOWS; w++) {
      place at = place_of(w, 0.4, 1);
      seen[w] += tokens[i / 3][i % 3][0] == (int32_t)token(at.file, at.first);
    }
  for (int w = 0; w < WINDOWS; w++) assert_int_equal(seen[w], 1);
  assert_true(counted[0] == 15 && counted[1] == 5);  // the token at which the sequence begins anew does not count
  ad_text_data_close(text);
}

static void sizes_and_counts_of_values_are_those_of_the_files(void **state) {
  static int64_t counters[VOCABULARY];
  ad_text_data *text = open_all(0, 0), *masked = open_all(0.4, 1);
  assert_int_equal(ad_text_data_tokens(text), 23 + 5 + 41 + 6);
  assert_int_equal(ad_text_data_tokens(masked), 23 + 5 + 41 + 6);
  assert_int_equal(ad_text_data_bytes(text), 2 * (23 + 41) + 4 * (5 + 6));
  ad_text_data_count_values(text, AD_TRAINING_PART, counters);
  for (int f = 0; f < FILES_MAX; f++)
    for (int64_t i = 0; i < counts[f]; i++)
      assert_int_equal(counters[token(f, i)], f == 0 ? i <= 20 : f == 2 ? i <= 40 : f == 3 && i <= 5);
  assert_true(ad_text_data_checksum(text) && ad_text_data_checksum(text) == ad_text_data_checksum(masked));
  assert_true(ad_text_data_mask_checksum(masked) && !ad_text_data_mask_checksum(text));
  int64_t size;
  assert_null(ad_text_data_part(text, AD_TRAINING_PART, &size));
  ad_text_data_close(text);
  ad_text_data_close(masked);
}

/* ---- wrong files and options ---- */

/* The options are refused with these facts; the sentence is in the list of the case. */
static void refuses(const char *name, ad_token_options options, const char *const *facts) {
  ad_text_data *text = NULL;
  assert_int_equal(ad_text_data_open_tokens(&options, &text), AD_INVALID);
  assert_null(text);
  assert_says_in(name, ad_last_error(), facts);
}

static void what_is_wrong_with_tokens_is_reported(void **state) {
  ad_token_options options = all_files(0, 0);
  options.seq = 41;
  refuses("no sample", options, SAYS_FACTS("seq 41", "42"));
  options.seq = 40;
  options.validation = 0.1;
  refuses("no sample to train on", options, SAYS_FACTS("seq 40", "41"));
  options.seq = 5;
  refuses("no sample held out", options, SAYS_FACTS("seq 5", "6"));
  options = all_files(1, 0);
  refuses("all held out", options, SAYS_FACTS("data.validation", "0", "1"));
  options = all_files(0, 1);
  options.masks = (const char *const[]){path_of[4], path_of[5], path_of[7], path_of[6]};
  refuses("a mask of another size", options, SAYS_FACTS("3.mask.npy", "6"));
  options = all_files(0, 0);
  options.count = 0;
  refuses("no file", options, SAYS_FACTS(NULL));
  options = all_files(0, 0);
  options.vocabulary = 0;
  refuses("no vocabulary", options, SAYS_FACTS("1", "0"));
}

static void element_is_wrong(const char *path, int64_t vocabulary, const char *const *facts) {
  const char *const paths[] = {path_of[vocabulary ? 2 : FILES_MAX], path, path_of[vocabulary ? 2 : FILES_MAX]};
  size_t at = 0;
  for (int again = 0; again < 2; again++) {  // the second time, from the next file on, nothing is wrong
    ad_status status =
        vocabulary ? ad_token_files_check(paths, 3, vocabulary, &at) : ad_token_masks_check(paths, 3, &at);
    assert_int_equal(status, again ? AD_OK : AD_INVALID);
    assert_int_equal(at, again ? 3 : 1);
    if (!again) assert_says_all(facts);
    at += !again;
  }
}

/* Writes other.npy, and returns its path. */
static const char *other_file(const char *descr, const void *data, size_t width, int64_t count) {
  static char other[96];
  snprintf(other, sizeof other, "%s/other.npy", folder);
  write_npy(other, descr, data, width, count);
  return other;
}

static void every_token_is_held_against_the_vocabulary(void **state) {
  size_t at = 0;
  must(ad_token_files_check(tokens_paths, FILES_MAX, 63006, &at));
  assert_int_equal(at, FILES_MAX);
  element_is_wrong(path_of[3], 63005, SAYS_FACTS("3.npy", "index 5", "63005"));
  element_is_wrong(path_of[3], 60000, SAYS_FACTS("3.npy", "index 0", "63000", "60000"));
  for (int64_t none = -1; none <= 0; none++) { /* not even masks are files of such a vocabulary */
    at = 0;
    assert_int_equal(ad_token_files_check(mask_paths, FILES_MAX, none, &at), AD_INVALID);
    assert_says("1", none ? "-1" : "0");
    assert_int_equal(at, 0);
  }
  at = 0;
  must(ad_token_masks_check(mask_paths, FILES_MAX, &at));
  element_is_wrong(path_of[0], 0, SAYS_FACTS("0.npy", "<u2", "uint8", "bool"));
  element_is_wrong(other_file("|u1", "\0\1\1\2\1", 1, 5), 0, SAYS_FACTS("other.npy", "index 3", "2"));
}

/* What was cut to 16 bits is in a larger vocabulary all the same; in 32 bits each id has its place. */
static void sixteen_bits_hold_no_larger_vocabulary(void **state) {
  const uint16_t narrow[] = {0, 1, 65535, 2, 3, 4};
  const uint32_t wide[] = {65536, 65537, 99999, 65539, 65540, 65541};
  size_t at = 0;
  const char *path = other_file("<u2", narrow, 2, 6);
  must(ad_token_files_check(&path, 1, 65536, &at));
  ad_token_options options = {.size = sizeof options, .tokens = &path, .count = 1, .seq = SEQ, .vocabulary = 65537};
  at = 0;
  refuses("uint16", options, SAYS_FACTS("other.npy", "uint16", "65535", "65537"));
  assert_int_equal(ad_token_files_check(&path, 1, 65537, &at), AD_INVALID);
  assert_says("numpy.uint32");
  assert_null(strstr(ad_last_error(), "numpy.uint16"));
  other_file("<u4", wide, 4, 6);
  must(ad_token_files_check(&path, 1, 100000, &at));
  const int64_t vocabularies[] = {UINT32_MAX, (int64_t)UINT32_MAX + 1, (int64_t)UINT32_MAX + 2, INT64_MAX};
  const uint32_t largest[] = {UINT32_MAX};
  for (int i = 0; i < 4; i++) { /* the largest number of 32 bits is in all but the first */
    at = 0;
    must(ad_token_files_check(&path, 1, vocabularies[i], &at));
    at = 0;
    other_file("<u4", largest, 4, 1);
    assert_int_equal(ad_token_files_check(&path, 1, vocabularies[i], &at), i ? AD_OK : AD_INVALID);
    other_file("<u4", wide, 4, 6);
  }
  ad_text_data *text;
  int32_t tokens[SEQ], targets[SEQ];
  int64_t counted;
  ad_batch_options batch = {.size = sizeof batch, .global_batch = 1};
  options.vocabulary = 100000;
  must(ad_text_data_open_tokens(&options, &text));
  must(ad_text_data_rows(text, &batch, 0, 0, 1, tokens, targets, &counted));
  for (int i = 0; i < SEQ; i++) assert_true(tokens[i] == (int32_t)wide[i] && targets[i] == (int32_t)wide[i + 1]);
  ad_text_data_close(text);
}

/* A label of -100 or -1 in unsigned bits: in 32 bits it can be nothing else, in 16 bits it may be an id as well. */
static void a_negative_number_in_unsigned_bits_is_named(void **state) {
  const uint32_t wide[] = {5, (uint32_t)-100, 7}, beyond[] = {5, (uint32_t)-101, 7};
  const uint16_t narrow[] = {5, (uint16_t)-1, 7};
  element_is_wrong(other_file("<u4", wide, 4, 3), 3000,
                   SAYS_FACTS("other.npy", "index 1", "4294967196", "3000", "-100"));
  size_t at = 0;
  const char *path = other_file("<u4", wide, 4, 3);
  assert_int_equal(ad_token_files_check(&path, 1, 3000, &at), AD_INVALID);
  assert_null(strstr(ad_last_error(), "model.vocabulary"));
  element_is_wrong(other_file("<u2", narrow, 2, 3), 3000,
                   SAYS_FACTS("other.npy", "index 1", "65535", "3000", "-1", "model.vocabulary"));
  other_file("<u4", beyond, 4, 3);
  assert_int_equal(ad_token_files_check(&path, 1, 3000, &at), AD_INVALID);
  assert_says("other.npy", "index 1", "4294967195", "3000", "model.vocabulary");
}

static void a_mask_of_bools_counts_as_one_of_bytes(void **state) {
  size_t at = 0;
  const char *path = other_file("|b1", "\0\1\1\0\1\1", 1, 6), *tokens = path_of[3];
  must(ad_token_masks_check(&path, 1, &at));
  ad_token_options options = {
      .size = sizeof options, .tokens = &tokens, .masks = &path, .count = 1, .seq = SEQ, .vocabulary = VOCABULARY};
  ad_batch_options batch = {.size = sizeof batch, .global_batch = 1};
  ad_text_data *text;
  int32_t targets[SEQ];
  int64_t counted;
  must(ad_text_data_open_tokens(&options, &text));
  must(ad_text_data_rows(text, &batch, 0, 0, 1, NULL, targets, &counted));
  for (int i = 0; i < SEQ; i++) assert_int_equal(targets[i], i == 2 ? -1 : (int32_t)token(3, i + 1));
  assert_int_equal(counted, 4);
  ad_text_data_close(text);
}

/* The wrong token is far into a file that is read in several pieces; holes in the file are zeros. */
static void far_token_is_found(int width, int64_t count, int64_t index) {
  char other[96], header[128], where[64];
  const char *const path = other;
  const uint32_t token_there = 300;
  size_t at = 0;
  snprintf(other, sizeof other, "%s/other.npy", folder);
  FILE *file = fopen(other, "w");
  assert_non_null(file);
  int length = snprintf(header, sizeof header, "{'descr': '<u%d', 'fortran_order': False, 'shape': (%lld,)}", width,
                        (long long)count);
  fwrite("\x93NUMPY\1\0", 1, 8, file);
  fputc(length, file);
  fputc(0, file);
  fwrite(header, 1, (size_t)length, file);
  assert_int_equal(fseek(file, (long)(index * width), SEEK_CUR), 0);
  fwrite(&token_there, (size_t)width, 1, file);
  fclose(file);
  assert_int_equal(truncate(other, 10 + length + count * width), 0);
  snprintf(where, sizeof where, "index %lld", (long long)index);
  assert_int_equal(ad_token_files_check(&path, 1, 256, &at), AD_INVALID);
  assert_says("other.npy", where, "300", "256");
  must(ad_token_files_check(&path, 1, 301, &at));
}

static void a_token_far_behind_is_found(void **state) {
  for (int width = 2; width <= 4; width += 2) {
    int64_t piece = (1 << 26) / width, count = 2 * piece + 9;
    far_token_is_found(width, count, piece - 1);
    far_token_is_found(width, count, piece);
    far_token_is_found(width, count, count - 1);
  }
}

/* A run that did not check its files first: no rank reads beyond its embedding table. */
static void a_token_that_no_vocabulary_has_is_an_error_of_its_step(void **state) {
  enum { WINDOWS = 8 };
  ad_token_options options = all_files(0, 0);
  options.tokens = (const char *const[]){path_of[2]};
  options.count = 1;
  options.vocabulary = 2040;  // the last target is 2040
  ad_text_data *text;
  int32_t tokens[WINDOWS * SEQ];
  int64_t counted;
  must(ad_text_data_open_tokens(&options, &text));
  ad_batch_options batch = {.size = sizeof batch, .seed = 4, .global_batch = WINDOWS};
  must(ad_text_data_rows(text, &batch, 0, 0, WINDOWS, tokens, NULL, &counted));
  assert_int_equal(ad_text_data_rows(text, &batch, 0, 0, WINDOWS, NULL, tokens, &counted), AD_INVALID);
  assert_says("40", "2040");
  ad_text_data_close(text);
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  ad_token_options options = all_files(0.4, 1);
  ad_text_data *text = NULL;
  ad_status status = AD_MEMORY;
  for (long n = 1; status == AD_MEMORY; n++) {
    ad_memory_fail_at(n);
    status = ad_text_data_open_tokens(&options, &text);
    assert_true(reports_allocation(n, status));
    if (status) assert_null(text);
    assert_true(n < 100);
  }
  ad_text_data_close(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(samples_are_windows_in_the_order_of_a_permutation),
      cmocka_unit_test(an_epoch_has_every_window_once_and_epochs_differ),
      cmocka_unit_test(a_sample_is_the_same_however_the_batch_is_cut),
      cmocka_unit_test(the_validation_set_is_every_window_of_the_last_part),
      cmocka_unit_test(sizes_and_counts_of_values_are_those_of_the_files),
      cmocka_unit_test(what_is_wrong_with_tokens_is_reported),
      cmocka_unit_test(every_token_is_held_against_the_vocabulary),
      cmocka_unit_test(sixteen_bits_hold_no_larger_vocabulary),
      cmocka_unit_test(a_negative_number_in_unsigned_bits_is_named),
      cmocka_unit_test(a_mask_of_bools_counts_as_one_of_bytes),
      cmocka_unit_test(a_token_far_behind_is_found),
      cmocka_unit_test(a_token_that_no_vocabulary_has_is_an_error_of_its_step),
      cmocka_unit_test(a_failing_allocation_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, make_files, remove_files);
}
