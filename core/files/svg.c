/* Writes SVG: the style, text with its special characters, boxes, lines and arrows. */
#include "files/svg.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include "base/printable.h"

/* The style of all pictures. Programs that do not know colour schemes (converters for print) show the light one. In a
 * picture, groups are distinguished by letters as well as by colours. */
static const char style[] =
    "<style>\n"
    "text { font: 13px 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif; fill: #1f2328 }\n"
    ".title { font-size: 22px; font-weight: bold } .section { font-size: 16px; font-weight: bold }\n"
    ".head { font-weight: bold } .code { font: 12px 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre "
    "}\n"
    ".small { font-size: 11px } .tiny { font-size: 8px }\n"
    ".quiet { fill: #59636e } .end { text-anchor: end } .middle { text-anchor: middle }\n"
    ".label { font-size: 11px; stroke: #ffffff; stroke-width: 3px; paint-order: stroke; stroke-linejoin: round }\n"
    ".paper { fill: #ffffff } .card { fill: #f6f8fa; stroke: #d1d9e0 } .cell { stroke: #8c959f }\n"
    ".arrow { fill: none; stroke: #0969da; stroke-width: 1.5 } .stays { stroke: #8c959f; stroke-dasharray: 5 4 }\n"
    ".tip { fill: #0969da } .stays-tip { fill: #8c959f }\n"
    ".none { fill: #ffffff } .g0 { fill: #cfe3ff } .g1 { fill: #ffdcb8 } .g2 { fill: #cdeecb } .g3 { fill: #ead6ff }\n"
    ".g4 { fill: #fff0a8 } .g5 { fill: #ffd3de } .g6 { fill: #c3ecec } .g7 { fill: #e3e0d3 }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "text { fill: #e6edf3 } .quiet { fill: #9198a1 } .label { stroke: #0d1117 }\n"
    ".paper { fill: #0d1117 } .card { fill: #151b23; stroke: #3d444d } .cell { stroke: #656c76 }\n"
    ".arrow { stroke: #4493f8 } .stays { stroke: #656c76 } .tip { fill: #4493f8 } .stays-tip { fill: #656c76 }\n"
    ".none { fill: #0d1117 } .g0 { fill: #12386b } .g1 { fill: #6b3a0a } .g2 { fill: #17512a } .g3 { fill: #472a6e }\n"
    ".g4 { fill: #574a06 } .g5 { fill: #6b2039 } .g6 { fill: #0f4f52 } .g7 { fill: #45423a }\n"
    "}\n"
    "</style>\n";

/* Writes the definition of an arrow's head. */
static void write_tip(FILE *file, const char *id, const char *class) {
  fprintf(file,
          "<marker id=\"%s\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" "
          "markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path class=\"%s\" d=\"M0 0L8 4L0 8z\"/></marker>\n",
          id, class);
}

/* Writes text with XML's special characters escaped. Characters that XML cannot contain (control characters, U+FFFE and
 * U+FFFF), and characters that change the direction of writing, become '?'. */
static void write_escaped(FILE *file, const char *text) {
  for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
    unsigned code;
    size_t bytes = ad_control_at((const char *)c, &code);
    if (c[0] == 0xef && c[1] == 0xbf && (c[2] == 0xbe || c[2] == 0xbf)) bytes = 3;
    if (bytes) {
      fputc('?', file);
      c += bytes - 1;
    } else if (*c == '&') {
      fputs("&amp;", file);
    } else if (*c == '<') {
      fputs("&lt;", file);
    } else if (*c == '>') {
      fputs("&gt;", file);
    } else {
      fputc(*c, file);
    }
  }
}

void ad_svg_begin(FILE *file, int width, int height, const char *title) {
  fprintf(file,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n"
          "<title>",
          width, height, width, height);
  write_escaped(file, title);
  fprintf(file, "</title>\n%s<defs>\n", style);
  write_tip(file, "arrow", "tip");
  write_tip(file, "stays", "stays-tip");
  fprintf(file, "</defs>\n");
  ad_svg_box(file, 0, 0, width, height, "paper");
}

void ad_svg_end(FILE *file) { fprintf(file, "</svg>\n"); }

void ad_svg_text(FILE *file, int x, int y, const char *class, const char *format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(file, "<text x=\"%d\" y=\"%d\" class=\"%s\">", x, y, class);
  write_escaped(file, text);
  fprintf(file, "</text>\n");
}

int ad_svg_text_width(const char *class, const char *text) {
  int letter = !strcmp(class, "title") ? 14 : !strcmp(class, "small") ? 7 : 8, letters = 0;
  for (; *text; text++) letters += (*text & 0xc0) != 0x80; /* bytes that begin a character of UTF-8 */
  return letter * letters;
}

void ad_svg_box(FILE *file, int x, int y, int width, int height, const char *class) {
  fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"3\" class=\"%s\"/>\n", x, y, width, height,
          class);
}

void ad_svg_line(FILE *file, int x, int y, int to_x, int to_y, const char *class) {
  fprintf(file, "<path class=\"%s\" d=\"M%d %dL%d %d\"/>\n", class, x, y, to_x, to_y);
}

void ad_svg_arrow(FILE *file, int x, int y, int to_x, int to_y, const char *class) {
  int middle = (x + to_x) / 2, stays = strstr(class, "stays") != NULL;
  fprintf(file, "<path class=\"%s\" marker-end=\"url(#%s)\" d=\"M%d %dC%d %d %d %d %d %d\"/>\n", class,
          stays ? "stays" : "arrow", x, y, middle, y, middle, to_y, to_x, to_y);
}

const char *ad_grouped(int64_t number, char buffer[AD_GROUPED_MAX]) {
  char digits[AD_GROUPED_MAX];
  int count = snprintf(digits, sizeof digits, "%" PRId64, number), used = 0;
  for (int i = 0; i < count; i++) {
    if (i && (count - i) % 3 == 0 && digits[i - 1] != '-') buffer[used++] = ',';
    buffer[used++] = digits[i];
  }
  buffer[used] = 0;
  return buffer;
}
