/* The printable ASCII characters of a font file, as outlines that FreeType draws. Where they stand in a picture is
 * decided in typeset.h.
 *
 * No fuzzer feeds this: a font comes from a path that a recipe names, and what parses its bytes is FreeType, which has
 * fuzzers of its own and is not compiled here, so that a fuzzer would see none of its branches. tests/io/test_lines.c
 * hands in fonts with bytes that were changed. */
#ifndef DATA_FONT_H
#define DATA_FONT_H
#include <ft2build.h>
#include FT_FREETYPE_H
#include FT_OUTLINE_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

enum {
  AD_PRINTABLE_FIRST = ' ',
  AD_PRINTABLE_LAST = '~',
  AD_PRINTABLE_COUNT = AD_PRINTABLE_LAST - AD_PRINTABLE_FIRST + 1
};

typedef struct ad_font {
  FT_Outline outlines[AD_PRINTABLE_COUNT]; /* in font units; one without points is blank, which a space alone may be */
  FT_Pos advances[AD_PRINTABLE_COUNT];     /* to the origin of the next character */
  int units;                               /* of the em, which becomes the size in pixels */
  size_t points;                           /* of the outline that has most */
  uint64_t checksum;                       /* of the file; xxhash64 */
} ad_font;

typedef struct ad_font_style {
  double size;   /* pixels of the em */
  double weight; /* how much wider strokes are than the font has them, in ems; below 0: narrower */
} ad_font_style;

/* AD_IO names the path and why it cannot be read, or which characters the font lacks. *out is zero after a failure. */
AD_CHECKED ad_status ad_font_read(FT_Library library, const char *path, ad_font *out);
void ad_font_clear(FT_Library library, ad_font *font); /* one that is all zero is allowed */

/* One character in 26.6 pixels, y upwards, its origin at (0, 0). `points`, room for font->points, becomes part of the
 * outline; the rest is borrowed from the font. */
FT_Outline ad_font_character(const ad_font *font, uint8_t character, const ad_font_style *style, FT_Vector *points,
                             FT_Pos *advance);

#endif
