/* Tests drawn pictures of lines of text: which characters a sample has, whichever rank draws it and in whatever order;
 * that they are visible in the picture; and errors in fonts and options. */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "allocations.h"
#include "says.h"
#include "addend/data.h"
#include "base/memory.h"
#include "base/random.h"
#include "files/file.h"
#include "data/lines/typeset.h"
#include "ranks.h"

#define FONT(name) "/usr/share/fonts/truetype/dejavu/DejaVu" name ".ttf"
enum { CHARS = 24, HEIGHT = 24, WIDTH = 160, PIXELS = HEIGHT * WIDTH };

static char folder[64], numbers[96], mixed[96], letters[96], scratch[96];
static char *fonts[] = {FONT("Sans"), FONT("Serif"), FONT("SansMono")};
static double sizes[] = {10, 16}, weights[] = {-0.02, 0.05};

/* Writes a text of numbers, in which every few characters occur in one place only. */
static void write_numbers(const char *path) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  for (int i = 0; i < 2000; i++) fprintf(file, "%05d%s", i, i % 3 ? " " : "\n\n \t");
  fclose(file);
}

static void write_bytes(const char *path, const char *bytes, size_t size) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, size, file), size);
  fclose(file);
}

static int make_files(void **state) {
  static const char MIXED[] = "  na\xc3\xafve\r\n\r\n\tcaf\xc3\xa9\x7f, \x01 x  ";
  snprintf(folder, sizeof folder, "/tmp/addend-lines-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  snprintf(numbers, sizeof numbers, "%s/numbers", folder);
  snprintf(mixed, sizeof mixed, "%s/mixed", folder);
  snprintf(letters, sizeof letters, "%s/letters", folder);
  snprintf(scratch, sizeof scratch, "%s/scratch", folder);
  write_numbers(numbers);
  write_bytes(mixed, MIXED, sizeof MIXED - 1);
  write_bytes(letters, "LLLLLLLLLLLLLLLLLLLLLLLLLLLLL", 29);
  return 0;
}

static int remove_files(void **state) {
  remove(numbers);
  remove(mixed);
  remove(letters);
  remove(scratch);
  return rmdir(folder);
}

/* Options: the text of numbers, three fonts, and one more for validation. */
static ad_line_options usual(void) {
  static char *text[] = {numbers};
  return (ad_line_options){.text = text,
                           .text_count = 1,
                           .validation = 0.25,
                           .fonts = fonts,
                           .font_count = 3,
                           .validation_font = FONT("Serif-Bold"),
                           .chars = CHARS,
                           .height = HEIGHT,
                           .width = WIDTH,
                           .sizes = sizes,
                           .size_count = 2,
                           .weights = weights,
                           .weight_count = 2,
                           .rotation = 3,
                           .noise = 0.05};
}

static ad_line_data *open_lines(const ad_line_options *options) {
  ad_line_data *lines = NULL;
  if (ad_line_data_open(options, &lines)) print_error("%s\n", ad_last_error());
  assert_non_null(lines);
  return lines;
}

typedef struct drawn {
  ad_line line;
  char characters[CHARS + 1];
  float picture[PIXELS];
} drawn;

static drawn draw(ad_line_data *lines, int validation, uint64_t index) {
  drawn out = {0};
  assert_int_equal(ad_line_data_draw(lines, 7, validation, index, &out.line, (uint8_t *)out.characters, out.picture),
                   AD_OK);
  return out;
}

static drawn draw_first(const ad_line_options *options) {
  ad_line_data *lines = open_lines(options);
  drawn out = draw(lines, 0, 0);
  ad_line_data_close(lines);
  return out;
}

static double ink(const drawn *of) {
  double sum = 0;
  for (int i = 0; i < PIXELS; i++) sum += of->picture[i];
  return sum;
}

/* ---- a line is the same for every rank and order ---- */

static void a_line_depends_on_its_index_alone(void **state) {
  enum { LINES = 40 };
  static drawn expected[LINES];
  ad_line_options options = usual();
  ad_line_data *lines = open_lines(&options), *others = open_lines(&options);
  for (int i = 0; i < LINES; i++) expected[i] = draw(lines, i % 2, (uint64_t)i / 2);
  for (int i = LINES - 1; i >= 0; i--) {
    drawn again = draw(i % 3 ? others : lines, i % 2, (uint64_t)i / 2);
    assert_memory_equal(&again, &expected[i], sizeof again);
  }
  ad_line_data_close(lines);
  ad_line_data_close(others);
}

/* Each rank opens its own data, starts with another line, and compares what it drew. */
static int draw_on_a_rank(ad_comm *comm, void *context) {
  enum { LINES = 12 };
  static drawn own[LINES];
  ad_line_options options = usual();
  ad_line_data *lines;
  CHECK_OK(ad_line_data_open(&options, &lines));
  for (int64_t k = 0; k < LINES; k++) {
    int64_t i = (k + ad_comm_rank(comm) * 5) % LINES;
    CHECK_OK(ad_line_data_draw(lines, 7, AD_TRAINING_PART, (uint64_t)i, &own[i].line, (uint8_t *)own[i].characters,
                               own[i].picture));
  }
  ad_line_data_close(lines);
  CHECK(memcmp(own, context, sizeof own) == 0);
  return 0;
}

static void every_rank_draws_the_same(void **state) {
  static drawn expected[12];
  ad_line_options options = usual();
  ad_line_data *lines = open_lines(&options);
  for (int i = 0; i < 12; i++) expected[i] = draw(lines, 0, (uint64_t)i);
  ad_line_data_close(lines);
  run_ranks(3, draw_on_a_rank, expected);
}

static void seeds_indices_and_parts_differ(void **state) {
  ad_line_options options = usual();
  ad_line_data *lines = open_lines(&options);
  drawn first = draw(lines, 0, 0), next = draw(lines, 0, 1), validation = draw(lines, 1, 0), seeded = {0};
  assert_int_equal(
      ad_line_data_draw(lines, 8, AD_TRAINING_PART, 0, &seeded.line, (uint8_t *)seeded.characters, seeded.picture),
      AD_OK);
  assert_string_not_equal(first.characters, next.characters);
  assert_string_not_equal(first.characters, validation.characters);
  assert_string_not_equal(first.characters, seeded.characters);
  ad_line_data_close(lines);
}

/* ---- the characters of a line ---- */

static void spaces_and_other_bytes_are_one_space(void **state) {
  char *text[] = {mixed};
  double small[] = {6, 6};
  ad_line_options options = usual();
  options.text = text;
  options.chars = 4;
  options.validation = 0;
  options.sizes = small;
  ad_line_data *lines = open_lines(&options);
  int lengths[5] = {0}, of_two_words = 0;
  for (uint64_t i = 0; i < 300; i++) {
    drawn one = draw(lines, 0, i);
    size_t count = strlen(one.characters);
    assert_int_equal(count, one.line.count);
    assert_in_range(count, 1, 4);
    assert_non_null(strstr(" na ve caf , x ", one.characters));
    assert_true(one.characters[0] != ' ' && one.characters[count - 1] != ' ');
    lengths[count]++;
    of_two_words += strchr(one.characters, ' ') != NULL;
  }
  assert_true(lengths[2] && lengths[3] && lengths[4] && of_two_words);
  ad_line_data_close(lines);
}

/* Lengths range from half the maximum to the maximum, whatever the fonts and sizes, if the picture is wide enough. */
static void lengths_are_from_half_to_all(void **state) {
  double small[] = {6, 8};
  ad_line_options options = usual();
  options.sizes = small;
  ad_line_data *lines = open_lines(&options);
  int lengths[CHARS + 1] = {0};
  for (uint64_t i = 0; i < 500; i++) lengths[draw(lines, 0, i).line.count]++;
  for (int i = 0; i <= CHARS; i++) assert_true((lengths[i] > 0) == (i >= CHARS / 2) || i == CHARS / 2 - 1);
  ad_line_data_close(lines);
}

/* Returns the text's length with runs of spaces collapsed; *train: the length of its training part. */
static size_t collapsed_numbers(char *out, size_t size, double validation, size_t *train) {
  char *bytes;
  int64_t count;
  assert_int_equal(ad_file_read(numbers, 1 << 20, &bytes, &count), AD_OK);
  int64_t border = count - (int64_t)floor((double)count * validation);
  size_t used = 0;
  *train = 0;
  for (int64_t i = 0; i < count; i++) {
    if (i == border) *train = used;
    if (bytes[i] > ' ')
      out[used++] = bytes[i];
    else if (used && out[used - 1] != ' ')
      out[used++] = ' ';
    assert_true(used < size);
  }
  out[used] = 0;
  ad_release(bytes);
  return used;
}

static void validation_lines_are_never_trained_on(void **state) {
  static char text[1 << 16];
  size_t border;
  collapsed_numbers(text, sizeof text, 0.25, &border);
  ad_line_options options = usual();
  ad_line_data *lines = open_lines(&options);
  for (uint64_t i = 0; i < 400; i++) {
    drawn train = draw(lines, 0, i), validation = draw(lines, 1, i);
    const char *trained = strstr(text, train.characters), *kept = strstr(text, validation.characters);
    assert_true(trained && (size_t)(trained - text) + strlen(train.characters) <= border);
    assert_true(kept && (size_t)(kept - text) >= border);
  }
  ad_line_data_close(lines);
}

static void the_validation_font_is_for_validation_lines(void **state) {
  ad_line_options options = usual();
  ad_line_data *lines = open_lines(&options);
  int seen[2][4] = {{0}};
  for (uint64_t i = 0; i < 400; i++)
    for (int validation = 0; validation < 2; validation++) seen[validation][draw(lines, validation, i).line.font]++;
  for (int font = 0; font < 3; font++) assert_true(seen[0][font] > 90 && seen[1][font] > 60);
  assert_int_equal(seen[0][3], 0);
  assert_true(seen[1][3] > 60);
  ad_line_data_close(lines);
}

static void no_validation_part_gives_empty_lines(void **state) {
  ad_line_options options = usual();
  options.validation = 0;
  ad_line_data *lines = open_lines(&options);
  drawn one = draw(lines, 1, 3);
  assert_int_equal(one.line.count, 0);
  assert_string_equal(one.characters, "");
  assert_true(ink(&one) == 0);
  ad_line_data_close(lines);
}

/* ---- pictures of lines ---- */

static void a_blank_line_has_the_characters_and_no_ink(void **state) {
  ad_line_options options = usual(), blank = usual();
  blank.blank = 1;
  ad_line_data *lines = open_lines(&options), *blanks = open_lines(&blank);
  for (uint64_t i = 0; i < 100; i++) {
    drawn one = draw(lines, 0, i), none = draw(blanks, 0, i);
    assert_string_equal(one.characters, none.characters);
    assert_int_equal(one.line.count, none.line.count);
    assert_int_equal(one.line.font, none.line.font);
    assert_true(ink(&none) == 0);
    assert_true(ink(&one) > (double)one.line.count);
  }
  ad_line_data_close(lines);
  ad_line_data_close(blanks);
}

/* Half a pixel at each border stays free, so at most half of a border pixel is covered; a character cut off by the
 * border would cover some of them whole. */
static void check_border(const drawn *one, int64_t height, int64_t width) {
  for (int64_t y = 0; y < height; y++)
    for (int64_t x = 0; x < width; x++) {
      float value = one->picture[y * width + x];
      assert_true(value >= 0 && value <= 1);
      if (!x || !y || x == width - 1 || y == height - 1) assert_true(value < 0.52f);
    }
}

static void check_borders(int64_t height, int64_t width, double least, double most, double rotation) {
  double own_sizes[] = {least, most}, own_weights[] = {-0.03, 0.08};
  ad_line_options options = usual();
  options.height = height;
  options.width = width;
  options.sizes = own_sizes;
  options.weights = own_weights;
  options.rotation = rotation;
  options.noise = 0;
  ad_line_data *lines = open_lines(&options);
  for (uint64_t i = 0; i < 300; i++) {
    drawn one = draw(lines, i % 2, i);
    assert_true(one.line.count > 0);
    check_border(&one, height, width);
  }
  ad_line_data_close(lines);
}

static void a_line_is_in_the_picture_whatever_its_size_and_angle(void **state) {
  check_borders(24, 160, 6, 18, 0);
  check_borders(24, 160, 6, 18, 5);
  check_borders(24, 160, 17, 18, 30);
  check_borders(60, 64, 6, 26, 30);
  check_borders(32, 40, 20, 24, 10);
}

static void check_l_stands(const char *font) {
  char *text[] = {letters}, *own_fonts[] = {(char *)font};
  double own_sizes[] = {16, 16};
  ad_line_options options = usual();
  options.text = text;
  options.fonts = own_fonts;
  options.font_count = 1;
  options.sizes = own_sizes;
  options.validation = options.rotation = options.noise = 0;
  options.chars = 1;
  drawn one = draw_first(&options);
  double rows[HEIGHT] = {0}, columns[WIDTH] = {0}, most_in_row = 0, most_in_column = 0;
  int row = 0, column = 0, first_row = HEIGHT, last_column = 0;
  for (int y = 0; y < HEIGHT; y++)
    for (int x = 0; x < WIDTH; x++) {
      rows[y] += one.picture[y * WIDTH + x];
      columns[x] += one.picture[y * WIDTH + x];
    }
  for (int y = 0; y < HEIGHT; y++) {
    if (rows[y] > 0.5 && first_row == HEIGHT) first_row = y;
    if (rows[y] > most_in_row) most_in_row = rows[row = y];
  }
  for (int x = 0; x < WIDTH; x++) {
    if (columns[x] > 0.5) last_column = x;
    if (columns[x] > most_in_column) most_in_column = columns[column = x];
  }
  assert_true(row > first_row + 5);       // the bar of an L is at the bottom
  assert_true(column < last_column - 2);  // and its stem at the left
}

static void letters_stand_upright(void **state) {
  check_l_stands(FONT("Sans"));
  check_l_stands(FONT("SansMono"));
}

static void a_line_is_drawn_in_the_font_that_it_names(void **state) {
  ad_line_options options = usual(), one_font = usual();
  ad_line_data *lines = open_lines(&options), *alone[4];
  one_font.validation_font = NULL;
  one_font.font_count = 1;
  for (int font = 0; font < 4; font++) {
    one_font.fonts = font < 3 ? &fonts[font] : &options.validation_font;
    alone[font] = open_lines(&one_font);
  }
  for (uint64_t i = 0; i < 40; i++) {
    drawn one = draw(lines, 1, i), same = draw(alone[one.line.font], 1, i);
    drawn other = draw(alone[(one.line.font + 1) % 4], 1, i);
    assert_memory_equal(one.picture, same.picture, sizeof one.picture);
    assert_memory_not_equal(one.picture, other.picture, sizeof one.picture);
  }
  ad_line_data_close(lines);
  for (int font = 0; font < 4; font++) ad_line_data_close(alone[font]);
}

/* The text has all characters that can be drawn; each line has one. */
static void every_character_is_drawn_in_every_font(void **state) {
  char *text[] = {scratch}, all['~' - '!' + 2] = {0};
  int seen[4][128] = {{0}};
  for (int i = '!'; i <= '~'; i++) all[i - '!'] = (char)i;
  write_bytes(scratch, all, sizeof all);
  ad_line_options options = usual();
  options.text = text;
  options.chars = 1;
  options.validation = options.noise = 0;
  ad_line_data *lines = open_lines(&options);
  for (uint64_t i = 0; i < 4000; i++) {
    drawn one = draw(lines, 0, i);
    assert_int_equal(one.line.count, 1);
    assert_true(ink(&one) > 1);
    seen[one.line.font][(int)one.characters[0]]++;
  }
  for (int font = 0; font < 3; font++)
    for (int i = '!'; i <= '~'; i++) assert_true(seen[font][i] > 0);
  ad_line_data_close(lines);
}

/* The slope of the line through the ink, upwards positive; *left, *top: the first column and row with ink. */
static double slope(const drawn *of, int *left, int *top) {
  double sum = 0, x_sum = 0, y_sum = 0, xx = 0, xy = 0;
  *left = WIDTH;
  *top = HEIGHT;
  for (int i = 0; i < PIXELS; i++) {
    double value = of->picture[i], x = i % WIDTH, y = HEIGHT - 1 - i / WIDTH;
    sum += value, x_sum += value * x, y_sum += value * y, xx += value * x * x, xy += value * x * y;
    if (value > 0 && i % WIDTH < *left) *left = i % WIDTH;
    if (value > 0 && i / WIDTH < *top) *top = i / WIDTH;
  }
  return (xy - x_sum * y_sum / sum) / (xx - x_sum * x_sum / sum);
}

/* Lines of equal letters, whose ink lies along the line: the angle takes both signs, and the place varies. */
static void check_rotations(double degrees) {
  enum { LINES = 100 };
  char *text[] = {letters};
  double small[] = {10, 10}, least = 0, most = 0, allowed = tan(degrees * M_PI / 180);
  ad_line_options options = usual();
  options.text = text;
  options.sizes = small;
  options.validation = options.noise = 0;
  options.rotation = degrees;
  options.chars = 14;
  ad_line_data *lines = open_lines(&options);
  int lefts[WIDTH + 1] = {0}, tops[HEIGHT + 1] = {0}, columns = 0, rows = 0;
  for (uint64_t i = 0; i < LINES; i++) {
    int left, top;
    drawn one = draw(lines, 0, i);
    double rotated = slope(&one, &left, &top);
    least = fmin(least, rotated);
    most = fmax(most, rotated);
    columns += !lefts[left]++;
    rows += !tops[top]++;
  }
  assert_true(least > -allowed - 0.02 && most < allowed + 0.02);
  assert_true(least < -0.8 * allowed + 0.02 && most > 0.8 * allowed - 0.02);
  assert_in_range(columns, 4, 7);
  assert_true(rows > 8);
  ad_line_data_close(lines);
}

static void lines_are_rotated_and_moved(void **state) {
  check_rotations(0);
  check_rotations(2);
  check_rotations(5);
}

static double ink_at(double size, double weight) {
  double own_sizes[] = {size, size}, own_weights[] = {weight, weight};
  ad_line_options options = usual();
  options.chars = 6;
  options.sizes = own_sizes;
  options.weights = own_weights;
  options.noise = 0;
  drawn one = draw_first(&options);
  return ink(&one) / (double)one.line.count;
}

static void bolder_and_larger_lines_have_more_ink(void **state) {
  assert_true(ink_at(14, -0.03) < 0.9 * ink_at(14, 0));
  assert_true(ink_at(14, 0) < 0.9 * ink_at(14, 0.05));
  assert_true(ink_at(10, 0) < 0.7 * ink_at(14, 0));
}

static void noise_has_the_deviation_that_was_asked_for(void **state) {
  ad_line_options options = usual(), clean = usual();
  options.noise = 0.1;
  clean.noise = 0;
  drawn noisy = draw_first(&options), one = draw_first(&clean);
  double sum = 0;
  int count = 0;
  assert_string_equal(noisy.characters, one.characters);
  for (int i = 0; i < PIXELS; i++) {
    if (one.picture[i] != 0 || noisy.picture[i] == 0) continue;
    sum += noisy.picture[i] * noisy.picture[i];
    count++;
  }
  assert_true(count > 1000);
  assert_true(fabs(sqrt(sum / count) - 0.1) < 0.01);
}

/* ---- wrong options and fonts ---- */

/* The options are refused with these facts; the sentence is in the list of the case. */
static void wrong(const char *name, const ad_line_options *options, ad_status status, const char *const *facts) {
  ad_line_data *lines = NULL;
  assert_int_equal(ad_line_data_open(options, &lines), status);
  assert_null(lines);
  assert_says_in(name, ad_last_error(), facts);
}

static void wrong_font(const char *name, const char *path, const char *const *facts) {
  char *own_fonts[] = {(char *)path};
  ad_line_options options = usual();
  options.fonts = own_fonts;
  options.font_count = 1;
  wrong(name, &options, AD_IO, facts);
  assert_facts(ad_last_error(), path);
  assert_int_equal(ad_line_font_check(&options, path), AD_IO);
  assert_says_in(name, ad_last_error(), facts);
  options.fonts = fonts;
  options.validation_font = (char *)path;
  wrong(name, &options, AD_IO, facts);
}

static void copy_font(const char *from, char **bytes, int64_t *size) {
  assert_int_equal(ad_file_read(from, 1 << 24, bytes, size), AD_OK);
}

/* Writes a font without the table that maps characters to glyphs, and without the names from which FreeType would
 * guess. */
static void write_font_without_characters(void) {
  char *bytes;
  int64_t size;
  copy_font(FONT("Sans"), &bytes, &size);
  for (int64_t i = 0; i < 400; i++)
    if (!memcmp(bytes + i, "cmap", 4) || !memcmp(bytes + i, "post", 4)) bytes[i] = 'x';
  write_bytes(scratch, bytes, (size_t)size);
  ad_release(bytes);
}

static const char BITMAPS[] =
    "STARTFONT 2.1\nFONT -x-x-medium-r-normal--8-80-75-75-c-80-iso10646-1\nSIZE 8 75 75\nFONTBOUNDINGBOX 8 8 0 0\n"
    "STARTPROPERTIES 2\nFONT_ASCENT 8\nFONT_DESCENT 0\nENDPROPERTIES\nCHARS 1\nSTARTCHAR A\nENCODING 65\n"
    "SWIDTH 500 0\nDWIDTH 8 0\nBBX 8 1 0 0\nBITMAP\nFF\nENDCHAR\nENDFONT\n";

static void what_is_wrong_with_a_font_is_reported(void **state) {
  char nowhere[128];
  snprintf(nowhere, sizeof nowhere, "%s/nowhere.ttf", folder);
  wrong_font("no file", nowhere, SAYS_FACTS("nowhere.ttf", "No such"));
  wrong_font("a folder", folder, SAYS_FACTS(folder));
  wrong_font("no font", numbers, SAYS_FACTS(numbers, "FreeType"));
  write_bytes(scratch, "", 0);
  wrong_font("an empty file", scratch, SAYS_FACTS(scratch, "FreeType"));
  write_font_without_characters();
  wrong_font("no characters", scratch, SAYS_FACTS(scratch, "95", "ASCII"));
  write_bytes(scratch, BITMAPS, sizeof BITMAPS - 1);
  wrong_font("bitmaps", scratch, SAYS_FACTS(scratch));
  ad_line_options options = usual();
  options.font_count = 0;
  wrong("no fonts", &options, AD_INVALID, SAYS_FACTS(NULL));
  options = usual();
  options.validation_font = fonts[1];
  wrong("a font twice", &options, AD_INVALID, SAYS_FACTS("fonts[1]"));
}

/* Checks that the last number of the message is a size that works. */
static void mend_size(ad_line_options options, const char *name, const char *const *facts) {
  double large[] = {6, 40};
  options.sizes = large;
  wrong(name, &options, AD_INVALID, facts);
  const char *message = ad_last_error(), *last = message + strlen(message);
  while (last > message && !isdigit((unsigned char)last[-1])) last--;
  while (last > message && (isdigit((unsigned char)last[-1]) || last[-1] == '.')) last--;
  large[1] = strtod(last, NULL);
  assert_in_range(large[1], 10, 39);
  ad_line_data_close(open_lines(&options));
  large[1] += 0.5;
  wrong(name, &options, AD_INVALID, SAYS_FACTS("DejaVuSans.ttf"));
}

static void sizes_that_leave_the_picture_are_refused_with_one_that_does_not(void **state) {
  ad_line_options options = usual();
  options.font_count = 1;
  options.validation_font = NULL;
  mend_size(options, "too high", SAYS_FACTS("DejaVuSans.ttf", "size 40", "45", "24"));
  options.height = 64;
  options.width = 24;
  mend_size(options, "too wide", SAYS_FACTS("DejaVuSans.ttf", "size 40", "44", "24"));
}

static void what_is_wrong_with_options_is_reported(void **state) {
  ad_line_options options = usual();
  options.chars = 0;
  wrong("chars", &options, AD_INVALID, SAYS_FACTS("1", "4096", "0"));
  options = usual();
  options.height = 0;
  wrong("height", &options, AD_INVALID, SAYS_FACTS("1", "4096", "0"));
  options = usual();
  options.width = 5000;
  wrong("width", &options, AD_INVALID, SAYS_FACTS("1", "4096", "5000"));
  options = usual();
  options.rotation = NAN;
  wrong("rotation", &options, AD_INVALID, SAYS_FACTS("0", "30"));
  options = usual();
  options.noise = -1;
  wrong("noise", &options, AD_INVALID, SAYS_FACTS("0", "1", "-1"));
  double falling[] = {16, 10}, heavy[] = {0, 0.3};
  options = usual();
  options.sizes = falling;
  wrong("sizes", &options, AD_INVALID, SAYS_FACTS("1", "4096"));
  options = usual();
  options.size_count = 1;
  wrong("sizes", &options, AD_INVALID, SAYS_FACTS("1", "4096"));
  options = usual();
  options.weights = heavy;
  wrong("weights", &options, AD_INVALID, SAYS_FACTS("-0.1", "0.2"));
}

static void what_is_wrong_with_a_text_is_reported(void **state) {
  char *text[] = {mixed}, *nowhere[] = {"/nowhere/at/all"};
  ad_line_options options = usual();
  options.text = nowhere;
  wrong("no text", &options, AD_IO, SAYS_FACTS("/nowhere/at/all"));
  options.text = text;
  options.validation = 0;
  wrong("a short text", &options, AD_INVALID, SAYS_FACTS("14", "24", "25"));
  options.validation = 0.9;
  options.chars = 20;
  wrong("a short text to train on", &options, AD_INVALID, SAYS_FACTS("3", "20"));
}

static void checksums_know_text_and_fonts(void **state) {
  ad_line_options options = usual(), other = usual();
  char *swapped[] = {fonts[1], fonts[0], fonts[2]}, *text[] = {mixed};
  other.fonts = swapped;
  ad_line_data *lines = open_lines(&options), *of_other_fonts = open_lines(&other);
  other = usual();
  other.text = text;
  other.chars = 4;
  other.validation = 0;
  ad_line_data *of_other_text = open_lines(&other);
  assert_int_equal(ad_line_data_checksum(lines), ad_line_data_checksum(of_other_fonts));
  assert_int_not_equal(ad_line_data_font_checksum(lines), ad_line_data_font_checksum(of_other_fonts));
  assert_int_not_equal(ad_line_data_checksum(lines), ad_line_data_checksum(of_other_text));
  assert_int_equal(ad_line_data_font_checksum(lines), ad_line_data_font_checksum(of_other_text));
  assert_int_equal(ad_line_data_bytes(of_other_text), 26);
  ad_line_data_close(lines);
  ad_line_data_close(of_other_fonts);
  ad_line_data_close(of_other_text);
}

/* ---- damaged fonts and failing allocations ---- */

/* Changes a few bytes, half of them near the beginning, where the font's tables are listed. */
static void spoil(char *bytes, int64_t size, uint64_t seed) {
  for (uint64_t i = 0; i < 8; i++) {
    int64_t at = ad_random_below(seed, 0, i, i % 2 ? size : 400);
    bytes[at] = (char)ad_random_bits(seed, 1, i);
  }
}

static void a_font_with_changed_bytes_is_refused_or_drawn_inside_the_picture(void **state) {
  char *whole, *bytes, *own_fonts[] = {scratch};
  int64_t size;
  copy_font(FONT("SansMono"), &whole, &size);
  assert_int_equal(ad_new((size_t)size, &bytes), AD_OK);
  ad_line_options options = usual();
  options.fonts = own_fonts;
  options.font_count = 1;
  for (uint64_t seed = 0; seed < 150; seed++) {
    memcpy(bytes, whole, (size_t)size);
    spoil(bytes, size, seed);
    write_bytes(scratch, bytes, (size_t)size);
    ad_line_data *lines;
    if (ad_line_data_open(&options, &lines)) continue;
    for (uint64_t i = 0; i < 5; i++) {
      drawn one = {0};
      ad_status status =
          ad_line_data_draw(lines, 7, AD_TRAINING_PART, i, &one.line, (uint8_t *)one.characters, one.picture);
      assert_true(status == AD_OK || status == AD_INVALID);
    }
    ad_line_data_close(lines);
  }
  ad_release(whole);
  ad_release(bytes);
}

/* A letter at a wrong place never writes outside the picture, at any of its borders. */
static void what_is_outside_the_picture_is_cut(void **state) {
  enum { SIDE = 8 };
  const ad_font_style style = {20, 0};
  const uint8_t letter = 'H';
  FT_Library library;
  ad_font font;
  ad_typeset set;
  assert_int_equal(FT_Init_FreeType(&library), 0);
  assert_int_equal(ad_font_read(library, FONT("Sans"), &font), AD_OK);
  assert_int_equal(ad_typeset_create(1, font.points, &set), AD_OK);
  float *picture = rank_memory(SIDE * SIDE * sizeof *picture);
  for (FT_Pos place = -30; place <= 10; place++) {
    memset(picture, 0, SIDE * SIDE * sizeof *picture);
    ad_typeset_line(&set, &font, &style, &letter, 1, INT32_MAX);
    ad_typeset_move(&set, place * 64, (place - 5) * 64);
    assert_int_equal(ad_typeset_draw(&set, library, SIDE, SIDE, picture), AD_OK);
    rank_memory_check(picture);
  }
  rank_memory_free(picture);
  ad_typeset_destroy(&set);
  ad_font_clear(library, &font);
  FT_Done_FreeType(library);
}

/* Where two characters share pixels, their ink adds up, to black at most. */
static void ink_on_ink_is_black_at_most(void **state) {
  enum { SIDE = 40 };
  const ad_font_style style = {30, 0};
  const uint8_t letter = 'H';
  static float once[SIDE * SIDE], twice[SIDE * SIDE];
  int partly = 0, wholly = 0;
  FT_Library library;
  ad_font font;
  ad_typeset set;
  assert_int_equal(FT_Init_FreeType(&library), 0);
  assert_int_equal(ad_font_read(library, FONT("Sans"), &font), AD_OK);
  assert_int_equal(ad_typeset_create(1, font.points, &set), AD_OK);
  ad_typeset_line(&set, &font, &style, &letter, 1, INT32_MAX);
  ad_typeset_move(&set, 5 * 64 + 20, 5 * 64);
  assert_int_equal(ad_typeset_draw(&set, library, SIDE, SIDE, once), AD_OK);
  for (int i = 0; i < 2; i++) assert_int_equal(ad_typeset_draw(&set, library, SIDE, SIDE, twice), AD_OK);
  for (int i = 0; i < SIDE * SIDE; i++) {
    assert_true(twice[i] == fminf(1, 2 * once[i]));
    partly += once[i] > 0 && once[i] < 0.5f;
    wholly += once[i] == 1;
  }
  assert_true(partly && wholly);
  ad_typeset_destroy(&set);
  ad_font_clear(library, &font);
  FT_Done_FreeType(library);
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  ad_line_options options = usual();
  ad_line_data *lines = NULL;
  ad_status status = AD_MEMORY;
  for (long n = 1; status == AD_MEMORY; n++) {
    ad_memory_fail_at(n);
    status = ad_line_data_open(&options, &lines);
    assert_true(reports_allocation(n, status));
    if (status) assert_null(lines);
    assert_true(n < 200);
  }
  ad_line_data_close(lines);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_line_depends_on_its_index_alone),
      cmocka_unit_test(every_rank_draws_the_same),
      cmocka_unit_test(seeds_indices_and_parts_differ),
      cmocka_unit_test(spaces_and_other_bytes_are_one_space),
      cmocka_unit_test(lengths_are_from_half_to_all),
      cmocka_unit_test(validation_lines_are_never_trained_on),
      cmocka_unit_test(the_validation_font_is_for_validation_lines),
      cmocka_unit_test(no_validation_part_gives_empty_lines),
      cmocka_unit_test(a_blank_line_has_the_characters_and_no_ink),
      cmocka_unit_test(a_line_is_in_the_picture_whatever_its_size_and_angle),
      cmocka_unit_test(letters_stand_upright),
      cmocka_unit_test(a_line_is_drawn_in_the_font_that_it_names),
      cmocka_unit_test(every_character_is_drawn_in_every_font),
      cmocka_unit_test(lines_are_rotated_and_moved),
      cmocka_unit_test(bolder_and_larger_lines_have_more_ink),
      cmocka_unit_test(noise_has_the_deviation_that_was_asked_for),
      cmocka_unit_test(what_is_wrong_with_a_font_is_reported),
      cmocka_unit_test(sizes_that_leave_the_picture_are_refused_with_one_that_does_not),
      cmocka_unit_test(what_is_wrong_with_options_is_reported),
      cmocka_unit_test(what_is_wrong_with_a_text_is_reported),
      cmocka_unit_test(checksums_know_text_and_fonts),
      cmocka_unit_test(a_font_with_changed_bytes_is_refused_or_drawn_inside_the_picture),
      cmocka_unit_test(what_is_outside_the_picture_is_cut),
      cmocka_unit_test(ink_on_ink_is_black_at_most),
      cmocka_unit_test(a_failing_allocation_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, make_files, remove_files);
}
