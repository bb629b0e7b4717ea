/* Lines of a text and pictures of them, for the program `ocr`. */
#ifndef DATA_LINES_H
#define DATA_LINES_H
#include "addend/data.h"

/* Lines of a text and pictures of them: keys of a recipe's `data`. */
typedef struct ad_line_options {
  char **text; /* files and folders, as in ad_text_options */
  size_t text_count;
  double held_out; /* as in ad_text_options */
  char **fonts;    /* files; each line is drawn in one of them */
  size_t font_count;
  char *held_out_font;   /* one more for lines of the held-out part alone; NULL: none */
  int64_t chars;         /* a line has at most as many characters, and at least half of them where they fit */
  int64_t height, width; /* of a picture, in pixels */
  double *sizes;         /* [least, most] pixels of the em */
  size_t size_count;
  double *weights; /* [least, most] ems by which strokes are wider than the font has them, below 0 narrower; none: as
                      the font has them. -0.03 to 0.05 can be read; at 0.1 a bold font's letters close up */
  size_t weight_count;
  double rotation; /* degrees at most, either way; less where a line would leave the picture */
  double noise;    /* standard deviation of what is added to every pixel */
  int blank;       /* 1: the same characters with empty pictures, to see what is known without reading */
} ad_line_options;
typedef struct ad_line_data ad_line_data;

/* Whether ad_line_data_open would take this font with these options: its errors, and its message. */
AD_CHECKED ad_status ad_line_font_check(const ad_line_options *options, const char *path);
/* xxhash64: as ad_text_data_checksum, and of all fonts in their order, the held-out one last. */
uint64_t ad_line_data_checksum(const ad_line_data *lines);
uint64_t ad_line_data_font_checksum(const ad_line_data *lines);

/* Reads the text, as ad_text_data_open does, and every font once. The options are not kept. AD_IO names a file that
 * cannot be read, or that is no font with all printable ASCII characters; AD_INVALID the option that is out of its
 * range, the font whose largest characters leave the picture, a text that is too short, a held-out font that is one of
 * the others. */
AD_CHECKED ad_status ad_line_data_open(const ad_line_options *options, ad_line_data **out);
void ad_line_data_close(ad_line_data *lines);
int64_t ad_line_data_bytes(const ad_line_data *lines); /* of the text's files */
typedef struct ad_line {
  int64_t count; /* of its characters */
  size_t font;   /* in which they are drawn; options.font_count: the held-out one */
} ad_line;
/* Draws line number `index` of the part that is trained on, or of the held-out part: a function of (seed, held_out,
 * index) alone. characters [chars]: printable ASCII, no space first or last, every run of other bytes one space; zeros
 * after the last. picture [height, width]: 0 is paper, 1 is ink. The line is cut where the picture ends. Lines of the
 * two parts overlap nowhere; where a text repeats itself both may still say the same.
 *
 * The line's own seed is a draw (seed, stream, index) with the stream XXH64("line"), of the held-out part XXH64("line
 * held out"); all else is drawn with that. One thread at a time may draw. Without a held-out part its lines are empty.
 * AD_INVALID: the font has an outline that cannot be drawn. */
AD_CHECKED ad_status ad_line_data_draw(ad_line_data *lines, uint64_t seed, ad_data_part of, uint64_t index,
                                       ad_line *out, uint8_t *characters, float *picture);

#endif
