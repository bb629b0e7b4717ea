/* Lines of a text, each drawn in a font: chooses the characters, font, size, weight and angle of each line. typeset.c
 * draws the outlines. */
#include "addend/data.h"

#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include "data/lines/font.h"
#include "data/lines/typeset.h"
#include "data/text.h"

/* In FreeType's unit, 1/64 pixel, to which coordinates are rounded. The margin keeps the ink inside the picture. */
enum { PIXEL = 64, MARGIN = PIXEL / 2 };

/* A text from which lines are taken: printable ASCII characters with single spaces. */
typedef struct part {
  uint8_t *characters;
  int64_t size;
  uint64_t stream; /* the stream of random numbers that gives each line its seed */
} part;

typedef struct range {
  double least, most;
} range;

struct ad_line_data {
  /* chars: characters in a line; height, width: pixels of a picture */
  int64_t chars, height, width;
  range sizes, weights;
  double rotation, noise;
  int blank;
  part train, validation;
  int64_t text_bytes;
  uint64_t text_checksum;
  FT_Library library;
  ad_font *fonts;                      /* the validation font is the last one */
  size_t font_count, train_font_count; /* train_font_count does not count the validation font */
  ad_typeset set;
};

/* ---- checking the options ---- */

enum { LARGEST_SIDE = 4096 };
static const range SIZES = {1, LARGEST_SIDE}, WEIGHTS = {-0.1, 0.2};

/* Sets *out to two numbers, which must be in ascending order and inside the limits. */
static ad_status take_range(const char *name, const double *given, size_t count, const range *limits, range *out) {
  if (count != 2 || !(given[0] >= limits->least && given[0] <= given[1] && given[1] <= limits->most))
    return ad_fail(AD_INVALID, "%s must be two numbers from %g to %g, of which the first is not above the second", name,
                   limits->least, limits->most);
  *out = (range){given[0], given[1]};
  return AD_OK;
}

static ad_status check_integer(const char *name, int64_t value) {
  if (value >= 1 && value <= LARGEST_SIDE) return AD_OK;
  return ad_fail(AD_INVALID, "%s must be from 1 to %d, but is %lld", name, LARGEST_SIDE, (long long)value);
}

static ad_status check_number(const char *name, double value, double most) {
  if (value >= 0 && value <= most) return AD_OK;
  return ad_fail(AD_INVALID, "%s must be from 0 to %g, but is %g", name, most, value);
}

/* Checks the options, and copies those that are numbers. */
static ad_status take_options(const ad_line_options *options, ad_line_data *lines) {
  AD_TRY(check_integer("chars", options->chars));
  AD_TRY(check_integer("height", options->height));
  AD_TRY(check_integer("width", options->width));
  AD_TRY(check_number("rotation", options->rotation, 30));
  AD_TRY(check_number("noise", options->noise, 1));
  AD_TRY(take_range("sizes", options->sizes, options->size_count, &SIZES, &lines->sizes));
  if (options->weight_count)
    AD_TRY(take_range("weights", options->weights, options->weight_count, &WEIGHTS, &lines->weights));
  lines->chars = options->chars;
  lines->height = options->height;
  lines->width = options->width;
  lines->rotation = options->rotation;
  lines->noise = options->noise;
  lines->blank = options->blank;
  return AD_OK;
}

/* ---- reading the text ---- */

static int is_visible(uint8_t byte) { return byte > ' ' && byte <= AD_PRINTABLE_LAST; }

/* Copies the bytes. A run of spaces and of bytes that cannot be drawn becomes one space. Returns the number of
 * characters. */
static int64_t collapse(const uint8_t *bytes, int64_t size, uint8_t *out) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; i++) {
    if (is_visible(bytes[i]))
      out[count++] = bytes[i];
    else if (count && out[count - 1] != ' ')
      out[count++] = ' ';
  }
  return count;
}

/* Copies the characters of one part of the text (training or validation). Returns AD_INVALID if they are too few for a
 * line. */
