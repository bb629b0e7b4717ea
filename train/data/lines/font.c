/* Reads the outlines of a font's characters once, and returns a character's outline at a size and a weight. */
#include "data/lines/font.h"

#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "files/file.h"
#include "addend/safetensors.h"

/* Loads a character into the face's glyph slot. Returns 0 if the font does not have the character, or if it has no
 * outline (only the space may have none). */
static int load_character(FT_Face face, int character) {
  FT_UInt glyph = FT_Get_Char_Index(face, (FT_ULong)character);
  if (!glyph || FT_Load_Glyph(face, glyph, FT_LOAD_NO_SCALE)) return 0;
  return face->glyph->format == FT_GLYPH_FORMAT_OUTLINE && (character == ' ' || face->glyph->outline.n_points > 0);
}

/* Copies the outline in the glyph slot to entry i of the font. */
static ad_status keep_outline(FT_Library library, FT_GlyphSlot slot, int i, ad_font *font) {
  const FT_Outline *outline = &slot->outline;
  if (FT_Outline_New(library, (FT_UInt)outline->n_points, outline->n_contours, &font->outlines[i]) ||
      FT_Outline_Copy(outline, &font->outlines[i]))
    return ad_fail(AD_MEMORY, "no memory for the outlines of a font");
  font->advances[i] = slot->advance.x;
  if ((size_t)outline->n_points > font->points) font->points = (size_t)outline->n_points;
  return AD_OK;
}

/* Copies the outlines of all printable characters. Returns AD_IO, with their names, if the font does not have some of
 * them. */
static ad_status keep_outlines(FT_Library library, FT_Face face, ad_font *font) {
  char missing[64];
  ad_text list = ad_text_on(missing, sizeof missing);
  size_t count = 0;
  for (int i = 0; i < AD_PRINTABLE_COUNT; i++) {
    const char character[] = {(char)(AD_PRINTABLE_FIRST + i), 0};
    if (load_character(face, *character))
      AD_TRY(keep_outline(library, face->glyph, i, font));
    else
      ad_text_list(&list, &count, "", "%s", *character == ' ' ? "the space" : character);
  }
  if (!count) return AD_OK;
  return ad_fail(AD_IO, "the font has no outline for %zu of the %d printable ASCII characters (%s); name another font",
                 count, AD_PRINTABLE_COUNT, missing);
}

static ad_status read_face(FT_Library library, FT_Face face, ad_font *font) {
  if (!FT_IS_SCALABLE(face) || !face->units_per_EM)
    return ad_fail(
        AD_IO, "the font has only bitmaps, which cannot be drawn at any size; name a .ttf or .otf file with outlines");
  font->units = face->units_per_EM;
  return keep_outlines(library, face, font);
}

static ad_status read_bytes(FT_Library library, const char *bytes, int64_t size, ad_font *font) {
  FT_Face face;
  FT_Error error = FT_New_Memory_Face(library, (const FT_Byte *)bytes, (FT_Long)size, 0, &face);
  if (error)
    return ad_fail(AD_IO, "FreeType cannot read this file as a font (error %d of FreeType); name a .ttf or .otf file",
                   error);
  ad_status status = read_face(library, face, font);
  FT_Done_Face(face);
  return status;
}

ad_status ad_font_read(FT_Library library, const char *path, ad_font *out) {
  char *bytes;
  int64_t size;
  *out = (ad_font){0};
  AD_TRY(ad_file_read(path, INT64_MAX - 1, &bytes, &size));
  ad_font font = {.checksum = ad_checksum(bytes, (size_t)size, 0)};
  ad_status status = read_bytes(library, bytes, size, &font);
  ad_release(bytes);
  if (status) {
    ad_font_clear(library, &font);
    return ad_fail_in(status, "%s", path);
  }
  *out = font;
  return AD_OK;
}

void ad_font_clear(FT_Library library, ad_font *font) {
  for (int i = 0; i < AD_PRINTABLE_COUNT; i++) FT_Outline_Done(library, &font->outlines[i]);
  *font = (ad_font){0};
}

/* Returns a character's outline. A bolder stroke grows to the right and upwards, so the next character is moved to the
 * right by the same amount. */
FT_Outline ad_font_character(const ad_font *font, uint8_t character, const ad_font_style *style, FT_Vector *points,
                             FT_Pos *advance) {
  int i = character - AD_PRINTABLE_FIRST;
  FT_Fixed scale = lround(style->size * 64 * 65536 / font->units);
  FT_Pos strength = lround(style->weight * style->size * 64);
  const FT_Matrix matrix = {.xx = scale, .yy = scale};
  FT_Outline outline = font->outlines[i];
  *advance = FT_MulFix(font->advances[i], scale) + strength;
  if (!outline.n_points) return outline;
  memcpy(points, outline.points, (size_t)outline.n_points * sizeof *points);
  outline.points = points;
  FT_Outline_Transform(&outline, &matrix);
  FT_Outline_Embolden(&outline, strength);
  return outline;
}
