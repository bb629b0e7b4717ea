/* The printable ASCII characters of a font file, as outlines that FreeType draws. typeset.h places them in a picture.
 *
 * No fuzzer is used here: FreeType, which has its own fuzzers, parses the bytes of a font. It is not compiled here, so
 * a fuzzer would see none of its branches. train/tests/data/test_lines.c uses fonts with changed bytes. */
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
  FT_Outline outlines[AD_PRINTABLE_COUNT]; /* in font units; only the space may be blank (an outline without points) */
  FT_Pos advances[AD_PRINTABLE_COUNT];     /* from the origin of a character to that of the next one, in font units */
  int units;                               /* font units in an em; `size` in ad_font_style is the pixels in an em */
  size_t points;                           /* number of points of the outline that has most */
  uint64_t checksum;                       /* XXH64 of the file */
} ad_font;

typedef struct ad_font_style {
  double size;   /* pixels in an em */
  double weight; /* how much wider strokes are than in the font, in ems; below 0: narrower */
} ad_font_style;

/* Reads a font file. Returns AD_IO, with the path in the message, if the file cannot be read or if the font does not
 * have all characters. On failure *out is all zero. */
AD_CHECKED ad_status ad_font_read(FT_Library library, const char *path, ad_font *out);
void ad_font_clear(FT_Library library, ad_font *font); /* a font that is all zero is allowed */

/* Returns one character, scaled to 26.6 pixels, y upwards, with its origin at (0, 0). `points` is memory for
 * font->points points; the rest of the outline is borrowed. Sets *advance to the pixels up to the origin of the next
 * character. */
FT_Outline ad_font_character(const ad_font *font, uint8_t character, const ad_font_style *style, FT_Vector *points,
                             FT_Pos *advance);

#endif