static ad_status take_part(const ad_text_data *text, int validation, const char *what, int64_t chars, part *out) {
  int64_t size;
  const uint8_t *bytes = ad_text_data_part(text, validation ? AD_VALIDATION_PART : AD_TRAINING_PART, &size);
  AD_TRY(ad_new((size_t)size, &out->characters));
  out->size = collapse(bytes, size, out->characters);
  if (out->size > chars || !size) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s has %lld printable characters, but lines of %lld characters need at least %lld; give more text or "
                 "set a smaller `chars`",
                 what, (long long)out->size, (long long)chars, (long long)chars + 1);
}

/* Reads the text, and copies the characters of its training part and of its validation part. */
static ad_status take_text(const ad_line_options *options, ad_line_data *lines) {
  ad_text_data *text;
  AD_TRY(ad_text_data_open((const char *const *)options->text, options->text_count, options->chars, options->validation,
                           &text));
  lines->text_bytes = ad_text_data_bytes(text);
  lines->text_checksum = ad_text_data_checksum(text);
  lines->train.stream = ad_random_stream("line");
  lines->validation.stream = ad_random_stream("line held out");
  ad_status status = take_part(text, 0, "the text", lines->chars, &lines->train);
  if (!status) status = take_part(text, 1, "the text reserved for validation", lines->chars, &lines->validation);
  ad_text_data_close(text);
  return status;
}

/* ---- opening the fonts ---- */

/* Returns the width that text may have, so that a rotated line is inside the picture. */
static FT_Pos room_along(const ad_line_data *lines) {
  double across = (double)lines->height * sin(lines->rotation * M_PI / 180);
  return (FT_Pos)(((double)lines->width - across) * PIXEL) - 2 * MARGIN;
}

static FT_Pos room_across(const ad_line_data *lines) { return (FT_Pos)lines->height * PIXEL - 2 * MARGIN; }

/* Measures a box that is large enough for any character at the largest size and weight: as high as all characters
 * together, and as wide as the widest. */
static ad_status measure_font(const ad_line_data *lines, const ad_font *font, FT_Pos *width, FT_Pos *height) {
  const ad_font_style largest = {lines->sizes.most, lines->weights.most};
  ad_typeset set;
  FT_Pos low = 0, high = 0;
  AD_TRY(ad_typeset_create(1, font->points, &set));
  *width = 0;
  for (int i = AD_PRINTABLE_FIRST + 1; i <= AD_PRINTABLE_LAST; i++) {
    const uint8_t character = (uint8_t)i;
    ad_typeset_line(&set, font, &largest, &character, 1, INT32_MAX);
    if (set.box.xMax - set.box.xMin > *width) *width = set.box.xMax - set.box.xMin;
    if (set.box.yMin < low) low = set.box.yMin;
    if (set.box.yMax > high) high = set.box.yMax;
  }
  *height = high - low;
  ad_typeset_destroy(&set);
  return AD_OK;
}

/* Returns the largest size at which text fits into `room` pixels, if it needs `needed` pixels at `size`; rounded down
 * to tenths. */
static double fitting(double size, FT_Pos needed, FT_Pos room) {
  return floor(10 * size * (double)room / (double)needed) / 10;
}

static ad_status check_room(const ad_line_data *lines, const char *what, int64_t pixels, FT_Pos needed, FT_Pos room) {
  double size = lines->sizes.most;
  if (needed <= room) return AD_OK;
  return ad_fail(AD_INVALID,
                 "at size %g the characters of the font need a %s of %lld pixels, but the picture has only %lld; set "
                 "`sizes` to at most %g, or make the picture larger",
                 size, what, (long long)(pixels + (needed - room + PIXEL - 1) / PIXEL), (long long)pixels,
                 room > 0 ? fitting(size, needed, room) : 0);
}

static ad_status check_size(const ad_line_data *lines, const ad_font *font) {
  FT_Pos width, height;
  AD_TRY(measure_font(lines, font, &width, &height));
  AD_TRY(check_room(lines, "height", lines->height, height, room_across(lines)));
  return check_room(lines, "width", lines->width, width, room_along(lines));
}

static ad_status take_font(const ad_line_data *lines, const char *path, ad_font *out) {
  AD_TRY(ad_font_read(lines->library, path, out));
  ad_status status = check_size(lines, out);
  return status ? ad_fail_in(status, "%s", path) : AD_OK;
}

/* Reads the fonts, and checks that the validation font is not one of the training fonts. */
static ad_status take_fonts(const ad_line_options *options, ad_line_data *lines) {
  if (!options->font_count) return ad_fail(AD_INVALID, "there is no font; name at least one font file in `fonts`");
  lines->train_font_count = options->font_count;
  lines->font_count = options->font_count + (options->validation_font != NULL);
  AD_TRY(ad_new(lines->font_count, &lines->fonts));
  for (size_t i = 0; i < options->font_count; i++) AD_TRY(take_font(lines, options->fonts[i], &lines->fonts[i]));
  if (!options->validation_font) return AD_OK;
  ad_font *validation = &lines->fonts[options->font_count];
  AD_TRY(take_font(lines, options->validation_font, validation));
  for (size_t i = 0; i < options->font_count; i++)
    if (lines->fonts[i].checksum == validation->checksum)
      return ad_fail(AD_INVALID,
                     "%s: the validation font is also fonts[%zu], a font to train on; name another validation font",
                     options->validation_font, i);
  return AD_OK;
}

static ad_status start_library(ad_line_data *lines) {
  FT_Error error = FT_Init_FreeType(&lines->library);
  return error ? ad_fail(AD_MEMORY,
                         "FreeType cannot be started (error %d of FreeType); check the installation of FreeType", error)
               : AD_OK;
}

static ad_status make_set(ad_line_data *lines) {
  size_t points = 0;
  for (size_t i = 0; i < lines->font_count; i++)
    if (lines->fonts[i].points > points) points = lines->fonts[i].points;
  return ad_typeset_create((size_t)lines->chars, points, &lines->set);
}

/* ---- opening and closing line data ---- */

static ad_status open_lines(const ad_line_options *options, ad_line_data *lines) {
  AD_TRY(take_options(options, lines));
  AD_TRY(take_text(options, lines));
  AD_TRY(start_library(lines));
  AD_TRY(take_fonts(options, lines));
  return make_set(lines);
}

ad_status ad_line_data_open(const ad_line_options *options, ad_line_data **out) {
  AD_NEED(options, out);
  if (options->font_count) AD_NEED_AS("options->fonts", options->fonts);
  for (size_t i = 0; i < options->font_count; i++) AD_NEED_AS("options->fonts[i]", options->fonts[i]);
  ad_line_data *lines;
  AD_TRY(ad_new(1, &lines));
  ad_status status = open_lines(options, lines);
  if (status)
    ad_line_data_close(lines);
  else
    *out = lines;
  return status;
}

void ad_line_data_close(ad_line_data *lines) {
  if (!lines) return;
  ad_typeset_destroy(&lines->set);
  for (size_t i = 0; i < lines->font_count && lines->fonts; i++) ad_font_clear(lines->library, &lines->fonts[i]);
  FT_Done_FreeType(lines->library);
  ad_release(lines->fonts);
  ad_release(lines->train.characters);
  ad_release(lines->validation.characters);
  ad_release(lines);
}

ad_status ad_line_font_check(const ad_line_options *options, const char *path) {
  AD_NEED(options, path);
  ad_line_data lines = {0};
  ad_font font;
  AD_TRY(take_options(options, &lines));
  AD_TRY(start_library(&lines));
  ad_status status = take_font(&lines, path, &font);
  ad_font_clear(lines.library, &font);
  FT_Done_FreeType(lines.library);
  return status;
}

int64_t ad_line_data_bytes(const ad_line_data *lines) { return lines->text_bytes; }

uint64_t ad_line_data_checksum(const ad_line_data *lines) { return lines->text_checksum; }

uint64_t ad_line_data_font_checksum(const ad_line_data *lines) {
  uint64_t checksum = 0;
  for (size_t i = 0; i < lines->font_count; i++)
    checksum = ad_checksum(&lines->fonts[i].checksum, sizeof checksum, checksum);
  return checksum;
}

/* ---- drawing a line ---- */

/* The streams of random numbers that a line draws from its seed. */
enum { START, LENGTH, FONT, SIZE, WEIGHT, ANGLE, LEFT, BOTTOM, NOISE };

static double between(uint64_t seed, uint64_t stream, range from) {
  return from.least + (from.most - from.least) * ad_random_uniform(seed, stream, 0);
}

/* Chooses where a line begins, and its number of characters: from half of `chars`, rounded up, to `chars`. */
static const uint8_t *cut_line(const part *from, uint64_t seed, int64_t chars, int64_t *count) {
  int64_t least = (chars + 1) / 2;
  const uint8_t *start = from->characters + ad_random_below(seed, START, 0, from->size - chars);
  *count = least + ad_random_below(seed, LENGTH, 0, chars - least + 1);
  return *start == ' ' ? start + 1 : start;
}

/* Draws an angle at which the line is inside the picture; the sine of the angle may be at most across / along. */
static double draw_angle(const ad_line_data *lines, uint64_t seed) {
  const FT_BBox *box = &lines->set.box;
  double across = (double)(room_across(lines) - (box->yMax - box->yMin)), along = (double)(box->xMax - box->xMin);
  double most = fmin(lines->rotation, across / along * 180 / M_PI);
  return between(seed, ANGLE, (range){-most, most});
}

/* Moves the line to a random place in the picture: at any height, and at most half an em from the left edge. */
static void draw_place(ad_line_data *lines, uint64_t seed, double size) {
  const FT_BBox *box = &lines->set.box;
  double across = (double)(room_across(lines) - (box->yMax - box->yMin));
  double along = (double)(lines->width * PIXEL - 2 * MARGIN - (box->xMax - box->xMin));
  FT_Pos x = lround(between(seed, LEFT, (range){0, fmin(along, size / 2 * PIXEL)}));
  FT_Pos y = lround(between(seed, BOTTOM, (range){0, across}));
  ad_typeset_move(&lines->set, MARGIN + x - box->xMin, MARGIN + y - box->yMin);
}

static void add_noise(uint64_t seed, double deviation, int64_t pixels, float *picture) {
  for (int64_t i = 0; i < pixels; i++) {
    double value = picture[i] + deviation * ad_random_normal(seed, NOISE, (uint64_t)i);
    picture[i] = (float)fmin(1, fmax(0, value));
  }
}

static ad_status draw_picture(ad_line_data *lines, uint64_t seed, double size, float *picture) {
  ad_typeset_rotate(&lines->set, draw_angle(lines, seed));
  draw_place(lines, seed, size);
  AD_TRY(ad_typeset_draw(&lines->set, lines->library, lines->height, lines->width, picture));
  if (lines->noise > 0) add_noise(seed, lines->noise, lines->height * lines->width, picture);
  return AD_OK;
}

ad_status ad_line_data_draw(ad_line_data *lines, uint64_t seed, ad_data_part of, uint64_t index, ad_line *out,
                            uint8_t *characters, float *picture) {
  AD_NEED(lines, out, characters, picture);
  int validation = of == AD_VALIDATION_PART;
  const part *from = validation ? &lines->validation : &lines->train;
  *out = (ad_line){0};
  memset(characters, 0, (size_t)lines->chars);
  memset(picture, 0, (size_t)(lines->height * lines->width) * sizeof *picture);
  if (!from->size) return AD_OK;
  uint64_t own = ad_random_bits(seed, from->stream, index);
  int64_t count, fonts = (int64_t)(validation ? lines->font_count : lines->train_font_count);
  const uint8_t *line = cut_line(from, own, lines->chars, &count);
  out->font = (size_t)ad_random_below(own, FONT, 0, fonts);
  ad_font_style style = {between(own, SIZE, lines->sizes), between(own, WEIGHT, lines->weights)};
  ad_typeset_line(&lines->set, &lines->fonts[out->font], &style, line, (size_t)count, room_along(lines));
  out->count = (int64_t)lines->set.count;
  memcpy(characters, line, lines->set.count);
  return lines->blank ? AD_OK : draw_picture(lines, own, style.size, picture);
}
